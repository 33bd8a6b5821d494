"""The built-in problems: four levels, each a table of operand pairs times five phrasings.

Here it is decided which problems exist, and which operand pairs are held out: never trained on, in either
order, under any phrasing. All of it follows from (level, number held out, seed) by SHA-256, so a split is
the same on every machine and with every version of every library. How a problem becomes a prompt is `env`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, product

from plugym.task import Task


@dataclass(frozen=True, slots=True)
class Phrasing:
    """A question about the operands a and b, and about c where `third` says what c may be."""

    text: str
    solve: Callable[[int, int, int], int]
    third: Callable[[int, int], range] | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """Every ordered pair of `operands` in every phrasing. `sign` stands between the operands in a task id."""

    name: str
    sign: str
    operands: range
    difficulty: float
    phrasings: tuple[Phrasing, ...]


def _sum(a: int, b: int, c: int) -> int:
    return a + b


def _product(a: int, b: int, c: int) -> int:
    return a * b


_SUMS = tuple(
    Phrasing(text, _sum)
    for text in (
        "What is {a}+{b}?",
        "What is {a} + {b}?",
        "Compute {a}+{b}.",
        "{a} + {b} = ?",
        "Add {a} and {b}.",
    )
)

_PRODUCTS = tuple(
    Phrasing(text, _product)
    for text in (
        "What is {a}*{b}?",
        "What is {a} * {b}?",
        "Compute {a}*{b}.",
        "{a} * {b} = ?",
        "Multiply {a} by {b}.",
    )
)

_STORIES = (
    Phrasing(
        "Mia has {a} apples and buys {b} more. Then she gives {c} of them away. How many apples does she have left?",
        lambda a, b, c: a + b - c,
        lambda a, b: range(2, a + b),
    ),
    Phrasing(
        "There are {a} boxes with {b} pencils each. {c} of the pencils are used up. How many pencils are left?",
        lambda a, b, c: a * b - c,
        lambda a, b: range(2, a * b),
    ),
    Phrasing(
        "Tom fills {a} bags with {b} marbles each and has {c} marbles left over. How many marbles does he have in all?",
        lambda a, b, c: a * b + c,
        lambda a, b: range(2, 31),
    ),
    Phrasing(
        "A book has {c} pages. Ann reads {a} pages on Monday and {b} pages on Tuesday. "
        "How many pages does she still have to read?",
        lambda a, b, c: c - a - b,
        lambda a, b: range(a + b + 2, a + b + 42),
    ),
    Phrasing(
        "A group of {a} adults and {b} children visits a museum. Each ticket costs {c} euros. "
        "How many euros do they pay in all?",
        lambda a, b, c: (a + b) * c,
        lambda a, b: range(2, 13),
    ),
)

LEVELS: tuple[Level, ...] = (
    Level("sum", "+", range(10), 0.0, _SUMS),
    Level("sum", "+", range(10, 100), 0.25, _SUMS),
    Level("product", "*", range(2, 31), 0.5, _PRODUCTS),
    Level("word", ",", range(2, 31), 0.75, _STORIES),
)
"""Single-digit sums, two-digit sums, products, word problems of two steps."""


def _draw(*key: object) -> int:
    """A number below 2**64 that depends on nothing but the key."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def held_out_pairs(operands: range, count: int, seed: int) -> frozenset[tuple[int, int]]:
    """`count` ordered pairs that are kept from training; with (a, b) always (b, a).

    Doubles (a, a) get their natural share, one in `len(operands)`, give or take one to make the count fit.

    Raises `ValueError` unless some pair is held out and some is left to train on.

    >>> pairs = held_out_pairs(range(10), 40, seed=0)
    >>> len(pairs), all((b, a) in pairs for a, b in pairs), sum(a == b for a, b in pairs)
    (40, True, 4)
    """
    size = len(operands)
    if not 0 < count < size**2:
        raise ValueError(f"{count} pairs held out of {size**2}: at least one must be, and one left to train on")
    doubles = count // size
    doubles += (count - doubles) % 2
    by_draw = sorted(operands, key=lambda a: (_draw(seed, a, a), a))
    crossed = sorted(combinations(operands, 2), key=lambda pair: (_draw(seed, *pair), pair))
    chosen = [(a, a) for a in by_draw[:doubles]]
    for a, b in crossed[: (count - doubles) // 2]:
        chosen += [(a, b), (b, a)]
    return frozenset(chosen)


def problems(level: int, *, held_out: int, seed: int) -> Iterator[Task]:
    """Every problem of a level, in the order of its operands; `split` is `eval` for held-out pairs, else `train`.

    `instruction` is the bare question, `data["operands"]` the pair that decides the split. Raises `ValueError` as
    `held_out_pairs` does.

    >>> task = next(problems(0, held_out=40, seed=0))
    >>> task.id, task.instruction, task.answer
    ('math/sum/0+0/p0', 'What is 0+0?', '0')
    """
    table = LEVELS[level]
    kept = held_out_pairs(table.operands, held_out, seed)
    for a, b in product(table.operands, repeat=2):
        for number, phrasing in enumerate(table.phrasings):
            operands, c = f"{a}{table.sign}{b}", 0
            if phrasing.third is not None:
                choices = phrasing.third(a, b)
                c = choices[_draw(seed, a, b, number) % len(choices)]
                operands += f"{table.sign}{c}"
            yield Task(
                id=f"math/{table.name}/{operands}/p{number}",
                env="math",
                split="eval" if (a, b) in kept else "train",
                instruction=phrasing.text.format(a=a, b=b, c=c),
                data={"operands": [a, b]},
                answer=str(phrasing.solve(a, b, c)),
                difficulty=table.difficulty,
            )
