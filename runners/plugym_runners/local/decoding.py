"""The token loop: prefill a batch, sample, feed back, let finished rows go. Knows nothing of event loops or requests.

Everything here runs in one thread. Rows are told apart by their position in the batch only; padding is hidden by row
lengths, never by a token id, so any id of the vocabulary may be sampled.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugym.engine import ChatTokenizer, Finish, Sampling
from plugym.trajectory import IntArray
from plugym_runners.local.kv_cache import GROWTH, CacheShape, RowCache, SessionCache
from plugym_runners.local.sampling import Sampler, temperatures

PREFILL_TOKENS = 8192
"""Padded tokens per forward pass while prompts are read: bounds the memory of activations."""
PADDING = 64
"""Padded tokens that are cheaper than one more forward pass."""


@dataclass(slots=True, eq=False)
class Row:
    """One completion in the making: `budget` tokens at most. `abandoned` may be set by any thread at any time."""

    prompt: IntArray
    sampling: Sampling
    seed: int
    session: str
    budget: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish = "length"
    abandoned: bool = False


class Decoder:
    """Runs one model. `cache` keeps keys and values of sessions between their turns; `counts` adds up tokens:
    prompt, cached (not read again), shared (equal prompts), prefilled, sampled."""

    def __init__(self, model: Any, tokenizer: ChatTokenizer, shape: CacheShape, cache: SessionCache) -> None:
        self.cache = cache
        self.counts: Counter[str] = Counter()
        self._model = model
        self._tokenizer = tokenizer
        self._shape = shape
        self._eos = frozenset(tokenizer.eos_ids)
        # The argument was called `past_key_values` before transformers 5.20.
        named = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in named else "past_key_values"

    def run(self, rows: Sequence[Row], done: Callable[[Row], None]) -> None:
        """Complete all rows; `done` is called for each as soon as it has finished (not for abandoned ones)."""
        live = [row for row in rows if row.budget > 0]
        for row in rows:
            if row.budget <= 0:
                done(row)
        if not live:
            return
        with inference(self._model):
            pasts = [self.cache.take(row.session, row.prompt) for row in live]
            room = max(row.budget for row in live)
            cache, logits, order = self._prefill([row.prompt for row in live], pasts, room)
            live = [live[i] for i in order]
            self._decode(live, cache, logits, room, done)

    def _decode(self, live: list[Row], cache: RowCache, logits: Tensor, room: int, done: Callable[[Row], None]) -> None:
        device = self._shape.device
        sampler = Sampler([row.sampling for row in live], [row.seed for row in live], room, device)
        positions = torch.tensor([[len(row.prompt)] for row in live], device=device)
        for step in count():
            tokens, logprobs = sampler.draw(logits, step)
            ended = self._record(live, tokens.tolist(), logprobs.tolist())
            if ended:
                for i in ended:
                    self._release(live[i], cache, i, done)
                order = close_ranks(len(live), ended)
                if not order:
                    return
                live = [live[i] for i in order]
                cache.keep(order)
                sampler.keep(order)
                tokens, positions = tokens[order], positions[order]
            cache.open_columns(cache.end, cache.end + 1)
            logits = self._forward(tokens[:, None], positions, cache.decode_mask(), cache)[:, -1]
            positions += 1

    def _record(self, live: Sequence[Row], tokens: list[int], logprobs: list[float]) -> set[int]:
        """File one sampled token per row and return the rows that end here."""
        ended = set()
        for i, (row, token, logprob) in enumerate(zip(live, tokens, logprobs, strict=True)):
            if row.abandoned:
                ended.add(i)
                continue
            row.tokens.append(token)
            row.logprobs.append(logprob)
            if token in self._eos or (row.sampling.stop and self._hits_stop(row)):
                row.finish = "stop"
                ended.add(i)
            elif len(row.tokens) == row.budget:
                ended.add(i)
        return ended

    def _hits_stop(self, row: Row) -> bool:
        """Whether the newest token completed a stop string. Only the tail is decoded: a token is a byte or more."""
        longest = max(len(stop.encode()) for stop in row.sampling.stop)
        tail = self._tokenizer.decode(row.tokens[-(longest + 4) :])
        return any(stop in tail for stop in row.sampling.stop)

    def _release(self, row: Row, cache: RowCache, i: int, done: Callable[[Row], None]) -> None:
        if row.abandoned:
            return
        self.counts["sampled"] += len(row.tokens)
        if row.session:
            # The last token was never fed to the model, so it has no keys and values.
            ids = np.concatenate([row.prompt, np.array(row.tokens[:-1], dtype=np.int64)])
            self.cache.put(row.session, ids, cache.save(i))
        done(row)

    def score(
        self, prompts: Sequence[IntArray], answers: Sequence[IntArray], settings: Sequence[Sampling]
    ) -> list[float]:
        """Summed log-prob of answers[i] after prompts[i], at the temperature of settings[i]. Equal prompts are read
        once, all answers in one forward pass."""
        with inference(self._model):
            longest = max(len(answer) for answer in answers)
            cache, logits, order = self._prefill(prompts, [None] * len(prompts), longest)
            rows = torch.zeros((len(order), longest), dtype=torch.int64)
            for row, i in zip(rows, order, strict=True):
                row[: len(answers[i])] = torch.from_numpy(answers[i])
            rows = rows.to(self._shape.device)
            lengths = torch.tensor([[len(answers[i])] for i in order], device=self._shape.device)
            steps = torch.arange(longest, device=self._shape.device)
            all_logits = logits[:, None]
            if longest > 1:
                first = cache.end
                cache.open_columns(first, first + longest - 1, rows=len(order))
                mask = cache.prefill_mask(torch.ones_like(rows[:, 1:], dtype=torch.bool))
                starts = torch.tensor([[len(prompts[i])] for i in order], device=self._shape.device)
                rest = self._forward(rows[:, :-1], starts + steps[:-1], mask, cache, keep=longest - 1)
                all_logits = torch.cat([all_logits, rest], dim=1)
            scale = temperatures([settings[i] for i in order], self._shape.device)
            logp = torch.log_softmax(all_logits.float() / scale[:, None], dim=-1)
            picked = logp.gather(2, rows[:, :, None])[:, :, 0]
            sums = picked.masked_fill(steps >= lengths, 0.0).sum(dim=1).tolist()
        scores = [0.0] * len(order)
        for i, value in zip(order, sums, strict=True):
            scores[i] = value
        return scores

    def _prefill(
        self, prompts: Sequence[IntArray], pasts: Sequence[Tensor | None], room: int
    ) -> tuple[RowCache, Tensor, list[int]]:
        """Read the prompts, as far as `pasts` does not hold them. Returns the cache, the logits after each prompt and
        the order of the rows in both. Equal prompts without a past are read once and copied."""
        leaders, followers, new = arrange(prompts, pasts)
        order = leaders + [row for row, _ in followers]
        width = max(len(prompt) for prompt in prompts)
        cache = RowCache(self._shape, [width - len(prompts[row]) for row in order], width + min(room, GROWTH))
        for slot, row in enumerate(leaders):
            past = pasts[row]
            if past is not None:
                cache.load(slot, past)
        longest = new[0]
        ids = np.zeros((len(leaders), longest), dtype=np.int64)
        for slot, row in enumerate(leaders):
            ids[slot, longest - new[slot] :] = prompts[row][-new[slot] :]
        columns = np.arange(width - longest, width)
        positions = np.maximum(columns - np.array(cache.starts[: len(leaders)])[:, None], 0)
        written = np.arange(longest) >= longest - np.array(new)[:, None]
        inputs = [torch.from_numpy(array).to(self._shape.device) for array in (ids, positions, written)]
        for first, last, rows in segments(new):
            part_ids, part_positions, part_written = (tensor[:rows, first:last] for tensor in inputs)
            offset = width - longest
            cache.open_columns(offset + first, offset + last, rows=rows, written=part_written)
            logits = self._forward(part_ids, part_positions, cache.prefill_mask(part_written), cache)
        logits = logits[:, -1]
        self._count(prompts, [prompts[row] for row, _ in followers], new, int(written.sum()))
        if followers:
            sources = [slot for _, slot in followers]
            cache.repeat(sources, len(leaders))
            logits = torch.cat([logits, logits[sources]])
        cache.keep(range(len(order)))
        return cache, logits, order

    def _count(
        self, prompts: Sequence[IntArray], repeated: Sequence[IntArray], new: Sequence[int], prefilled: int
    ) -> None:
        total, shared = sum(map(len, prompts)), sum(map(len, repeated))
        self.counts["prompt"] += total
        self.counts["shared"] += shared
        self.counts["prefilled"] += prefilled
        self.counts["cached"] += total - shared - prefilled

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: RowCache, *, keep: int = 1) -> Tensor:
        """Logits of the last `keep` positions: [rows, keep, vocabulary]."""
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_argument: cache},
        )
        logits: Tensor = output.logits
        return logits


def arrange(
    prompts: Sequence[IntArray], pasts: Sequence[Tensor | None]
) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    """Which rows are read (`leaders`, most new tokens first), which are copies (`followers`: row, place of its
    leader), and how many new tokens each leader has."""
    first: dict[bytes, int] = {}
    repeats: list[tuple[int, int]] = []
    news: dict[int, int] = {}
    for row, (prompt, past) in enumerate(zip(prompts, pasts, strict=True)):
        leader = first.setdefault(prompt.tobytes(), row) if past is None else row
        if leader == row:
            news[row] = len(prompt) - (0 if past is None else past.shape[3])
        else:
            repeats.append((row, leader))
    leaders = sorted(news, key=lambda row: -news[row])
    place = {row: slot for slot, row in enumerate(leaders)}
    return leaders, [(row, place[leader]) for row, leader in repeats], [news[row] for row in leaders]


def segments(new: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Cut a right-aligned block of rows with `new` tokens each (descending) into forward passes: (first column, last
    column, rows). A pass holds only rows that have a token in it, few padded tokens, and a bounded number in all.

    >>> list(segments([1000, 20, 20]))
    [(0, 980, 1), (980, 1000, 3)]
    """
    joins = [new[0] - tokens for tokens in new]
    first = 0
    while first < new[0]:
        rows = bisect_right(joins, first)
        last, padding = new[0], 0
        for join in joins[rows:]:
            padding += join - first
            if padding > PADDING:
                last = join
                break
            rows += 1
        last = min(last, first + max(PREFILL_TOKENS // rows, 1))
        yield first, last, bisect_left(joins, last)
        first = last


def close_ranks(rows: int, ended: set[int]) -> list[int]:
    """Which row stands in each place once the ended ones have left: as few as possible move.

    >>> close_ranks(5, {1, 4})
    [0, 3, 2]
    """
    left = rows - len(ended)
    movers = [row for row in range(left, rows) if row not in ended]
    return [movers.pop() if row in ended else row for row in range(left)]


@contextmanager
def inference(model: Any) -> Iterator[None]:
    """No gradients and no dropout inside; afterwards every module is in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
