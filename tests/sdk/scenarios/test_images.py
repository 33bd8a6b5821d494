"""Screens in messages: engines that take messages get them, a text tokenizer refuses them with one clear line."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from puppets import DiaryEngine, driver, play

from plugym.engine import Level
from plugym.env import AgentEnv, StepResult
from plugym.errors import BadInput
from plugym.message import Action, ImagePart, Message, TextPart
from plugym.task import Task, Taskset
from plugym.testing import CharTokenizer


def screen(n: int) -> ImagePart:
    return ImagePart(f"png {n}".encode())


class Desktop(AgentEnv):
    """Shows a new screen after every action; with `window`, the policy sees the last two only."""

    isolation = "inline"
    window: ClassVar[bool] = False

    def tasks(self, split: str) -> Taskset:
        return Taskset([Task("t")])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.n = 0
        return (Message("user", (TextPart("Click OK."), screen(0))),), {}

    def step(self, action: Action) -> StepResult:
        self.n += 1
        shown = Message("user", (TextPart("now:"), screen(self.n)))
        info = {"context": (Message("user", (screen(self.n - 1), screen(self.n))),)} if self.window else {}
        return (shown,), 0.0, self.n == 3, False, info


class WindowedDesktop(Desktop):
    window = True


class VisionTokenizer(CharTokenizer):
    """Writes one placeholder per image, as vision models' templates do."""

    def render(self, messages: Any, tools: Any, *, generation_prompt: bool) -> str:
        flat = [Message(m.role, m.text + "@" * len(m.images)) for m in messages]
        return super().render(flat, tools, generation_prompt=generation_prompt)


def test_an_engine_that_takes_messages_sees_the_pictures() -> None:
    engine = DiaryEngine(level=Level.TEXT)
    assert engine.capabilities.images
    (group,) = play(driver(Desktop, engine), [Task("t")])
    (trajectory,) = group.trajectories
    seen = [[image for m in request.messages or () for image in m.images] for request in engine.requests]
    assert seen == [[screen(0)], [screen(0), screen(1)], [screen(0), screen(1), screen(2)]]
    assert [list(request.media) for request in engine.requests] == seen
    assert trajectory.turns[0].messages[0].to_openai()["content"][1] == {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,cG5nIDA="},
    }
    (stream,) = trajectory.streams
    assert not stream.trainable
    assert stream.media == (screen(0), screen(1), screen(2))


def test_a_text_tokenizer_refuses_with_one_clear_line() -> None:
    with pytest.raises(BadInput) as caught:
        play(driver(Desktop, DiaryEngine()), [Task("t")])
    assert str(caught.value) == "this model's tokenizer takes text only: the environment sent an image"


@pytest.mark.parametrize(
    ("env", "media"),
    [
        (Desktop, [(0, 1, 2)]),
        (WindowedDesktop, [(0,), (0, 1), (1, 2)]),
    ],
)
def test_each_stream_holds_the_images_of_its_own_tokens(env: type[AgentEnv], media: list[tuple[int, ...]]) -> None:
    engine = DiaryEngine(tokenizer=VisionTokenizer())
    (group,) = play(driver(env, engine), [Task("t")])
    streams = group.trajectories[0].streams
    assert [stream.media for stream in streams] == [tuple(map(screen, numbers)) for numbers in media]
    (placeholder,) = VisionTokenizer().encode("@")
    assert [int(np.sum((s.ids == placeholder) & ~s.loss_mask)) for s in streams] == [len(s.media) for s in streams]
