"""What happened in an episode, exactly: `Turn` -> `TokenStream` -> `Trajectory` -> `Group` -> `ScoredGroup`.

An episode is a sequence of turns. The tokens of its turns lie in one or more streams: a stream is a token sequence in
which every sampled token was conditioned on exactly the tokens before it. A turn whose prompt does not extend the
tokens so far (a history window, a template that strips reasoning, a sub-agent) opens a new stream, so each sampled
token is trained exactly once and always in its own context. Trajectories of one task form a group; a group with its
scores is what an algorithm sees. Expected ends (a limit, an overflowing context) are values of `StopReason`, never
exceptions; infrastructure failures are data too (`Status.INFRA_FAILED` with a `Failure`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from plugym.errors import Failure
from plugym.message import Action, ImagePart, Message
from plugym.task import Task

if TYPE_CHECKING:
    from plugym.reward import Score

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


class StopReason(StrEnum):
    """Why an episode ended; mirrored one-hot as the metrics `stop/<reason>`."""

    ENV_DONE = "env_done"
    """The environment terminated the episode."""
    ENV_TRUNCATED = "env_truncated"
    """The environment cut it (its own step limit)."""
    MAX_TURNS = "max_turns"
    """The run's limit of assistant turns."""
    TURN_LENGTH = "turn_length"
    """The last completion hit the per-turn token limit and the episode could not go on from it."""
    RESPONSE_LENGTH = "response_length"
    """Generated plus observation tokens reached the run's limit."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The next prompt would not fit the model's context."""
    DEADLINE = "deadline"
    """The per-episode deadline passed after at least one sampled turn."""
    AGENT_ERROR = "agent_error"
    """The policy did something the environment refuses to go on from."""
    INFRA = "infra"
    """An infrastructure failure; see `Trajectory.failure`."""


class Status(StrEnum):
    """How an episode ended, as far as training is concerned."""

    COMPLETED = "completed"
    """The environment ended it."""
    TRUNCATED = "truncated"
    """A limit cut it; it is scored as it stands."""
    AGENT_ERROR = "agent_error"
    """The policy's own mistake ended it; it is scored."""
    INFRA_FAILED = "infra_failed"
    """Not the policy's doing: kept, counted, never scored and in no statistic."""


STATUS_OF: Mapping[StopReason, Status] = {
    StopReason.ENV_DONE: Status.COMPLETED,
    StopReason.ENV_TRUNCATED: Status.TRUNCATED,
    StopReason.MAX_TURNS: Status.TRUNCATED,
    StopReason.TURN_LENGTH: Status.TRUNCATED,
    StopReason.RESPONSE_LENGTH: Status.TRUNCATED,
    StopReason.CONTEXT_OVERFLOW: Status.TRUNCATED,
    StopReason.DEADLINE: Status.TRUNCATED,
    StopReason.AGENT_ERROR: Status.AGENT_ERROR,
    StopReason.INFRA: Status.INFRA_FAILED,
}
"""The whole table of episode ends: a stop reason has exactly one status."""


