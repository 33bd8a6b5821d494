"""Checks of the optimizer's side: entropy, clipping, divergence from the reference, gradients.

Thresholds marked [rldoctor] are those of rldoctor 0.2.0, whose levels info / warn / critical map to ok / warn / fail
here; those marked [ours] were chosen on simulated runs. Each check reads a `History` and returns one `Diagnosis`.
"""

from __future__ import annotations

import math

import numpy as np

from plugym_runners.diagnose.diagnosis import Diagnosis, Skip, graded
from plugym_runners.diagnose.history import MIN_ROWS, History, together
from plugym_runners.diagnose.statistics import robust_sigma, running_median, theil_sen

# [rldoctor] share of the initial entropy; [ours] half of it must be gone before a projection is believed
ENTROPY_FLOOR, ENTROPY_FALLING = 0.10, 0.50
# [rldoctor] share of tokens clipped, 0.10 being worth no more than its number; one side against the other
CLIPPED, ASYMMETRY = (0.20, 0.40), 3.0
# [ours] below this share of tokens a lopsided clip is noise
ASYMMETRY_FROM = 0.02
# [rldoctor] mean divergence from the reference in nats per token; under the first the policy does not move
KL_FLAT, KL_FAR = 1e-4, (0.5, 2.0)
# [rldoctor] both must hold, because a steady run has a tiny deviation; [ours] share of steps that is a failure
SPIKE_SIGMA, SPIKE_MEDIAN, SPIKE_SHARE = 8.0, 3.0, 0.05
SPIKE_WINDOW = 15
# [rldoctor] share of steps, 0.20 being worth no more than its number
ZERO_GRADIENT = (0.40, 0.70)


def entropy_collapse(history: History) -> Diagnosis:
    """Entropy near zero ends exploration: all episodes of a group become the same."""
    entropy = history.series("actor/entropy")
    first, last = entropy.head(), entropy.tail()
    if first <= 0:
        raise Skip("entropy is 0 from the start: greedy sampling, or a deterministic policy")
    left = last / first
    slope = theil_sen(entropy.steps, entropy.values)
    arrival = (last - ENTROPY_FLOOR * first) / -slope if slope < 0 else math.inf
    span = float(entropy.steps[-1] - entropy.steps[0])
    numbers = {"first": first, "last": last, "left": left, "steps_to_floor": arrival}
    detail = f"entropy {first:.3g} -> {last:.3g} ({left:.0%} left)"
    advice = "clip higher above (--algo.clip_high), add an entropy term, lower the learning rate, raise the temperature"
    if left <= ENTROPY_FLOOR:
        return Diagnosis("entropy_collapse", "fail", detail, numbers, advice)
    if left <= ENTROPY_FALLING and arrival <= span / 2:
        detail = f"{detail}, reaches {ENTROPY_FLOOR:.0%} in about {arrival:.0f} steps"
        return Diagnosis("entropy_collapse", "warn", detail, numbers, advice)
    return Diagnosis("entropy_collapse", "ok", detail, numbers)


def _clipped(history: History) -> tuple[float, float]:
    """Median shares of tokens clipped below and above in the last quarter of the run."""
    low, high = together(history, ["actor/clip_low", "actor/clip_high"])
    if not low.any() and not high.any():
        raise Skip("nothing is ever clipped: with one update per step the ratio is 1")
    last = max(2, len(low) // 4)
    return float(np.median(low[-last:])), float(np.median(high[-last:]))


def clip_fraction(history: History) -> Diagnosis:
    """Many clipped tokens: the policy moves further in a step than the surrogate allows."""
    low, high = _clipped(history)
    status = graded(low + high, *CLIPPED)
    detail = f"{low + high:.1%} of tokens clipped (last quarter)"
    advice = "" if status == "ok" else "lower the learning rate or --train.updates"
    return Diagnosis("clip_fraction", status, detail, {"low": low, "high": high}, advice)


def clip_asymmetry(history: History) -> Diagnosis:
    """Clipping that hits one side only: good answers are held back, or bad ones pushed down freely."""
    low, high = _clipped(history)
    ratio = max(low, high) / max(min(low, high), 1e-9)
    numbers = {"low": low, "high": high, "ratio": ratio}
    detail = f"{low:.1%} clipped below, {high:.1%} above"
    if ratio < ASYMMETRY or max(low, high) < ASYMMETRY_FROM:
        return Diagnosis("clip_asymmetry", "ok", detail, numbers)
    side = "--algo.clip_high" if high > low else "--algo.clip_low"
    return Diagnosis("clip_asymmetry", "warn", detail, numbers, f"widen {side}, or lower the learning rate")


def kl(history: History) -> Diagnosis:
    """How far the policy went from its reference, or that it does not move at all."""
    divergence = history.series("actor/kl")
    if not divergence.values.any():
        raise Skip("actor/kl is exactly 0 everywhere: it was not measured")
    last = divergence.tail()
    detail = f"KL to the reference {last:.3g} nats per token (last quarter)"
    if abs(last) < KL_FLAT:
        advice = "the policy hardly moves: raise the learning rate, or lower the KL coefficient"
        return Diagnosis("kl", "warn", detail, {"kl": last}, advice)
    status = graded(last, *KL_FAR)
    advice = (
        "" if status == "ok" else "raise --algo.kl_coef or lower the learning rate; look for answers that degenerate"
    )
    return Diagnosis("kl", status, detail, {"kl": last}, advice)


def gradient_spikes(history: History) -> Diagnosis:
    """Steps whose gradient is far above those around it. Steps without a gradient are no part of the comparison."""
    norms = history.series("actor/grad_norm")
    moving = norms.values > 0
    if moving.sum() < MIN_ROWS:
        raise Skip(f"{int(moving.sum())} steps have a gradient; at least {MIN_ROWS} are needed")
    steps, values = norms.steps[moving], norms.values[moving]
    typical = running_median(values, SPIKE_WINDOW)
    excess = values - typical
    spikes = (excess > SPIKE_SIGMA * robust_sigma(excess)) & (values > SPIKE_MEDIAN * typical)
    count = int(spikes.sum())
    numbers = {"spikes": float(count), "median": float(np.median(values)), "max": float(values.max())}
    if not count:
        return Diagnosis("gradient_spikes", "ok", "no step stands out", numbers)
    where = ", ".join(f"{step:.0f}" for step in steps[spikes][:5])
    detail = f"{count} of {len(values)} steps, at {where}{', ...' if count > 5 else ''}; largest {values.max():.3g}"
    advice = "read the episodes of these steps; lower the learning rate or clip gradients harder (--train.grad_clip)"
    status = graded(count / len(values), 0.0, SPIKE_SHARE)
    return Diagnosis("gradient_spikes", status, detail, numbers, advice)


def zero_gradients(history: History) -> Diagnosis:
    """Steps that changed nothing: the gradient is exactly 0, or there was nothing to train on."""
    norms = history.series("actor/grad_norm", 0).values
    idle = sum(row.get("actor/updates") == 0 and "actor/grad_norm" not in row for row in history.rows)
    total = len(norms) + idle
    if total < MIN_ROWS:
        raise Skip(f"{total} rows have actor/grad_norm; at least {MIN_ROWS} are needed")
    zero = int(np.sum(norms == 0)) + idle
    share = zero / total
    status = graded(share, *ZERO_GRADIENT)
    detail = f"{zero} of {total} steps changed nothing"
    advice = "" if status == "ok" else "groups were without variance or filtered out: change task difficulty or reward"
    return Diagnosis("zero_gradients", status, detail, {"share": share, "steps": float(zero)}, advice)
