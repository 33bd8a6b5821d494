"""Log-probs and entropies in chunks: equal to plain autograd, and never a second copy of the logits."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from plugym.functional import entropy_from_logits, token_logprobs

TOKENS, WORDS = 11, 7


class LargestFloat32(TorchDispatchMode):
    """Remembers the size of the largest float32 tensor that any operation returned."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32:
                self.elements = max(self.elements, leaf.numel())
        return result


def _logits(dtype: torch.dtype = torch.float64, tokens: int = TOKENS) -> torch.Tensor:
    draw = torch.Generator().manual_seed(3)
    return (3 * torch.randn(tokens, WORDS, generator=draw, dtype=torch.float64)).to(dtype).requires_grad_()


IDS = torch.arange(TOKENS) % WORDS


@pytest.mark.parametrize("chunk_tokens", [1, 4, 11, 256, None])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_equal_to_plain_autograd(chunk_tokens: int | None, temperature: float) -> None:
    mine, plain = _logits(), _logits()
    weights = torch.linspace(-1, 1, TOKENS, dtype=torch.float64)
    logp = token_logprobs(mine, IDS, temperature, chunk_tokens=chunk_tokens)
    entropy = entropy_from_logits(mine, temperature, chunk_tokens=chunk_tokens)
    (weights @ logp + weights.flip(0) @ entropy).backward()
    log_softmax = (plain / temperature).log_softmax(-1)
    plain_logp = log_softmax[torch.arange(TOKENS), IDS]
    plain_entropy = -(log_softmax.exp() * log_softmax).sum(-1)
    (weights @ plain_logp + weights.flip(0) @ plain_entropy).backward()
    torch.testing.assert_close(logp, plain_logp, rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy, plain_entropy, rtol=0, atol=1e-12)
    torch.testing.assert_close(mine.grad, plain.grad, rtol=0, atol=1e-12)


def test_derivatives_are_those_of_the_function() -> None:
    logits = _logits(tokens=3)
    assert torch.autograd.gradcheck(lambda z: token_logprobs(z, IDS[:3], 0.7, chunk_tokens=2), (logits,))
    assert torch.autograd.gradcheck(lambda z: entropy_from_logits(z, 0.7, chunk_tokens=2), (logits,))


def test_bfloat16_logits_give_float32_results_and_bfloat16_gradients() -> None:
    logits = _logits(torch.bfloat16)
    logp, entropy = token_logprobs(logits, IDS), entropy_from_logits(logits)
    exact = logits.detach().double().log_softmax(-1)
    assert logp.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logp.double(), exact[torch.arange(TOKENS), IDS], rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(-1), rtol=0, atol=1e-5)
    (logp.sum() + entropy.sum()).backward()
    assert logits.grad.dtype == torch.bfloat16


def test_only_a_chunk_exists_in_float32() -> None:
    tokens, chunk_tokens = 64, 4
    logits = _logits(torch.bfloat16, tokens)
    ids = torch.zeros(tokens, dtype=torch.long)
    with LargestFloat32() as largest:
        logp = token_logprobs(logits, ids, 0.7, chunk_tokens=chunk_tokens)
        entropy = entropy_from_logits(logits, 0.7, chunk_tokens=chunk_tokens)
        (logp.sum() + entropy.sum()).backward()
    assert 0 < largest.elements <= max(chunk_tokens * WORDS, tokens)
    with LargestFloat32() as plain:
        logits.float().log_softmax(-1)
    assert plain.elements == tokens * WORDS


def test_banned_words_do_not_make_nan() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf], [0.0, -math.inf, -math.inf]], requires_grad=True)
    logp, entropy = token_logprobs(logits, torch.tensor([0, 0])), entropy_from_logits(logits)
    assert logp.tolist() == pytest.approx([-math.log(2), 0.0])
    assert entropy.tolist() == pytest.approx([math.log(2), 0.0])
    (logp.sum() + entropy.sum()).backward()
    assert torch.isfinite(logits.grad).all()


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    logp, entropy = token_logprobs(logits, torch.tensor([1])), entropy_from_logits(logits)
    assert logp.item() == -2e4
    (logp.sum() + entropy.sum()).backward()
    assert torch.isfinite(logits.grad).all()


def test_no_tokens_and_no_gradient() -> None:
    assert token_logprobs(torch.zeros(0, WORDS), torch.zeros(0, dtype=torch.long)).shape == (0,)
    assert entropy_from_logits(torch.zeros(0, WORDS)).shape == (0,)
    with torch.no_grad():
        assert not token_logprobs(_logits(), IDS).requires_grad


def test_bad_arguments() -> None:
    logits = _logits()
    with pytest.raises(ValueError, match=r"must be \[tokens, vocabulary\]"):
        entropy_from_logits(logits[None])
    with pytest.raises(ValueError, match="one id per row"):
        token_logprobs(logits, IDS[:-1])
    with pytest.raises(ValueError, match=r"temperature=0\.0 must be above 0"):
        token_logprobs(logits, IDS, 0.0)
    with pytest.raises(ValueError, match="temperature=nan must be above 0"):
        entropy_from_logits(logits, math.nan)
    with pytest.raises(ValueError, match="chunk_tokens=0"):
        entropy_from_logits(logits, chunk_tokens=0)