class Purpose(StrEnum):
    """What a group is for."""

    TRAIN = "train"
    EVAL = "eval"
    CANDIDATE = "candidate"
    """Tries out an evolved task; trained on only once the task is accepted."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn.

    `messages` are the new messages it answered, `span` the half-open range of its sampled tokens inside stream number
    `stream`, `latency` the seconds from request to completion. `executed_calls` and `successful_calls` count tool
    calls that the environment really ran, and those that did not fail.
    """

    messages: tuple[Message, ...]
    action: Action
    env_reward: float = 0.0
    anchor: str | None = None
    stream: int = 0
    span: tuple[int, int] = (0, 0)
    executed_calls: int = 0
    successful_calls: int = 0
    latency: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenStream:
    """The tokens of one uninterrupted context. All arrays have the same length T.

    ids: int64[T]. loss_mask: bool[T], True where the policy sampled the token. logprobs: float32[T], natural log under
    the sampling temperature, 0 where the mask is False. turn_ids: int64[T], the turn each token belongs to.
    policy_versions: int64[T], the weights that sampled it (-1 where nothing was sampled). `trainable` is False when
    the server gave no token ids: such a stream can be scored and read, never trained on.
    """

    ids: IntArray
    loss_mask: BoolArray
    logprobs: FloatArray
    turn_ids: IntArray
    policy_versions: IntArray
    media: tuple[ImagePart, ...] = ()
    trainable: bool = True

    def __post_init__(self) -> None:
        lengths = {len(a) for a in (self.ids, self.loss_mask, self.logprobs, self.turn_ids, self.policy_versions)}
        if len(lengths) != 1:
            raise ValueError(f"arrays of a token stream differ in length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def positions(self) -> IntArray:
        """Positions of the trained tokens, ascending: int64[n_trained]."""
        return np.flatnonzero(self.loss_mask)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode, from the first message to the end.

    `outcome` is what a stateful environment recorded at its end (in [0, 1]), `closing` the messages that came after the
    last action, `counts` whatever was counted on the way (everything dropped or cut has a count), `level` what the
    engine could say about tokens.
    """

    id: str
    task: Task | None
    group_id: str
    turns: tuple[Turn, ...] = ()
    streams: tuple[TokenStream, ...] = ()
    outcome: float | None = None
    stop_reason: StopReason = StopReason.ENV_DONE
    failure: Failure | None = None
    counts: Mapping[str, float] = field(default_factory=dict)
    closing: tuple[Message, ...] = ()
    level: str = "tokens"

    @property
    def status(self) -> Status:
        return STATUS_OF[self.stop_reason]

    @property
    def infra_failed(self) -> bool:
        return self.status is Status.INFRA_FAILED

    @property
    def final_text(self) -> str:
        """The visible text of the last assistant turn ('' when there was none)."""
        return self.turns[-1].action.text if self.turns else ""

    @property
    def executed_calls(self) -> int:
        return sum(turn.executed_calls for turn in self.turns)

    @property
    def trained_tokens(self) -> int:
        """Tokens the policy sampled, over all streams."""
        return sum(int(stream.loss_mask.sum()) for stream in self.streams)

    def response_tokens(self, *, observations: bool) -> int:
        """Length of the response: sampled tokens, and with `observations` also what the environment said in between.

        The prompt of a stream (everything before its first sampled token) is not part of the response, except for
        observation tokens that only open a later stream; those are re-renderings and are not counted twice.
        """
        total = 0
        for stream in self.streams:
            positions = stream.positions
            if len(positions):
                total += int(positions[-1] - positions[0]) + 1 if observations else len(positions)
        return total

    def messages(self) -> tuple[Message, ...]:
        """The conversation in order, assistant turns included."""
        out: list[Message] = []
        for turn in self.turns:
            out.extend(turn.messages)
            out.append(turn.action.message())
        return (*out, *self.closing)


@dataclass(frozen=True, slots=True)
class Group:
    """Trajectories that answer the same task (or, from a gateway, belong together without one)."""

    id: str
    task: Task | None
    trajectories: tuple[Trajectory, ...]
    source: str = "rollout"
    purpose: Purpose = Purpose.TRAIN


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with exactly one score per trajectory, in the same order."""

    group: Group
    scores: tuple[Score, ...]

    def __post_init__(self) -> None:
        if len(self.scores) != len(self.group.trajectories):
            raise ValueError(f"{len(self.scores)} scores for {len(self.group.trajectories)} trajectories")

    def counted(self) -> list[tuple[int, Trajectory, float]]:
        """(index, trajectory, value) of those that count: not infra-failed, and scored."""
        pairs = zip(self.group.trajectories, self.scores, strict=True)
        return [(i, t, s.value) for i, (t, s) in enumerate(pairs) if not t.infra_failed and s.value is not None]

    def values(self) -> npt.NDArray[np.float64]:
        """The counted values: float64[n_counted]."""
        return np.array([value for _, _, value in self.counted()], dtype=np.float64)


def stream_of(
    turns: Sequence[tuple[Sequence[int], Sequence[int], Sequence[float]]], *, version: int = 0, **kwargs: Any
) -> TokenStream:
    """Build one stream from (new prompt ids, sampled ids, log-probs) per turn. Meant for sources and tests.

    >>> stream = stream_of([([1, 2], [3], [-0.5]), ([4], [5, 6], [-0.1, -0.2])])
    >>> stream.ids.tolist(), stream.loss_mask.astype(int).tolist()
    ([1, 2, 3, 4, 5, 6], [0, 0, 1, 0, 1, 1])
    """
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    turn_ids: list[int] = []
    for number, (prompt, sampled, logp) in enumerate(turns):
        ids += [*prompt, *sampled]
        mask += [False] * len(prompt) + [True] * len(sampled)
        logprobs += [0.0] * len(prompt) + list(logp)
        turn_ids += [number] * (len(prompt) + len(sampled))
    loss_mask = np.array(mask, dtype=np.bool_)
    return TokenStream(
        ids=np.array(ids, dtype=np.int64),
        loss_mask=loss_mask,
        logprobs=np.array(logprobs, dtype=np.float32),
        turn_ids=np.array(turn_ids, dtype=np.int64),
        policy_versions=np.where(loss_mask, version, -1).astype(np.int64),
        **kwargs,
    )
