"""Log-probs and entropies of tokens from logits, without a second float32 copy of them.

Logits are the largest tensor of a training step: 32,768 tokens by 151,936 words in bfloat16 are 10 GB.
Plain autograd would keep a float32 softmax beside them, twice that. Here both directions go through
the vocabulary in chunks of tokens: only `chunk_tokens` rows exist in float32 at any time, and backward
recomputes the softmax of a chunk. The gradient itself has the size and dtype of the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

_CHUNK_ELEMENTS = {"cpu": 2**19}
"""Elements of a chunk by device, where the caller does not say. On a CPU a chunk should stay in the cache:
2 MiB is 2.3 times as fast as whole logits. On an accelerator (64 MiB) it should fill the device."""


def _chunks(logits: Tensor, temperature: float, chunk_tokens: int) -> Iterator[tuple[slice, Tensor]]:
    """`z / temperature` for a few rows at a time, in float32 or the logits' own dtype if that is wider."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    for start in range(0, logits.shape[0], chunk_tokens):
        rows = slice(start, start + chunk_tokens)
        chunk = logits[rows].to(dtype)
        yield rows, chunk if temperature == 1.0 else chunk / temperature


def _chunk_tokens(logits: Tensor, chunk_tokens: int | None) -> int:
    if chunk_tokens is None:
        chunk_tokens = max(1, _CHUNK_ELEMENTS.get(logits.device.type, 2**24) // max(logits.shape[1], 1))
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens={chunk_tokens} must be at least 1")
    return chunk_tokens


def _per_token(logits: Tensor) -> Tensor:
    return logits.new_empty(logits.shape[0], dtype=torch.promote_types(logits.dtype, torch.float32))


def _check(logits: Tensor, temperature: float) -> None:
    if logits.ndim != 2:
        raise ValueError(f"logits must be [tokens, vocabulary], got shape {tuple(logits.shape)}")
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} must be above 0; greedy choices have no log-probs")


class _TokenLogprobs(Function):
    """`d logp / d z_v = (1[v = id] - p_v) / temperature`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, temperature: float, chunk_tokens: int) -> Tensor:
        ctx.save_for_backward(logits, ids)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        result = _per_token(logits)
        for rows, scaled in _chunks(logits, temperature, chunk_tokens):
            result[rows] = torch.log_softmax(scaled, dim=-1).gather(1, ids[rows, None]).squeeze(1)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, ids = ctx.saved_tensors
        result = torch.empty_like(logits)
        for rows, scaled in _chunks(logits, ctx.temperature, ctx.chunk_tokens):
            factor = (grad[rows] / ctx.temperature)[:, None]
            chunk = torch.softmax(scaled, dim=-1).mul_(-factor)
            result[rows] = chunk.scatter_add_(1, ids[rows, None], factor)
        return result, None, None, None


class _Entropy(Function):
    """`d H / d z_v = -p_v (log p_v + H) / temperature`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: float, chunk_tokens: int) -> Tensor:
        result = _per_token(logits)
        for rows, scaled in _chunks(logits, temperature, chunk_tokens):
            # entr(p) = -p log p is 0 at p = 0, where p times the log-prob of a banned word would be nan.
            result[rows] = torch.special.entr(torch.softmax(scaled, dim=-1)).sum(dim=-1)
        ctx.save_for_backward(logits, result)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, entropy = ctx.saved_tensors
        result = torch.empty_like(logits)
        for rows, scaled in _chunks(logits, ctx.temperature, ctx.chunk_tokens):
            probs = torch.softmax(scaled, dim=-1)
            chunk = torch.special.entr(probs).sub_(probs.mul_(entropy[rows, None]))
            result[rows] = chunk.mul_((grad[rows] / ctx.temperature)[:, None])
        return result, None, None


# `Function.apply` has no type of its own.
_token_logprobs: Callable[[Tensor, Tensor, float, int], Tensor] = _TokenLogprobs.apply
_entropy: Callable[[Tensor, float, int], Tensor] = _Entropy.apply


def token_logprobs(logits: Tensor, ids: Tensor, temperature: float = 1.0, *, chunk_tokens: int | None = None) -> Tensor:
    """Log-probability of one token per row: `log softmax(z / temperature)[id]`.

    The policy's `log pi(y_t | ...)`, at the temperature it was sampled with. Computed in float32 for
    narrower logits; differentiable once. A banned token's logit may be -inf.

    Args:
        logits: float[T, V].
        ids: long[T], in [0, V).
        temperature: of sampling, above 0.
        chunk_tokens: rows held in float32 at a time; None for what suits the device.

    Returns:
        float32[T], or the dtype of the logits if that is wider.

    Raises:
        ValueError: shapes that do not fit, `temperature` not above 0, `chunk_tokens` below 1.

    >>> import torch
    >>> logits = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    >>> [round(logp, 4) for logp in token_logprobs(logits, torch.tensor([0, 1])).tolist()]
    [-0.6931, -2.1269]
    """
    _check(logits, temperature)
    if ids.shape != logits.shape[:1]:
        raise ValueError(f"ids have shape {tuple(ids.shape)}, logits {tuple(logits.shape)}; one id per row")
    return _token_logprobs(logits, ids, temperature, _chunk_tokens(logits, chunk_tokens))


def entropy_from_logits(logits: Tensor, temperature: float = 1.0, *, chunk_tokens: int | None = None) -> Tensor:
    """Entropy of each row's distribution: `H = -sum_v p_v log p_v`, `p = softmax(z / temperature)`.

    The exact entropy of the next token (Shannon), for the entropy bonus and the collapse metric. Computed
    in float32 for narrower logits; differentiable once. Words with logit -inf contribute 0.

    Args:
        logits: float[T, V].
        temperature: of sampling, above 0.
        chunk_tokens: rows held in float32 at a time; None for what suits the device.

    Returns:
        float32[T] in nats, or the dtype of the logits if that is wider.

    Raises:
        ValueError: logits not 2-D, `temperature` not above 0, `chunk_tokens` below 1.

    >>> import torch
    >>> [round(h, 4) for h in entropy_from_logits(torch.tensor([[0.0, 0.0], [50.0, 0.0]])).tolist()]
    [0.6931, 0.0]
    """
    _check(logits, temperature)
    return _entropy(logits, temperature, _chunk_tokens(logits, chunk_tokens))
