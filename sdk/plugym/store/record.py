"""The written form of an episode: pydantic twins of `Trajectory`, `Score` and `ScoredGroup`, schema 1.

Twins live here and nowhere else; how they are put into files is `groups.py`. A round trip is exact: token arrays
keep values and dtypes, images their bytes, and text may hold anything a Python string holds, lone surrogates from a
model's JSON included. What has no JSON form (an object in `Task.data`) is refused by name, never written as something
else. Images are stored once per trajectory under their SHA-256: a history window repeats them in many streams.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from plugym.errors import Failure, InfraKind
from plugym.message import Action, ImagePart, Message, Role, TextPart, ToolCall
from plugym.reward import Score
from plugym.store.fields import Floats, Json, Numbers, Runs, Text, from_runs
from plugym.task import Check, Task
from plugym.trajectory import Group, Purpose, ScoredGroup, StopReason, TokenStream, Trajectory, Turn


class Record(BaseModel):
    """Base of every record. A twin reads its dataclass by attribute."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)


class ImageRecord(Record):
    """An encoded image; `data` is base64."""

    media_type: Text
    data: Text

    def to_part(self) -> ImagePart:
        return ImagePart(base64.b64decode(self.data, validate=True), self.media_type)


def _intern(value: Any, info: ValidationInfo) -> Any:
    """Replace an image by its SHA-256 and put it into the trajectory's table (the validation context)."""
    if not isinstance(value, ImagePart):
        return value
    image = ImageRecord(media_type=value.media_type, data=base64.b64encode(value.data).decode())
    digest = hashlib.sha256(f"{image.media_type}\0{image.data}".encode(errors="surrogatepass")).hexdigest()
    assert info.context is not None
    info.context[digest] = image
    return digest


ImageRef = Annotated[str, BeforeValidator(_intern)]


class TextPartRecord(Record):
    """Text inside a message that also holds images."""

    text: Text


class ImagePartRecord(Record):
    """An image inside a message, by its key in `TrajectoryRecord.images`."""

    image: ImageRef


def _image_part(value: Any) -> Any:
    return {"image": value} if isinstance(value, ImagePart) else value


PartRecord = Annotated[TextPartRecord | ImagePartRecord, BeforeValidator(_image_part)]
Images = Mapping[str, ImagePart]


class ToolCallRecord(Record):
    """Twin of `ToolCall`."""

    id: Text
    name: Text
    arguments: Json
    error: Text | None
    raw: Text

    def to_call(self) -> ToolCall:
        return ToolCall(self.id, self.name, self.arguments, self.error, self.raw)


class MessageRecord(Record):
    """Twin of `Message`."""

    role: Role
    content: Text | list[PartRecord]
    reasoning: Text
    tool_calls: list[ToolCallRecord]
    tool_call_id: Text | None

    def to_message(self, images: Images) -> Message:
        calls = tuple(call.to_call() for call in self.tool_calls)
        return Message(self.role, self._content(images), self.reasoning, calls, self.tool_call_id)

    def _content(self, images: Images) -> str | tuple[TextPart | ImagePart, ...]:
        if isinstance(self.content, str):
            return self.content
        return tuple(TextPart(p.text) if isinstance(p, TextPartRecord) else images[p.image] for p in self.content)


class ActionRecord(Record):
    """Twin of `Action`."""

    text: Text
    reasoning: Text
    tool_calls: list[ToolCallRecord]
    raw: Text

    def to_action(self) -> Action:
        return Action(self.text, self.reasoning, tuple(call.to_call() for call in self.tool_calls), self.raw)


class TurnRecord(Record):
    """Twin of `Turn`."""

    messages: list[MessageRecord]
    action: ActionRecord
    env_reward: float
    anchor: Text | None
    stream: int
    span: tuple[int, int]
    executed_calls: int
    successful_calls: int
    latency: float

    def to_turn(self, images: Images) -> Turn:
        return Turn(
            messages=tuple(message.to_message(images) for message in self.messages),
            action=self.action.to_action(),
            env_reward=self.env_reward,
            anchor=self.anchor,
            stream=self.stream,
            span=self.span,
            executed_calls=self.executed_calls,
            successful_calls=self.successful_calls,
            latency=self.latency,
        )


class StreamRecord(Record):
    """Twin of `TokenStream`; the three arrays that change only at the edges of turns are runs."""

    ids: Numbers
    loss_mask: Runs
    logprobs: Floats
    turn_ids: Runs
    policy_versions: Runs
    media: list[ImageRef]
    trainable: bool

    def to_stream(self, images: Images) -> TokenStream:
        return TokenStream(
            ids=np.array(self.ids, dtype=np.int64),
            loss_mask=from_runs(self.loss_mask, len(self.ids)).astype(np.bool_),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            turn_ids=from_runs(self.turn_ids, len(self.ids)),
            policy_versions=from_runs(self.policy_versions, len(self.ids)),
            media=tuple(images[key] for key in self.media),
            trainable=self.trainable,
        )


class CheckRecord(Record):
    """Twin of `Check`."""

    name: Text
    args: Json


class TaskRecord(Record):
    """Twin of `Task`."""

    id: Text
    env: Text
    split: Text
    instruction: Text
    data: Json
    answer: Text | None
    check: CheckRecord | None
    difficulty: float | None
    parent: Text | None
    revision: int

    @classmethod
    def from_task(cls, task: Task) -> TaskRecord:
        """Raises `TypeError` when `data` or the check's `args` hold something without a JSON form."""
        try:
            return cls.model_validate(task)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(str(part) for part in problem["loc"])
            raise TypeError(f"task {task.id!r} cannot be stored: {where}: {problem['msg']}") from error

    def to_task(self) -> Task:
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        fields["check"] = Check(self.check.name, self.check.args) if self.check else None
        return Task(**fields)


