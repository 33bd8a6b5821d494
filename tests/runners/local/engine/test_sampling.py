"""Sampling follows the distribution, cuts it as asked, and depends on the seed of the row alone."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plugym.engine import Sampling
from plugym_runners.local.sampling import BLOCK, Sampler, draw_cut, invert, uniforms

CPU = torch.device("cpu")


def some_probs(rows: int, size: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.dirichlet(np.full(size, 0.3), rows)).float()


@given(
    weights=st.lists(st.sampled_from([0.0, 0.0, 0.1, 1.0, 7.0]), min_size=1, max_size=3 * BLOCK).filter(any),
    draw=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=100, deadline=None)
def test_inversion_agrees_with_plain_accumulation(weights: list[float], draw: float) -> None:
    chosen = int(invert(torch.tensor([weights]), torch.tensor([draw], dtype=torch.float64)))
    assert weights[chosen] > 0
    cumulative = np.cumsum(weights)
    target = draw * cumulative[-1]
    tolerance = 1e-5 * cumulative[-1]
    assert cumulative[chosen] >= target - tolerance
    assert cumulative[chosen] - weights[chosen] <= target + tolerance


def test_frequencies_are_the_probabilities() -> None:
    probs = some_probs(1, 2 * BLOCK + 5)
    draws = torch.from_numpy(uniforms(3, 40_000))
    chosen = invert(probs.expand(len(draws), -1), draws)
    counts = np.bincount(chosen.numpy(), minlength=probs.shape[1])
    expected = probs[0].numpy() * len(draws)
    big = expected >= 5
    chi2 = float((((counts - expected) ** 2)[big] / expected[big]).sum())
    freedom = int(big.sum()) - 1
    assert abs(chi2 - freedom) < 5 * (2 * freedom) ** 0.5


def kept(probs: np.ndarray, top_k: int, top_p: float) -> set[int]:
    """The candidate set, written as the definitions say."""
    order = np.argsort(-probs, kind="stable")[: top_k or None]
    share = probs[order].astype(np.float64)
    if top_k:
        share = share / share.sum()
    before = np.cumsum(share) - share
    return {int(i) for i, mass in zip(order, before, strict=True) if mass < top_p or i == order[0]}


@given(st.integers(0, 40), st.floats(0.05, 1.0), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_cuts_keep_what_their_definitions_keep(top_k: int, top_p: float, seed: int) -> None:
    probs = some_probs(1, 37, seed)
    draws = torch.from_numpy(uniforms(seed, 300))
    chosen = draw_cut(probs.expand(300, -1), draws, [Sampling(top_k=top_k, top_p=top_p)] * 300)
    allowed = kept(probs[0].numpy(), top_k, top_p)
    assert set(chosen.tolist()) <= allowed
    heavy = {i for i in allowed if float(probs[0, i]) > 0.05}
    assert heavy <= set(chosen.tolist())


def test_nucleus_wider_than_the_first_look() -> None:
    size, n = 1000, 1500
    probs = torch.full((1, size), 1.0 / size)
    chosen = draw_cut(probs.expand(n, -1), torch.from_numpy(uniforms(0, n)), [Sampling(top_p=0.9)] * n)
    assert 650 < len(set(chosen.tolist())) <= 901


def test_a_row_draws_the_same_alone_and_among_others() -> None:
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 300))).float()
    kinds = [Sampling(), Sampling(temperature=0), Sampling(top_k=5, temperature=0.7), Sampling(top_p=0.8)]
    together = Sampler(kinds, [1, 2, 3, 4], 6, CPU)
    for row, kind in enumerate(kinds):
        alone = Sampler([kind], [row + 1], 6, CPU)
        for step in range(6):
            tokens, logprobs = together.draw(logits, step)
            token, logprob = alone.draw(logits[row : row + 1], step)
            assert tokens[row] == token[0]
            assert abs(float(logprobs[row] - logprob[0])) < 1e-6


def test_log_probs_are_those_before_the_cut_at_the_temperature() -> None:
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 50))).float()
    sampler = Sampler(
        [Sampling(temperature=0.5, top_k=2), Sampling(temperature=0.0), Sampling(temperature=2.0)], [0, 0, 0], 1, CPU
    )
    tokens, logprobs = sampler.draw(logits, 0)
    scale = torch.tensor([[0.5], [1.0], [2.0]])
    expected = torch.log_softmax(logits / scale, dim=-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected, atol=1e-6, rtol=0)
    assert tokens[1] == logits[1].argmax()


def test_rows_keep_their_stream_when_the_batch_shrinks() -> None:
    logits = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 80))).float()
    sampler = Sampler([Sampling(), Sampling(top_k=9), Sampling(temperature=3.0)], [5, 6, 7], 9, CPU)
    before = [sampler.draw(logits, step)[0].tolist() for step in range(9)]
    sampler.keep([0, 2])
    after = [sampler.draw(logits[[0, 2]], step)[0].tolist() for step in range(9)]
    assert after == [[row[0], row[2]] for row in before]


def test_seeds_may_be_any_integer() -> None:
    assert len({tuple(uniforms(seed, 2)) for seed in (-1, 0, 1, 2**63, 2**90)}) == 5
