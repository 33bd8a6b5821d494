"""Where text comes from: the `Engine` contract, its requests and completions, and the tokenizer it may expose.

An engine is asked for one completion at a time; batching is its own business. What it can say about tokens is its
`Level`: only at `TOKENS` can a run train.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol

from pydantic import BaseModel

from plugym.message import ImagePart, Message, ToolSpec
from plugym.trajectory import FloatArray, IntArray


class Level(StrEnum):
    """What an engine knows about the tokens it samples."""

    TOKENS = "tokens"
    """Exact token ids and their log-probs: enough to train."""
    LOGPROBS = "logprobs"
    """Log-probs but no ids."""
    TEXT = "text"
    """Text only."""


class EngineConfig(BaseModel, extra="forbid"):
    """Settings of an engine that has none of its own."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine offers. `max_context` is in tokens, None when unknown."""

    level: Level
    max_context: int | None = None
    choices: bool = False
    images: bool = False


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. `temperature` 0 is greedy. Log-probs are those of the temperature-scaled distribution before
    `top_p`/`top_k` cut it (at temperature 1 for greedy), so they compare with what the learner recomputes."""

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One completion to sample: `prompt_ids` are exact and win; `messages` serve engines that render themselves.

    `seed` fixes the randomness of this request alone, whatever it is batched with. `session` names the episode, so
    that a key-value cache can be kept between its turns. `choices` asks for the log-prob of each fixed answer instead
    of sampling.
    """

    prompt_ids: IntArray | None = None
    messages: tuple[Message, ...] | None = None
    tools: tuple[ToolSpec, ...] = ()
    media: tuple[ImagePart, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    session: str = ""
    adapter: str | None = None
    choices: tuple[str, ...] = ()


Finish = Literal["stop", "length", "choices", "overflow"]
"""`overflow`: the server refused the prompt as longer than its context; nothing was sampled."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What came back. `token_ids` int64[n] is None below level `TOKENS`, `logprobs` float32[n] below
    `LOGPROBS`.

    `message` is set by servers that split reasoning and tool calls themselves; otherwise the driver parses `text`.
    `choice_logprobs` holds one summed log-prob per requested choice.
    """

    text: str
    finish: Finish = "stop"
    prompt_ids: IntArray | None = None
    token_ids: IntArray | None = None
    logprobs: FloatArray | None = None
    choice_logprobs: tuple[float, ...] | None = None
    policy_version: int = 0
    message: Message | None = None


class ChatTokenizer(Protocol):
    """The three things the renderer needs of a tokenizer and its chat template."""

    @property
    def eos_ids(self) -> Sequence[int]:
        """Ids that end an assistant turn."""

    @property
    def supports_tools(self) -> bool:
        """Whether the chat template renders tool schemas and tool messages."""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        """The chat template's text for these messages."""

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, no special tokens added, special tokens in the text recognised."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""


class Engine(ABC):
    """Samples completions. Constructed as `Engine(config)`; `open` before the first request, `close` at the end."""

    Config: ClassVar[type[BaseModel]] = EngineConfig
    follows_policy: ClassVar[bool] = True
    """Whether `update_weights` changes what is sampled. Only then can a run train with it."""

    def __init__(self, config: BaseModel) -> None:
        self.config = config

    def __deepcopy__(self, memo: dict[int, Any]) -> Engine:
        """Itself: an engine is a connection or a model in memory. Gymnasium copies the arguments of `make`."""
        return self

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Known after `open`; an endpoint is probed once."""

    @property
    def tokenizer(self) -> ChatTokenizer | None:
        """The policy's tokenizer, or None when the engine only takes messages."""
        return None

    async def open(self) -> None:
        """Connect, probe, load. Raises `BadInput` for what the user can fix."""

    @abstractmethod
    async def generate(self, request: GenerateRequest) -> Completion:
        """One completion. Raises `InfraError(kind=engine)` when the server fails."""

    def announce(self, sessions: Sequence[str]) -> None:
        """These sessions are about to send requests, and each will be closed by `end_session`.

        An engine may wait for all announced sessions before it forms a batch: its batches then depend on who is
        playing, never on who arrived first.
        """

    def end_session(self, session: str) -> None:
        """The episode is over; caches may go."""

    async def update_weights(self, version: int, source: Any = None) -> None:
        """Use the weights of policy `version` from now on. `source` is the learner's handle (a path, a module)."""

    async def close(self) -> None:
        """Free what `open` took. Idempotent."""