class FailureRecord(Record):
    """Twin of `Failure`."""

    kind: InfraKind
    message: Text
    where: Text
    retryable: bool

    def to_failure(self) -> Failure:
        return Failure(self.kind, self.message, self.where, self.retryable)


class TrajectoryRecord(Record):
    """Twin of `Trajectory`.

    >>> record = TrajectoryRecord.from_trajectory(Trajectory("t", Task("math/1"), "g"))
    >>> record.to_trajectory() == Trajectory("t", Task("math/1"), "g")
    True
    """

    schema_: Literal[1] = Field(1, alias="schema")
    id: Text
    task: TaskRecord | None
    group_id: Text
    turns: list[TurnRecord]
    streams: list[StreamRecord]
    outcome: float | None
    stop_reason: StopReason
    failure: FailureRecord | None
    counts: dict[Text, float]
    closing: list[MessageRecord]
    level: Text
    images: dict[str, ImageRecord]

    @classmethod
    def from_trajectory(cls, trajectory: Trajectory) -> TrajectoryRecord:
        """Raises `TypeError` when the task holds something without a JSON form."""
        images: dict[str, ImageRecord] = {}
        return cls(
            id=trajectory.id,
            task=None if trajectory.task is None else TaskRecord.from_task(trajectory.task),
            group_id=trajectory.group_id,
            turns=[TurnRecord.model_validate(turn, context=images) for turn in trajectory.turns],
            streams=[StreamRecord.model_validate(stream, context=images) for stream in trajectory.streams],
            outcome=trajectory.outcome,
            stop_reason=trajectory.stop_reason,
            failure=None if trajectory.failure is None else FailureRecord.model_validate(trajectory.failure),
            counts=dict(trajectory.counts),
            closing=[MessageRecord.model_validate(message, context=images) for message in trajectory.closing],
            level=trajectory.level,
            images=images,
        )

    def to_trajectory(self) -> Trajectory:
        images = {key: image.to_part() for key, image in self.images.items()}
        return Trajectory(
            id=self.id,
            task=self.task.to_task() if self.task else None,
            group_id=self.group_id,
            turns=tuple(turn.to_turn(images) for turn in self.turns),
            streams=tuple(stream.to_stream(images) for stream in self.streams),
            outcome=self.outcome,
            stop_reason=self.stop_reason,
            failure=self.failure.to_failure() if self.failure else None,
            counts=self.counts,
            closing=tuple(message.to_message(images) for message in self.closing),
            level=self.level,
        )


class ScoreRecord(Record):
    """Twin of `Score`, with the scores of a composite's children and the judge's own episodes inside."""

    value: float | None
    correct: bool | None
    parts: dict[Text, float]
    sources: dict[Text, ScoreRecord]
    steps: list[float] | None
    votes: list[list[float | None]] | None
    evidence: list[TrajectoryRecord]
    why: Text
    answer: Text | None = None  # newer than the first files of schema 1

    @classmethod
    def from_score(cls, score: Score) -> ScoreRecord:
        return cls(
            value=score.value,
            correct=score.correct,
            parts=dict(score.parts),
            sources={label: cls.from_score(child) for label, child in score.sources.items()},
            steps=None if score.steps is None else list(score.steps),
            votes=None if score.votes is None else [list(votes) for votes in score.votes],
            evidence=[TrajectoryRecord.from_trajectory(trajectory) for trajectory in score.evidence],
            why=score.why,
            answer=score.answer,
        )

    def to_score(self) -> Score:
        return Score(
            value=self.value,
            correct=self.correct,
            parts=self.parts,
            sources={label: child.to_score() for label, child in self.sources.items()},
            steps=None if self.steps is None else tuple(self.steps),
            votes=None if self.votes is None else tuple(tuple(votes) for votes in self.votes),
            evidence=tuple(record.to_trajectory() for record in self.evidence),
            why=self.why,
            answer=self.answer,
        )


class GroupRecord(Record):
    """Twin of `ScoredGroup`: one line of a trajectory file."""

    schema_: Literal[1] = Field(1, alias="schema")
    id: Text
    task: TaskRecord | None
    source: Text
    purpose: Purpose
    trajectories: list[TrajectoryRecord]
    scores: list[ScoreRecord]

    @classmethod
    def from_group(cls, scored: ScoredGroup) -> GroupRecord:
        """Raises `TypeError` when a task holds something without a JSON form."""
        group = scored.group
        return cls(
            id=group.id,
            task=None if group.task is None else TaskRecord.from_task(group.task),
            source=group.source,
            purpose=group.purpose,
            trajectories=[TrajectoryRecord.from_trajectory(trajectory) for trajectory in group.trajectories],
            scores=[ScoreRecord.from_score(score) for score in scored.scores],
        )

    def to_group(self) -> ScoredGroup:
        group = Group(
            id=self.id,
            task=self.task.to_task() if self.task else None,
            trajectories=tuple(record.to_trajectory() for record in self.trajectories),
            source=self.source,
            purpose=self.purpose,
        )
        return ScoredGroup(group, tuple(record.to_score() for record in self.scores))
