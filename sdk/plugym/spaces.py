"""Real gymnasium spaces of language: `Messages` (observations) and `AgentAction` (actions).

They make an `AgentEnv` a citizen of the gymnasium world: `contains` checks shape, `sample` draws something valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gymnasium.spaces import Space

from plugym.message import Action, Message, ToolCall

_WORDS = ("yes", "no", "look", "go", "take", "1", "2", "42", "answer", "help", "\\boxed{7}")


class Messages(Space[tuple[Message, ...]]):
    """Tuples of `Message`: what is new since the last action.

    >>> Messages().contains((Message("user", "hi"),))
    True
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def contains(self, x: Any) -> bool:
        return isinstance(x, tuple) and all(isinstance(message, Message) for message in x)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> tuple[Message, ...]:
        return (Message("user", str(self.np_random.choice(_WORDS))),)

    def to_jsonable(self, sample_n: Iterable[tuple[Message, ...]]) -> list[Any]:
        return [[message.to_openai() for message in messages] for messages in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Messages)

    def __repr__(self) -> str:
        return "Messages()"


class AgentAction(Space[Action]):
    """Assistant turns. `tools` are the names a sampled action may call.

    >>> AgentAction().contains(Action.of("go north"))
    True
    """

    def __init__(self, tools: Sequence[str] = (), seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)
        self.tools = tuple(tools)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def contains(self, x: Any) -> bool:
        return isinstance(x, Action)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> Action:
        text = str(self.np_random.choice(_WORDS))
        if self.tools and self.np_random.random() < 0.5:
            call = ToolCall(id="call_0", name=str(self.np_random.choice(self.tools)))
            return Action(text="", tool_calls=(call,), raw=text)
        return Action.of(text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AgentAction) and self.tools == other.tools

    def __repr__(self) -> str:
        return f"AgentAction(tools={list(self.tools)})" if self.tools else "AgentAction()"
