"""How a target is fuzzed: hypothesis draws valid inputs and a seed, and each of them is damaged in many ways.

Drawing costs a hundred times what reading a damaged copy does, so one example gives `PER_EXAMPLE` inputs. A target gets
`INPUTS` of them: 10^4, or what FUZZ_EXAMPLES says (`make fuzz`: 10^5). Nothing is left to chance: the same inputs come
every time. What counts as an error, and which input is valid, is up to the targets.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

Text = TypeVar("Text", str, bytes)

INPUTS = int(os.environ.get("FUZZ_EXAMPLES", "10000"))
PER_EXAMPLE = 100

seeds = st.integers(0, 2**32 - 1)

fuzz: Callable[..., Callable[..., None]] = settings(
    max_examples=max(INPUTS // PER_EXAMPLE, 1),
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],  # an input that fails is named by its damage; drawing it smaller would be slow
    suppress_health_check=list(HealthCheck),
)
"""Decorates a target below `@given`."""


def damaged(whole: Text, seed: int, pieces: Sequence[Text], n: int = PER_EXAMPLE) -> Iterator[Text]:
    """`n` inputs: `whole` itself, then copies that were cut, spliced, doubled, or had some `pieces` put in."""
    rng = random.Random(seed)
    yield whole
    for _ in range(n - 1):
        text = whole
        for _ in range(rng.randint(1, 4)):
            at, to = sorted(rng.randrange(len(text) + 1) for _ in range(2))
            match rng.randrange(5):
                case 0:
                    text = text[:at] + text[to:]
                case 1:
                    text = text[:to] + text[at:][: len(whole) + 100]
                case 2:
                    text = text[:at]
                case _:
                    text = text[:at] + rng.choice(pieces) + text[at:]
        yield text
