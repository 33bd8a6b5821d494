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
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plugym.engine import ChatTokenizer
from plugym.trajectory import IntArray
from plugym_runners.local.kv_cache import GROWTH, CacheShape, RowCache, SessionCache
from plugym_runners.local.rows import Answers, Row
from plugym_runners.local.sampling import Sampler, temperatures

PREFILL_TOKENS = 8192
"""Padded tokens per forward pass while prompts are read: bounds the memory of activations."""
PADDING = 64
"""Padded tokens that are cheaper than one more forward pass."""


class Decoder:
    """Runs one model at a time. `cache` keeps keys and values of sessions between their turns. `counts` adds up tokens:
    of prompts, cached by a session, prefilled (the rest was shared within a batch), and sampled."""

    def __init__(self, model: Any, shape: CacheShape, tokenizer: ChatTokenizer, cache: SessionCache) -> None:
        self.cache = cache
        self.counts: Counter[str] = Counter()
        self._tokenizer = tokenizer
        self._eos = frozenset(tokenizer.eos_ids)
        self.use(model, shape)

    def use(self, model: Any, shape: CacheShape) -> None:
        """Decode with this model from now on. What is cached belongs to the old one: the caller clears it."""
        self._model = model
        self._shape = shape
        self.vocabulary = model.get_input_embeddings().weight.shape[0]
        # Older transformers call the argument `past_key_values`, newer ones warn when it is used.
        named = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in named else "past_key_values"

    def run(self, rows: Sequence[Row], done: Callable[[Row], None]) -> None:
        """Complete all rows; `done` is called for each as soon as it has finished (not for abandoned ones)."""
        live = [row for row in rows if row.budget > 0 and not row.abandoned]
        for row in rows:
            if row.budget <= 0:
                done(row)
        if not live:
            return
        with inference(self._model):
            pasts = [self.cache.take(row.session, row.prompt) for row in live]
            self.counts["prompt"] += sum(len(row.prompt) for row in live)
            self.counts["cached"] += sum(0 if past is None else past.shape[3] for past in pasts)
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
                for i in sorted(ended):
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
            if logprob != logprob:
                raise FloatingPointError("the model's logits are not finite")
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

    def score(self, requests: Sequence[Answers]) -> list[tuple[float, ...]]:
        """Summed log-prob of each answer after its prompt, at the request's temperature. Equal prompts are read once,
        then all answers in one forward pass."""
        pairs = [(request, answer) for request in requests for answer in request.answers]
        longest = max(len(answer) for _, answer in pairs)
        device = self._shape.device
        with inference(self._model):
            prompts = [request.prompt for request, _ in pairs]
            self.counts["prompt"] += sum(map(len, prompts))
            cache, logits, order = self._prefill(prompts, [None] * len(prompts), longest)
            pairs = [pairs[i] for i in order]
            ids = torch.zeros((len(pairs), longest), dtype=torch.int64)
            for row, (_, answer) in zip(ids, pairs, strict=True):
                row[: len(answer)] = torch.from_numpy(answer)
            ids, steps = ids.to(device), torch.arange(longest, device=device)
            all_logits = logits[:, None]
            if longest > 1:
                first = cache.end
                cache.open_columns(first, first + longest - 1)
                mask = cache.prefill_mask(torch.ones_like(ids[:, 1:], dtype=torch.bool))
                starts = torch.tensor([[len(request.prompt)] for request, _ in pairs], device=device)
                rest = self._forward(ids[:, :-1], starts + steps[:-1], mask, cache, keep=longest - 1)
                all_logits = torch.cat([all_logits, rest], dim=1)
            scale = temperatures([request.sampling for request, _ in pairs], device)
            logp = torch.log_softmax(all_logits.float() / scale[:, None], dim=-1)
            lengths = torch.tensor([[len(answer)] for _, answer in pairs], device=device)
            picked = logp.gather(2, ids[:, :, None])[:, :, 0].masked_fill(steps >= lengths, 0.0)
            sums = dict(zip(order, picked.sum(dim=1).tolist(), strict=True))
        values = iter(sums[i] for i in range(len(pairs)))
        return [tuple(next(values) for _ in request.answers) for request in requests]

    def _prefill(
        self, prompts: Sequence[IntArray], pasts: Sequence[Tensor | None], room: int
    ) -> tuple[RowCache, Tensor, list[int]]:
        """Read the prompts, as far as `pasts` does not hold them. Returns the cache, the logits after each prompt and
        the order of the rows in both. Equal prompts are read once and copied, and so is what all of them begin with."""
        pasts = self._share_beginning(prompts, pasts)
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
        self.counts["prefilled"] += int(written.sum())
        if followers:
            sources = [slot for _, slot in followers]
            cache.repeat(sources, len(leaders))
            logits = torch.cat([logits, logits[sources]])
        cache.keep(range(len(order)))
        return cache, logits, order

    def _share_beginning(self, prompts: Sequence[IntArray], pasts: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Where it pays, read the common beginning of all prompts without a past, and make it their past."""
        fresh = {prompt.tobytes(): prompt for prompt, past in zip(prompts, pasts, strict=True) if past is None}
        length = common_beginning(list(fresh.values()))
        if (len(fresh) - 1) * length <= PADDING:
            return pasts
        cache, _, _ = self._prefill([next(iter(fresh.values()))[:length]], [None], 0)
        beginning = cache.save(0)
        return [beginning if past is None else past for past in pasts]

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
    leader), and how many new tokens each leader has. Copies have the same prompt and the very same past."""
    first: dict[tuple[bytes, int], int] = {}
    repeats: list[tuple[int, int]] = []
    news: dict[int, int] = {}
    for row, (prompt, past) in enumerate(zip(prompts, pasts, strict=True)):
        leader = first.setdefault((prompt.tobytes(), id(past)), row)
        if leader == row:
            news[row] = len(prompt) - (0 if past is None else past.shape[3])
        else:
            repeats.append((row, leader))
    leaders = sorted(news, key=lambda row: -news[row])
    place = {row: slot for slot, row in enumerate(leaders)}
    return leaders, [(row, place[leader]) for row, leader in repeats], [news[row] for row in leaders]


def common_beginning(prompts: Sequence[IntArray]) -> int:
    """Tokens that all prompts begin with, leaving at least one to each."""
    if not prompts:
        return 0
    shortest = min(map(len, prompts)) - 1
    same = np.all([prompt[:shortest] == prompts[0][:shortest] for prompt in prompts], axis=0)
    return shortest if same.all() else int(same.argmin())


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
    """No gradients and no dropout inside; afterwards the model and the mode of every module are what they were."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    head = model.get_output_embeddings()
    turned = type(head) is nn.Linear and head.bias is None and _wide(head.weight)
    if turned:
        head.forward = partial(project, head.weight)
    try:
        with torch.no_grad():
            yield
    finally:
        if turned:
            del head.forward
        for module in training:
            module.training = True


def project(weight: Tensor, hidden: Tensor) -> Tensor:
    """hidden @ weight.T for few hidden states [rows, n, size] and a large weight [vocabulary, size].

    Written with the weight on the left, because BLAS repacks its right operand at each call: with 32 rows and a
    vocabulary of 49152 that costs more than the product itself.
    """
    flat = weight @ hidden.flatten(0, 1).T
    return flat.T.unflatten(0, hidden.shape[:2])


def _wide(weight: Tensor) -> bool:
    """Where `project` was measured to be faster."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.shape[0] >= 8 * weight.shape[1]
