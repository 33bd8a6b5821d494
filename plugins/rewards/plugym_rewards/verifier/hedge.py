"""Words that take an answer back, doubt it or offer a choice: "not 5", "5 is wrong", "maybe 5", "5 or so".

What belongs here: the vocabulary, and `find_hedge` over it. The rule of the verifier is that exactly one asserted
answer counts; structure (lists, relations) is judged in `structures.py` and `compare.py`, wording here.
"""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DENIAL = _words(
    "not no nope never neither nor none without wrong incorrect false untrue invalid mistaken mistake error isn isnt"
    " isn't aren't wasn't won't don't doesn't didn't can't cannot couldn't shouldn't wouldn't dont doesnt except unless"
    " instead rather unlikely impossible fake lie retract retracted disregard ignore cancel reject rejected"
)
DOUBT = _words(
    "maybe perhaps possibly probably presumably likely either guess guessing unsure uncertain might may could should"
    " would approximately approx about around roughly nearly almost circa estimate estimated close near doubt doubtful"
    " versus vs alternatively otherwise if else sometimes"
)
FUNCTION_WORDS = _words(
    "the a an is are was were be been it its this that these those and or but so then than as of to in on at by for"
    " from with which what who how i you we they he she my your our their his her do does did has have had also both"
    " all any some each every only just even still yet again too very here there where when while because since"
    " answer equals equal gives yields yes true correct right"
)
NUMBER_WORDS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion half"
    " third quarter dozen"
)
MATH_WORDS = _words(
    "sin cos tan cot sec csc log exp sqrt arcsin arccos arctan sinh cosh tanh max min gcd lcm mod sum prod int lim inf"
    " sup det alpha beta gamma delta theta lambda sigma omega phi infinity infty nan"
)
NOT_A_LABEL = DENIAL | DOUBT | FUNCTION_WORDS | NUMBER_WORDS | MATH_WORDS
MARKS = {"≠": "denied by ≠", "≈": "only approximate", "¬": "denied by ¬", "→": "a derivation, not an answer"}

_WORD = re.compile(r"(?<!\\)\b[a-z']+")


def find_hedge(text: str, allowed: str = "") -> str | None:
    """Why the normalised text does not assert one answer, or None; what also occurs in `allowed` is no hedge.

    >>> find_hedge("100 is wrong")
    "denied by the word 'wrong'"
    >>> find_hedge("x+1") is None
    True
    """
    for mark, why in MARKS.items():
        if mark in text and mark not in allowed:
            return why
    permitted = _WORD.findall(allowed.lower())
    for word in _WORD.findall(text.lower()):
        if word in permitted:
            continue
        if word in DENIAL:
            return f"denied by the word {word!r}"
        if word in DOUBT:
            return f"doubted by the word {word!r}"
    return None


def is_label(word: str) -> bool:
    """Whether a word can be what was counted ("18 eggs") and nothing else."""
    word = word.lower()
    return len(word) >= 3 and word.isalpha() and NOT_A_LABEL.isdisjoint((word, word.removesuffix("s")))


_SPOKEN_DENIAL = re.compile(
    r"(?i)\b(?:not|no|never|nope|isn't|isn’t|aren't|wasn't|cannot|can't|neither|nor|wrong|incorrect|untrue|mistaken|"
    r"maybe|perhaps|possibly|might|either|unsure)\b"
)
_DENIED_AFTER = re.compile(
    r"(?i)[\s$*).\]]*\(?\s*(?:that |this |it |which )?(?:is|was|seems|looks)?\s*(?:not|wrong|incorrect|false|untrue)\b"
)
_DENIED_BEFORE = re.compile(
    r"(?i)(?:\b(?:not|never|neither|nor)|n't|n’t)[\s$*:(\[]*(?:equal to|be|in fact)?[\s$*:(\[]*$"
)


def denied_around(before: str, after: str) -> bool:
    """Whether the words right before or right after a marked answer take it back ("not \\boxed{5}")."""
    return bool(_DENIED_AFTER.match(after) or _DENIED_BEFORE.search(before))


def denied_in_prose(clause: str) -> bool:
    """Whether a clause of prose denies or doubts what it mentions."""
    return bool(_SPOKEN_DENIAL.search(clause))
