"""Group baselines, whitening and pass@k against published vectors and loops that read like the formula."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugym.functional import group_advantages, pass_at_k, rloo_advantages, whiten

rewards = st.lists(st.sampled_from([-1.0, -0.6, 0.0, 0.1, 0.3, 1.0, 7.25]), min_size=2, max_size=12)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1, -1, -1, 1], [0.866025, -0.866025, -0.866025, 0.866025]),
        ([1, -0.9, -0.8, -1.1], [1.487667, -0.46169, -0.359092, -0.666885]),
    ],
)
def test_published_vectors(scores: list[float], expected: list[float]) -> None:
    assert group_advantages(scores) == pytest.approx(expected, abs=1e-6)


@given(rewards, st.sampled_from([1, 0]), st.sampled_from([1e-6, 1e-4]))
def test_group_advantages_against_the_formula(scores: list[float], ddof: int, eps: float) -> None:
    mean = statistics.fmean(scores)
    deviation = statistics.stdev(scores) if ddof else statistics.pstdev(scores)
    expected = [(score - mean) / (deviation + eps) for score in scores]
    assert group_advantages(scores, ddof=ddof, eps=eps) == pytest.approx(expected, abs=1e-9)
    unscaled = [score - mean for score in scores]
    assert group_advantages(scores, scale="none") == pytest.approx(unscaled, abs=1e-12)


def test_std_is_the_sample_deviation() -> None:
    assert group_advantages([0, 1], eps=0) == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])
    assert group_advantages([0, 1], eps=0, ddof=0) == pytest.approx([-1, 1])


@pytest.mark.parametrize("value", [0.0, 1.0, -0.6, 0.1, 1e-9, 123.456])
@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_equal_rewards_give_exactly_zero(value: float, size: int) -> None:
    """The mean of equal floats is not always that float; the advantage must still be 0, also with eps=0."""
    group = [value] * size
    for advantages in (
        group_advantages(group),
        group_advantages(group, eps=0),
        group_advantages(group, scale="none"),
        rloo_advantages(group),
        whiten(group),
    ):
        assert advantages.tolist() == [0.0] * size


def test_rewards_equal_up_to_rounding_count_as_equal() -> None:
    assert group_advantages([0.1 + 0.2, 0.3], eps=0).tolist() == [0.0, 0.0]


def test_group_of_one_has_mean_0_and_std_1() -> None:
    assert group_advantages([0.5]) == pytest.approx([0.5 / (1 + 1e-6)], abs=1e-12)
    assert group_advantages([0.5], scale="none").tolist() == [0.5]
    assert rloo_advantages([0.5]).tolist() == [0.5]


def test_empty_group() -> None:
    assert group_advantages([]).tolist() == []
    assert rloo_advantages([]).tolist() == []
    assert whiten([]).tolist() == []


def test_the_input_is_not_changed_or_shared() -> None:
    for size in (1, 2):
        scores = np.arange(size, dtype=np.float64)
        for result in (group_advantages(scores, scale="none"), rloo_advantages(scores), whiten(scores)):
            result += 1
        assert scores.tolist() == list(range(size))


@given(rewards)
def test_rloo_against_a_loop(scores: list[float]) -> None:
    expected = []
    for i, score in enumerate(scores):
        others = [other for j, other in enumerate(scores) if j != i]
        expected.append(score - sum(others) / len(others))
    assert rloo_advantages(scores) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 4)), min_size=1, max_size=10))
def test_weights_count_occurrences(pairs: list[tuple[float, int]]) -> None:
    values, counts = np.array([v for v, _ in pairs]), np.array([n for _, n in pairs])
    whitened = whiten(values, counts)
    assert whitened[counts == 0].tolist() == [0.0] * int((counts == 0).sum())
    assert np.repeat(whitened, counts) == pytest.approx(whiten(np.repeat(values, counts)), abs=1e-7)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=20))
def test_whitened_values_have_mean_0_and_variance_1(values: list[float]) -> None:
    whitened = whiten(values)
    assert whitened.mean() == pytest.approx(0.0, abs=1e-6)
    variance = statistics.variance(values)
    if variance > 1e-3:
        assert whitened.var(ddof=1) == pytest.approx(variance / (variance + 1e-8), rel=1e-6)


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(ncK: tuple[int, int, int]) -> None:
    n, c, k = ncK
    subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_of_many_samples() -> None:
    assert pass_at_k(n=32, c=1, k=32) == 1.0
    assert pass_at_k(n=10_000, c=10, k=1) == pytest.approx(1e-3)
    assert pass_at_k(n=2_000, c=0, k=1_000) == 0.0


@pytest.mark.parametrize("function", [group_advantages, rloo_advantages, whiten])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_named(function, bad: float) -> None:
    with pytest.raises(ValueError, match=r"\[2\] is (nan|inf|-inf); every value must be finite"):
        function([0.0, 1.0, bad])


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="unknown advantage scale 'batch'; valid: std, none"):
        group_advantages([1, 2], scale="batch")
    with pytest.raises(ValueError, match="one-dimensional"):
        group_advantages([[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="whole numbers, not negative"):
        whiten([1, 2], [1, -1])
    with pytest.raises(ValueError, match="whole numbers, not negative"):
        whiten([1, 2], [0.5, 0.25])
    with pytest.raises(ValueError, match="must agree"):
        whiten([1, 2], [1])
    with pytest.raises(ValueError, match="c must be in"):
        pass_at_k(n=4, c=5, k=1)
    with pytest.raises(ValueError, match="draw more or lower k"):
        pass_at_k(n=4, c=1, k=5)
    with pytest.raises(ValueError, match="pass@0"):
        pass_at_k(n=4, c=1, k=0)
