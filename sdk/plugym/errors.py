"""One error taxonomy: vocabulary, classification, capture and surfacing, each in one place.

* vocabulary - `PlugymError` and its few subclasses; plugin authors may ignore them and raise plain Python errors
* classification - `InfraKind` says which side of the house broke
* capture - `boundary()` is the only place that turns a plain exception into an `InfraError`; `Failure` keeps it as data
* surfacing - `exit_code` on each class is what the command line returns; the message is the one line a user reads
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class PlugymError(Exception):
    """Base of every error this project raises on purpose."""

    exit_code: ClassVar[int] = 1


class BadInput(PlugymError):
    """The user gave something that cannot work; the message is one line and names the fix. Exit code 2."""

    exit_code = 2


class PluginError(BadInput):
    """A plugin is unknown, ambiguous, denied or broken."""


class RewardError(PlugymError):
    """A provider broke its contract (NaN, out of range, wrong count); ends the run, the last checkpoint is kept."""


class RunStopped(PlugymError):
    """The run stopped itself, for example because every episode fails in the same way."""


class InfraKind(StrEnum):
    """Where an infrastructure failure happened; counted as the metric `infra/<kind>`."""

    ENGINE = "engine"
    """The model server or the in-process engine."""
    ENV = "env"
    """The environment raised or overran its deadline."""
    SANDBOX = "sandbox"
    """The sandbox that should have run the model's code."""
    REWARD = "reward"
    """A reward provider could not be reached."""
    INTERNAL = "internal"
    """Our own code."""


class InfraError(PlugymError):
    """Infrastructure broke while an episode ran. Never a reward of 0: the trajectory becomes `infra_failed`.

    `retryable` is False where a second try cannot help (a programming error in a plugin, say).
    """

    def __init__(self, kind: InfraKind, message: str, *, retryable: bool = True, where: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
        self.where = where


_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Failure:
    """An `InfraError` kept as data on the trajectory that it ended.

    >>> Failure(InfraKind.ENV, "KeyError: 'x'", "env.py:3 in step").fingerprint
    "env|KeyError: 'x'|env.py:3 in step"
    """

    kind: InfraKind
    message: str
    where: str = ""
    retryable: bool = True

    @classmethod
    def of(cls, error: InfraError) -> Failure:
        return cls(error.kind, str(error), error.where, error.retryable)

    def error(self) -> InfraError:
        """The exception again, for instance on the other side of a process boundary."""
        return InfraError(self.kind, self.message, retryable=self.retryable, where=self.where)

    @property
    def fingerprint(self) -> str:
        """Equal for failures that have the same cause; the driver stops a run whose episodes all share one.

        Digits do not count: the same failure names another port, process or line of data each time.
        """
        return f"{self.kind}|{_DIGITS.sub('#', self.message)}|{self.where}"


# A second try cannot change the outcome of these: they are mistakes in code, not in the weather.
_PROGRAMMING_ERRORS = (TypeError, AttributeError, NameError, NotImplementedError, AssertionError, ImportError)


@contextmanager
def boundary(kind: InfraKind, what: str = "") -> Iterator[None]:
    """Classify whatever the body raises as an infrastructure failure of `kind`.

    Our own errors and cancellation (no `Exception`) pass through untouched, so an inner boundary (a sandbox inside an
    environment) keeps its more precise kind.

    >>> try:
    ...     with boundary(InfraKind.ENV, "step"):
    ...         {}["x"]
    ... except InfraError as error:
    ...     print(error.kind, error)
    env step: KeyError: 'x'
    """
    try:
        yield
    except PlugymError:
        raise
    except TimeoutError as error:
        raise InfraError(kind, _message(what, error) or f"{what}: timed out", where=_where(error)) from error
    except Exception as error:
        retryable = not isinstance(error, _PROGRAMMING_ERRORS)
        raise InfraError(kind, _message(what, error), retryable=retryable, where=_where(error)) from error


def _message(what: str, error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{what}: {text}" if what else text


def _where(error: BaseException) -> str:
    """`file:line in function` of the innermost frame: the user's own line comes first."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    last = frames[-1]
    return f"{last.filename}:{last.lineno} in {last.name}"
