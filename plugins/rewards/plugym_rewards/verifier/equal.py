"""Grading one answer: `grade` and its asynchronous twin, `grade_response` for whole model answers.

What belongs here: the order of the decisions. Size guard, normalisation, same spelling, hedging words, the exact
comparison, and for the rest the algebra worker. `decide` does all that needs no waiting and is shared by the two
twins, which differ only in how they wait for algebra.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

from .algebra import AlgebraPool, Outcome
from .compare import Comparison
from .exact import Ring, TooLarge
from .extract import extract_answer
from .hedge import find_hedge
from .normalize import normalize, to_latex
from .structures import Answer, Items, Opaque, Relation, read_answer

MAX_LENGTH = 2_000
MAX_PAIRS = 8

Path: TypeAlias = Literal["none", "fast", "hedge", "guard", "algebra", "timeout"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is right and how that was found.

    `path` is "none" (no answer, or one that needs algebra while there is none), "fast" (exact arithmetic), "hedge"
    (not exactly one asserted answer), "guard" (refused as too large), "algebra" or "timeout" (the worker). `answer` is
    the normalised answer that was found in a whole response; None where there was none, or one beyond the size guard.
    """

    correct: bool
    path: Path
    reason: str
    answer: str | None = None


Pairs: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Reading:
    """A normalised text with its answer tree, or with the guard's reason to refuse it."""

    text: str
    answer: Answer
    refused: str = ""


def grade(gold: str, pred: str, *, algebra: AlgebraPool | None = None) -> Verdict:
    """Compare the content of an answer slot with the reference answer; never raises for any text.

    Without `algebra` an answer that exact arithmetic cannot decide is not paid (path "none"). Raises
    `AlgebraUnavailable` when a pool was given whose worker cannot start.

    >>> grade(r"\\frac{1}{2}", "0.5").correct
    True
    >>> grade("100", "107 = 100").correct
    False
    """
    decided = decide(gold, pred)
    if isinstance(decided, Verdict):
        return decided
    return _settled(algebra.submit_all(decided) if algebra else None)


async def agrade(gold: str, pred: str, *, algebra: AlgebraPool | None = None) -> Verdict:
    """`grade` that awaits the algebra worker instead of blocking the event loop."""
    decided = decide(gold, pred)
    if isinstance(decided, Verdict):
        return decided
    return _settled(await algebra.asubmit_all(decided) if algebra else None)


def grade_response(gold: str, response: str, how: str = "auto", *, algebra: AlgebraPool | None = None) -> Verdict:
    """Extract the one asserted answer of a whole model answer (see `extract_answer`), then `grade` it.

    >>> grade_response("7", r"<think>maybe \\boxed{7}</think> So it is \\boxed{9}.").correct
    False
    """
    pred = extract_answer(response, how)
    return NO_ANSWER if pred is None else _with_answer(grade(gold, pred, algebra=algebra), pred)


async def agrade_response(
    gold: str, response: str, how: str = "auto", *, algebra: AlgebraPool | None = None
) -> Verdict:
    """`grade_response` that awaits the algebra worker instead of blocking the event loop."""
    pred = extract_answer(response, how)
    return NO_ANSWER if pred is None else _with_answer(await agrade(gold, pred, algebra=algebra), pred)


def _with_answer(verdict: Verdict, pred: str) -> Verdict:
    return replace(verdict, answer=normalize(pred)) if len(pred) <= MAX_LENGTH else verdict


NO_ANSWER = Verdict(False, "none", "no asserted answer was found")


def decide(gold: str, pred: str) -> Verdict | Pairs:
    """The verdict, or the pairs of LaTeX (gold first) that algebra must find equal for the answer to be right."""
    if len(pred) > MAX_LENGTH or len(gold) > MAX_LENGTH:
        return Verdict(False, "guard", f"longer than {MAX_LENGTH} characters")
    reference, text = _read_gold(gold), normalize(pred)
    if not text or not reference.text:
        return Verdict(False, "none", "the answer slot is empty" if not text else "the gold answer is empty")
    if "nan" in (text.lower(), reference.text.lower()):
        return Verdict(False, "fast", "nan is not an answer")
    if text == reference.text:
        return Verdict(True, "fast", "the same spelling")
    hedge = find_hedge(text, allowed=reference.text)
    if hedge:
        return Verdict(False, "hedge", hedge)
    if reference.refused:
        return Verdict(False, "guard", f"the gold answer: {reference.refused}")
    try:
        return _compared(reference, text)
    except TooLarge as problem:
        return Verdict(False, "guard", str(problem))


def _compared(reference: _Reading, text: str) -> Verdict | Pairs:
    ring = Ring()
    answer, comparison = read_answer(text, ring), Comparison(ring)
    if not comparison.same(reference.answer, answer):
        return _wrong(reference.answer, answer)
    if len(comparison.pending) > MAX_PAIRS:
        return Verdict(False, "guard", f"more than {MAX_PAIRS} items need algebra")
    pairs = tuple((to_latex(g), to_latex(p)) for g, p in comparison.pending)
    return pairs or Verdict(True, "fast", "equal")


def _wrong(gold: Answer, pred: Answer) -> Verdict:
    if isinstance(pred, Opaque) and pred.why:
        return Verdict(False, "fast", f"the answer cannot be read: {pred.why}")
    if isinstance(pred, Items) and not pred.opener and not isinstance(gold, Items):
        return Verdict(False, "hedge", f"{len(pred.parts)} answers in the slot")
    if isinstance(pred, Relation) and not isinstance(gold, Relation):
        return Verdict(False, "hedge", "a relation instead of an answer")
    return Verdict(False, "fast", "different")


@lru_cache(maxsize=2048)
def _read_gold(gold: str) -> _Reading:
    """Cached: a group of samples shares its gold answer."""
    text = normalize(gold)
    try:
        return _Reading(text, read_answer(text, Ring()))
    except TooLarge as problem:
        return _Reading(text, Opaque(text), str(problem))


def _settled(outcome: Outcome | None) -> Verdict:
    """The verdict for what the algebra worker found."""
    if outcome is None:
        return Verdict(False, "none", "exact arithmetic cannot decide it, and there is no algebra")
    if outcome == "timeout":
        return Verdict(False, "timeout", "algebra took too long and was stopped")
    return Verdict(outcome == "equal", "algebra", f"{outcome} by algebra")
