"""GAE and discounted returns against loops over a padded layout that still has its observation tokens."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugym.functional import discounted_returns, gae

unit = st.sampled_from([0.0, 0.3, 0.9, 0.97, 1.0])
token = st.tuples(st.floats(-2, 2), st.floats(-2, 2), st.booleans())


@given(st.lists(token, min_size=1, max_size=40), unit, unit, st.floats(-2, 2))
def test_gae_skips_observation_tokens(
    tokens: list[tuple[float, float, bool]], gamma: float, lam: float, bootstrap: float
) -> None:
    """The loop runs over all tokens and carries value and advantage past the untrained ones; the values
    found there must not matter."""
    carried_value, carried_advantage = bootstrap, 0.0
    expected = []
    for reward, value, trained in reversed(tokens):
        if trained:
            delta = reward + gamma * carried_value - value
            carried_advantage = delta + gamma * lam * carried_advantage
            carried_value = value
            expected.append(carried_advantage)
    expected.reverse()
    kept = [(reward, value) for reward, value, trained in tokens if trained]
    values = [value for _, value in kept]
    advantages, returns = gae([reward for reward, _ in kept], values, gamma, lam, bootstrap=bootstrap)
    assert advantages == pytest.approx(expected, abs=1e-9)
    assert returns == pytest.approx(np.array(expected) + np.array(values), abs=1e-9)


@given(st.lists(st.floats(-2, 2), max_size=40), unit)
def test_discounted_returns_against_a_loop(rewards: list[float], gamma: float) -> None:
    expected, running = [], 0.0
    for reward in reversed(rewards):
        running = reward + gamma * running
        expected.append(running)
    assert discounted_returns(rewards, gamma) == pytest.approx(expected[::-1], abs=1e-9)


def test_lambda_1_is_the_return_minus_the_value_and_lambda_0_the_one_step_error() -> None:
    rewards, values = [0.0, 0.0, 1.0], [0.2, 0.4, 0.7]
    monte_carlo, returns = gae(rewards, values, gamma=1.0, lam=1.0)
    assert monte_carlo == pytest.approx([0.8, 0.6, 0.3])
    assert returns == pytest.approx([1.0, 1.0, 1.0])
    one_step, _ = gae(rewards, values, gamma=1.0, lam=0.0)
    assert one_step == pytest.approx([0.2, 0.3, 0.3])


def test_a_trajectory_without_trained_tokens() -> None:
    advantages, returns = gae([], [], gamma=1.0, lam=0.95, bootstrap=3.0)
    assert advantages.size == 0
    assert returns.size == 0


def test_the_input_is_not_changed() -> None:
    rewards, values = np.array([0.0, 1.0]), np.array([0.5, 0.5])
    gae(rewards, values, gamma=1.0, lam=0.9)
    discounted_returns(rewards, 0.9)
    assert (rewards.tolist(), values.tolist()) == ([0.0, 1.0], [0.5, 0.5])


def test_a_thousand_long_trajectories_take_a_moment() -> None:
    """A step of the published recipe has 1,024 trajectories of up to 20,480 tokens."""
    rewards, values = np.zeros(20_480), np.linspace(0, 1, 20_480)
    started = time.process_time()
    for _ in range(20):
        gae(rewards, values, gamma=0.999, lam=0.95)
    assert (time.process_time() - started) / 20 < 0.01


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="3 rewards but 2 values"):
        gae([0, 0, 1], [0, 0], gamma=1.0, lam=1.0)
    with pytest.raises(ValueError, match=r"values\[1\] is nan"):
        gae([0, 1], [0, float("nan")], gamma=1.0, lam=1.0)
    with pytest.raises(ValueError, match=r"values\[1\] is inf"):
        gae([0, 1], [0, 0], gamma=1.0, lam=1.0, bootstrap=float("inf"))
    with pytest.raises(ValueError, match=r"lam=1.5 must be in \[0, 1\]"):
        gae([0], [0], gamma=1.0, lam=1.5)
    with pytest.raises(ValueError, match=r"gamma=-0.1 must be in \[0, 1\]"):
        discounted_returns([0], gamma=-0.1)
