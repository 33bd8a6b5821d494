"""A tool environment whose third turn starts a new stream: by `info["context"]`, or by a template without thinking.

Whatever breaks a stream, every sampled token is trained exactly once and in the context it was sampled from.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from puppets import DiaryEngine, driver, play

from plugym.algorithm import collate, spread
from plugym.env import StepResult
from plugym.message import Action, Message
from plugym.task import Task, Taskset
from plugym.testing import CharTokenizer
from plugym.tools import ToolEnv, tool
from plugym.trajectory import Trajectory

LINES = [
    '<think>I look.</think><tool_call>{"name": "look", "arguments": {"where": "north"}}</tool_call>',
    '<think>And there.</think><tool_call>{"name": "look", "arguments": {"where": "south"}}</tool_call>',
    "<think>Found it.</think>south",
]


class Maze(ToolEnv):
    """Two looks and an answer. With `window`, what follows the second look is all the policy still sees."""

    isolation = "inline"
    window: ClassVar[bool] = False

    @tool
    def look(self, where: str) -> str:
        """Look somewhere."""
        return f"{where}: {'gold' if where == 'south' else 'dust'}"

    def tasks(self, split: str) -> Taskset:
        return Taskset([Task("maze")])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.looks = 0
        return (Message("system", "Find gold."), Message("user", "Where?")), {}

    def step(self, action: Action) -> StepResult:
        observation, reward, terminated, truncated, info = super().step(action)
        self.looks += 1
        if self.window and self.looks == 2:
            info["context"] = (Message("user", "Where? You are at the end of the maze."), *observation)
        return observation, reward, terminated, truncated, info

    def answer(self, action: Action) -> StepResult:
        return (), 1.0, True, False, {"outcome": 1.0}


class WindowedMaze(Maze):
    window = True


def played(env: type[Maze], history: str, *, strip: bool) -> tuple[Trajectory, DiaryEngine]:
    engine = DiaryEngine(lambda request, turn: LINES[turn], tokenizer=CharTokenizer(strip_thinking=strip))
    (group,) = play(driver(env, engine, history=history), [Task("maze")])
    (trajectory,) = group.trajectories
    return trajectory, engine


@pytest.mark.parametrize(
    ("env", "history", "strip", "streams"),
    [
        (Maze, "append", True, [0, 0, 0]),
        (Maze, "template", False, [0, 0, 0]),
        (Maze, "template", True, [0, 1, 2]),
        (WindowedMaze, "append", True, [0, 0, 1]),
        (WindowedMaze, "template", False, [0, 0, 1]),
    ],
)
def test_every_sampled_token_is_trained_exactly_once(
    env: type[Maze], history: str, strip: bool, streams: list[int]
) -> None:
    trajectory, engine = played(env, history, strip=strip)
    assert [turn.stream for turn in trajectory.turns] == streams
    assert trajectory.counts["stream_breaks"] == len(set(streams)) - 1
    assert [turn.executed_calls for turn in trajectory.turns] == [1, 1, 0]

    completions = engine.completions[trajectory.id]
    for request, turn, completion in zip(engine.requests, trajectory.turns, completions, strict=True):
        stream, (start, end) = trajectory.streams[turn.stream], turn.span
        assert np.array_equal(stream.ids[:start], request.prompt_ids), "in the context it was sampled from"
        assert np.array_equal(stream.ids[start:end], completion.token_ids)

    sampled = np.concatenate([completion.token_ids for completion in completions if completion.token_ids is not None])
    trained = np.concatenate([stream.ids[stream.positions] for stream in trajectory.streams])
    assert np.array_equal(trained, sampled)

    batch = collate([trajectory], [spread(trajectory, 1.0)], logp=torch.zeros(len(sampled)))
    assert batch.total_tokens == len(sampled)
    assert batch.advantages.tolist() == [1.0] * len(sampled)
    lengths = [turn.span[1] - turn.span[0] for turn in trajectory.turns]
    assert batch.turn_index.tolist() == np.repeat([0, 1, 2], lengths).tolist()


def test_the_window_is_the_whole_prompt_of_the_next_turn() -> None:
    trajectory, engine = played(WindowedMaze, "append", strip=False)
    assert engine.tokenizer is not None
    prompt = engine.requests[2].prompt_ids
    assert prompt is not None
    text = engine.tokenizer.decode(prompt)
    assert "end of the maze" in text
    assert "south: gold" in text
    assert "Find gold" not in text
    assert engine.requests[2].messages is not None
    assert [message.role for message in engine.requests[2].messages] == ["user", "tool"]
    assert [message.role for message in trajectory.messages()] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ], "the record keeps what happened, not the window"


def test_prompts_of_later_streams_are_not_counted_as_response() -> None:
    one, _ = played(Maze, "template", strip=False)
    three, _ = played(Maze, "template", strip=True)
    assert three.response_tokens(observations=False) == one.response_tokens(observations=False)
    assert three.response_tokens(observations=True) == three.trained_tokens
    assert one.response_tokens(observations=True) > one.trained_tokens
