"""Names of the variants that the functions of this package accept, as types without torch.

An algorithm's `Config` uses these `Literal`s as field types, so that `--help` lists the choices and a
wrong one is refused before a run. The maths behind each name is in the module that takes it. Nothing
but names and their check belongs here.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

AggregationMode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
"""How per-token losses become one number: see `aggregate`."""

AdvantageScale = Literal["std", "none"]
"""What a group's centred rewards are divided by: see `group_advantages`."""

KLKind = Literal["k1", "k2", "k3"]
"""Which estimator of the KL divergence: see `kl_penalty`."""

CorrectionMode = Literal["off", "tis", "icepop"]
"""How the gap between sampling and training log-probs is corrected: see `importance_weights`."""


def check_mode(mode: str, choices: Any, what: str) -> None:
    """Raise ValueError, listing the valid names, unless `mode` is one of the Literal `choices`.

    >>> check_mode("k4", KLKind, "KL kind")
    Traceback (most recent call last):
    ...
    ValueError: unknown KL kind 'k4'; valid: k1, k2, k3
    """
    valid = get_args(choices)
    if mode not in valid:
        raise ValueError(f"unknown {what} {mode!r}; valid: {', '.join(valid)}")
