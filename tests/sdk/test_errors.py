"""The taxonomy: what is classified, what passes untouched, and failures kept as data."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from plugym.errors import BadInput, Failure, InfraError, InfraKind, PluginError, RewardError, RunStopped, boundary


def test_exit_codes() -> None:
    assert [error.exit_code for error in (BadInput, PluginError, RewardError, RunStopped, InfraError)] == [
        2,
        2,
        1,
        1,
        1,
    ]


@pytest.mark.parametrize(
    ("error", "message", "retryable"),
    [
        (OSError("disk full"), "step: OSError: disk full", True),
        (KeyError("x"), "step: KeyError: 'x'", True),
        (TimeoutError(), "step: TimeoutError", True),
        (TimeoutError("slow"), "step: TimeoutError: slow", True),
        (StopIteration("x"), "step: StopIteration: x", True),
        (TypeError("no"), "step: TypeError: no", False),
        (ModuleNotFoundError("torch"), "step: ModuleNotFoundError: torch", False),
        (AssertionError(), "step: AssertionError", False),
    ],
)
def test_plain_errors_are_classified(error: Exception, message: str, retryable: bool) -> None:
    with pytest.raises(InfraError) as caught, boundary(InfraKind.ENV, "step"):
        raise error
    found = caught.value
    assert (found.kind, str(found), found.retryable) == (InfraKind.ENV, message, retryable)
    assert found.__cause__ is error
    assert "test_errors.py" in found.where


@pytest.mark.parametrize(
    "error",
    [BadInput("fix it"), InfraError(InfraKind.SANDBOX, "gone"), asyncio.CancelledError(), KeyboardInterrupt()],
)
def test_our_own_errors_and_cancellation_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, boundary(InfraKind.ENV, "step"):
        raise error
    assert caught.value is error


def test_without_a_name_the_message_is_the_error_alone() -> None:
    with pytest.raises(InfraError, match=r"^ValueError: x$"), boundary(InfraKind.INTERNAL):
        raise ValueError("x")


def test_a_failure_survives_a_process_boundary() -> None:
    error = InfraError(InfraKind.SANDBOX, "gone", retryable=False, where="a.py:3 in f")
    failure = pickle.loads(pickle.dumps(Failure.of(error)))  # noqa: S301 - our own bytes
    again = failure.error()
    assert (again.kind, str(again), again.retryable, again.where) == (InfraKind.SANDBOX, "gone", False, "a.py:3 in f")


def test_fingerprints_tell_causes_apart() -> None:
    base = Failure(InfraKind.ENV, "x", "a.py:1 in f")
    others = [
        Failure(InfraKind.ENGINE, "x", "a.py:1 in f"),
        Failure(InfraKind.ENV, "y", "a.py:1 in f"),
        Failure(InfraKind.ENV, "x", "a.py:2 in f"),
    ]
    assert base.fingerprint == Failure(InfraKind.ENV, "x", "a.py:1 in f", retryable=False).fingerprint
    assert base.fingerprint not in {other.fingerprint for other in others}


def test_one_cause_with_changing_details_has_one_fingerprint() -> None:
    first, second = (Failure(InfraKind.ENV, f"OSError: port {n} is taken", "a.py:1 in f") for n in (8001, 8002))
    assert first.fingerprint == second.fingerprint
