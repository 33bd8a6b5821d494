"""The tokens of one episode: which were shown, which were sampled, and in which uninterrupted context.

`Ledger.prompt` gives the ids to generate from; `Ledger.record` files what was sampled. Ids come from the engine that
sampled them and are never re-tokenised. A prompt that does not extend the tokens so far opens a new stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from plugym.engine import ChatTokenizer, Completion
from plugym.message import ImagePart, Message, ToolSpec
from plugym.rollout.chat import continuation
from plugym.trajectory import IntArray, TokenStream

History = Literal["append", "template"]


@dataclass(slots=True)
class _Open:
    """A stream that still grows."""

    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    media: list[ImagePart] = field(default_factory=list)
    trainable: bool = True

    def add(self, ids: Sequence[int], turn: int) -> None:
        """Tokens the policy was shown."""
        self.ids.extend(ids)
        self.mask.extend([False] * len(ids))
        self.logprobs.extend([0.0] * len(ids))
        self.turn_ids.extend([turn] * len(ids))
        self.versions.extend([-1] * len(ids))

    def freeze(self) -> TokenStream:
        return TokenStream(
            ids=np.array(self.ids, dtype=np.int64),
            loss_mask=np.array(self.mask, dtype=np.bool_),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            turn_ids=np.array(self.turn_ids, dtype=np.int64),
            policy_versions=np.array(self.versions, dtype=np.int64),
            media=tuple(self.media),
            trainable=self.trainable,
        )


class Ledger:
    """Token bookkeeping of one episode.

    `history` is `append` (only new messages are rendered, one stream as long as nothing replaces the prompt) or
    `template` (the whole conversation is re-rendered every turn, a new stream at each break).
    """

    def __init__(self, tokenizer: ChatTokenizer | None, tools: Sequence[ToolSpec], history: History) -> None:
        self.tokenizer = tokenizer
        self.tools = tuple(tools)
        self.history = history
        self.breaks = 0
        self.drift_tokens = 0
        self._streams: list[_Open] = []
        self._pending: IntArray | None = None
        self._new: Sequence[Message] = ()
        self._shown: Sequence[Message] = ()

    def prompt(
        self, new: Sequence[Message], conversation: Sequence[Message], context: Sequence[Message] | None
    ) -> IntArray | None:
        """Ids to generate the next turn from; None when the engine renders messages itself.

        `conversation` is everything so far, `new` included; `context` replaces it where the environment says so.
        """
        self._new, self._shown = new, tuple(conversation if context is None else context)
        if self.tokenizer is None:
            return None
        current = self._streams[-1].ids if self._streams else []
        if context is None and current and self.history == "append":
            tail = continuation(self.tokenizer, new, self.tools)
            if tail is not None:
                ids = self.tokenizer.encode(tail)
                # The closing marker was sampled already, unless the turn was cut.
                if ids and ids[0] == current[-1] and current[-1] in self.tokenizer.eos_ids:
                    ids = ids[1:]
                self._pending = np.array([*current, *ids], dtype=np.int64)
                return self._pending
        text = self.tokenizer.render(self._shown, self.tools, generation_prompt=True)
        self._pending = np.array(self.tokenizer.encode(text), dtype=np.int64)
        return self._pending

    @property
    def media(self) -> tuple[ImagePart, ...]:
        """The images in the messages that the next turn is generated from, in order."""
        return _images(self._shown)

    def record(self, completion: Completion, turn: int) -> tuple[int, tuple[int, int]]:
        """File a completion; returns (stream number, span of its sampled tokens)."""
        prompt = completion.prompt_ids if completion.prompt_ids is not None else self._pending
        if completion.token_ids is None or completion.logprobs is None or prompt is None:
            return self._record_text()
        stream = self._stream_for(prompt, turn)
        start = len(stream.ids)
        sampled = [int(i) for i in completion.token_ids]
        stream.ids.extend(sampled)
        stream.mask.extend([True] * len(sampled))
        stream.logprobs.extend(float(x) for x in completion.logprobs)
        stream.turn_ids.extend([turn] * len(sampled))
        stream.versions.extend([completion.policy_version] * len(sampled))
        self._count_drift(sampled)
        return len(self._streams) - 1, (start, len(stream.ids))

    def _record_text(self) -> tuple[int, tuple[int, int]]:
        if not self._streams or self._streams[-1].trainable:
            self._streams.append(_Open(trainable=False, media=list(_images(self._shown))))
        else:
            self._streams[-1].media.extend(_images(self._new))
        return len(self._streams) - 1, (0, 0)

    def _stream_for(self, prompt: IntArray, turn: int) -> _Open:
        """The current stream where the prompt extends it, else a new one."""
        if self._streams and self._streams[-1].trainable:
            current = self._streams[-1]
            if len(prompt) >= len(current.ids) and np.array_equal(prompt[: len(current.ids)], current.ids):
                current.add(prompt[len(current.ids) :].tolist(), turn)
                current.media.extend(_images(self._new))
                return current
            self.breaks += 1
        stream = _Open(media=list(_images(self._shown)))
        stream.add(prompt.tolist(), turn)
        self._streams.append(stream)
        return stream

    def _count_drift(self, sampled: list[int]) -> None:
        """How many sampled tokens would change if the text were tokenised again (they never are)."""
        if self.tokenizer is None:
            return
        again = self.tokenizer.encode(self.tokenizer.decode(sampled))
        if again != sampled:
            same = next((i for i, (a, b) in enumerate(zip(again, sampled, strict=False)) if a != b), len(again))
            self.drift_tokens += max(len(sampled) - same, 0)

    @property
    def stream_length(self) -> int:
        """Tokens in the current stream."""
        return len(self._streams[-1].ids) if self._streams else 0

    @property
    def response_tokens(self) -> int:
        """Generated plus observation tokens so far, over all streams (see `Trajectory.response_tokens`)."""
        total = 0
        for stream in self._streams:
            if True in stream.mask:
                total += len(stream.ids) - stream.mask.index(True)
        return total

    def streams(self) -> tuple[TokenStream, ...]:
        return tuple(stream.freeze() for stream in self._streams)


def _images(messages: Sequence[Message]) -> tuple[ImagePart, ...]:
    return tuple(image for message in messages for image in message.images)
