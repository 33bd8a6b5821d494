"""Checks of what was played and how it was scored: groups, lengths, parts of the reward, held-out tasks, plateau.

Thresholds marked [rldoctor] are those of rldoctor 0.2.0, whose levels info / warn / critical map to ok / warn / fail
here; those marked [ours] were chosen on simulated runs. Each check reads a `History` and returns one `Diagnosis`.
"""

from __future__ import annotations

import math

import numpy as np

from plugym.reward import Schedule
from plugym.trajectory import STATUS_OF, Status, StopReason
from plugym_runners.diagnose.diagnosis import Diagnosis, Skip, graded
from plugym_runners.diagnose.history import MIN_ROWS, History, Series, Weight, together
from plugym_runners.diagnose.statistics import mann_kendall, rank_correlation, theil_sen

# [rldoctor] median share of the last quarter of the run, 0.30 being worth no more than its number
ZERO_VARIANCE = (0.50, 0.75)
# [rldoctor] share of episodes
TRUNCATED = (0.05, 0.15)
# [rldoctor] relative growth, and the rank correlation from which reward follows length; [ours] what counts as a gain
GROWTH, FOLLOWS, GAIN = 0.50, 0.60, 0.02
# [rldoctor] share of the reward's variance over steps, share below which a part is dead, points before any verdict
PART_OWNS, PART_DEAD, PART_POINTS = (0.70, 0.90), 0.02, 150
# [rldoctor] gap between the two gains and evaluations needed; [ours] "flat" is under a quarter of the training gain
GAP, GAP_EVALS, FLAT = (0.15, 0.30), 4, 0.25
# [rldoctor] the last share of the run; [ours] rows, the rise that is no plateau, and the reward that is a ceiling
PLATEAU_WINDOW, PLATEAU_ROWS, PLATEAU_RISE, CEILING = 0.35, 20, 0.02, 0.90

# The environment's own limit is part of the task; the others are limits of the run and can be raised.
LIMITS = [r for r in StopReason if STATUS_OF[r] is Status.TRUNCATED and r is not StopReason.ENV_TRUNCATED]
SETTING = {
    StopReason.MAX_TURNS: "--rollout.max_turns",
    StopReason.TURN_LENGTH: "--rollout.max_turn_tokens",
    StopReason.RESPONSE_LENGTH: "--rollout.max_response_tokens",
    StopReason.CONTEXT_OVERFLOW: "a model with a longer context, or fewer observation tokens",
    StopReason.DEADLINE: "the deadline of an episode",
}


def groups_all_correct(history: History) -> Diagnosis:
    """Groups in which every answer is right teach nothing."""
    advice = "take harder tasks (raise the level, or drop tasks the model solves every time)"
    return _zero_variance(history, "groups_all_correct", "all correct", advice)


def groups_all_wrong(history: History) -> Diagnosis:
    """Groups in which no answer is right teach nothing, unless the algorithm shapes their rewards apart."""
    advice = (
        "take easier tasks, more episodes per task (--rollout.group_size), or a warm start by fine-tuning on traces"
    )
    return _zero_variance(history, "groups_all_wrong", "all wrong", advice)


def groups_tied(history: History) -> Diagnosis:
    """Groups whose scores are equal although they have no common verdict."""
    advice = "use a reward that tells answers of one task apart: more levels, or a second part"
    return _zero_variance(history, "groups_tied", "equal without a common verdict", advice)


def _zero_variance(history: History, name: str, words: str, advice: str) -> Diagnosis:
    """The total decides how bad it is, the most frequent cause gets the finding: two halves are one problem."""
    total = history.shares("groups/zero_variance", "groups/total").tail()
    correct = min(total, history.shares("groups/all_correct", "groups/total").tail())
    wrong = min(total - correct, history.shares("groups/all_wrong", "groups/total").tail())
    shares = {"groups_all_correct": correct, "groups_all_wrong": wrong, "groups_tied": total - correct - wrong}
    numbers = {"share": shares[name], "zero_variance": total}
    detail = f"{shares[name]:.0%} of groups {words}, {total:.0%} without variance (last quarter)"
    if max(shares, key=lambda key: shares[key]) != name or (status := graded(total, *ZERO_VARIANCE)) == "ok":
        return Diagnosis(name, "ok", detail, numbers)
    return Diagnosis(name, status, detail, numbers, advice)


def truncation(history: History) -> Diagnosis:
    """Episodes cut by a limit of the run: they are scored as they stand, so they push the policy to be short."""
    found = {reason: history.series(f"stop/{reason}").tail() for reason in LIMITS if history.has(f"stop/{reason}")}
    if not found:
        raise Skip("no row has stop/<reason>")
    total = sum(found.values())
    worst = max(found, key=lambda reason: found[reason])
    numbers = {"share": total, **{str(reason): share for reason, share in found.items() if share}}
    detail = f"{total:.1%} of episodes cut by a limit (last quarter)"
    status = graded(total, *TRUNCATED)
    if status == "ok":
        return Diagnosis("truncation", "ok", detail, numbers)
    return Diagnosis("truncation", status, f"{detail}, mostly {worst}", numbers, f"raise {SETTING[worst]}")


def length_growth(history: History) -> Diagnosis:
    """Answers that grow by half while nothing is gained by it, or while reward simply follows length."""
    lengths = history.series("tokens/response_mean")
    growth = lengths.tail() / lengths.head() - 1 if lengths.head() > 0 else 0.0
    detail = f"response length {lengths.head():.0f} -> {lengths.tail():.0f} tokens ({growth:+.0%})"
    if growth < GROWTH:
        return Diagnosis("length_growth", "ok", detail, {"growth": growth})
    length, reward = together(history, ["tokens/response_mean", "reward/mean"])
    follows = rank_correlation(length, reward)
    gained = history.series("reward/mean")
    reward_gain = gained.tail() - gained.head()
    eval_gain = _eval_gain(history)
    numbers = {"growth": growth, "rank_correlation": follows, "reward_gain": reward_gain, "eval_gain": eval_gain}
    if eval_gain > GAIN:
        return Diagnosis("length_growth", "ok", f"{detail}, and the evaluation rises", numbers)
    if reward_gain > GAIN and follows < FOLLOWS:
        return Diagnosis("length_growth", "ok", f"{detail}, and the reward rises apart from it", numbers)
    why = "the reward follows length" if reward_gain > GAIN else "no gain in reward"
    advice = (
        "aggregate the loss over tokens or by a constant, penalise overlong answers, look for a reward that pays for "
        "length; evaluate with --eval.every to see whether longer is better"
    )
    return Diagnosis("length_growth", "warn", f"{detail}: {why}, no rise in evaluation", numbers, advice)


def _eval_gain(history: History) -> float:
    """Last quarter minus first quarter of the held-out accuracy; NaN without at least two evaluations."""
    try:
        held_out = history.eval_series("eval/avg@k", 2)
    except Skip:
        return math.nan
    return _rise(held_out)


def _rise(series: Series) -> float:
    """Rise over the run: first to last of two or three points, else the robust slope times the span."""
    if len(series) < GAP_EVALS:
        return float(series.values[-1] - series.values[0])
    return theil_sen(series.steps, series.values) * float(series.steps[-1] - series.steps[0])


def reward_part(history: History) -> Diagnosis:
    """One secondary part (format, length) that makes up the movement of the whole reward, or a part that is dead."""
    weights = {label: weight for label, weight in (history.weights or {}).items() if history.has(f"reward/{label}")}
    if len(weights) < 2:
        raise Skip("the reward has one part: there is nothing to compare")
    steps, *values = together(history, ["step", *(f"reward/{label}" for label in weights)], PART_POINTS)
    factors = np.array([[_at(weight, step) for step in steps] for weight in weights.values()])
    contributions = factors * np.array(values)
    variance = float(contributions.sum(axis=0).var())
    if variance == 0:
        raise Skip("the reward never changes: no part can own its variance")
    centred = contributions - contributions.mean(axis=1, keepdims=True)
    shares = (centred * centred.sum(axis=0)).mean(axis=1) / variance
    numbers = {label: float(share) for label, share in zip(weights, shares, strict=True)}
    main = max(weights, key=lambda label: abs(_at(weights[label], steps[-1])))
    owner = max(numbers, key=lambda label: numbers[label])
    detail = ", ".join(f"{label} {share:.0%}" for label, share in numbers.items()) + " of the reward's variance"
    status = graded(numbers[owner], *PART_OWNS)
    if owner != main and status != "ok":
        advice = f"lower the weight of {owner!r}, or stop paying for it once it is learned: --reward {owner}:WEIGHT"
        return Diagnosis("reward_part", status, f"{detail}: {owner!r} owns it", numbers, advice)
    if abs(numbers[main]) < PART_DEAD:
        advice = f"{main!r} decides nothing: look at its scores, or take easier tasks"
        return Diagnosis("reward_part", "warn", f"{detail}: {main!r} is dead", numbers, advice)
    return Diagnosis("reward_part", "ok", detail, numbers)


def _at(weight: Weight, step: float) -> float:
    return weight.at(int(step)) if isinstance(weight, Schedule) else weight


def held_out(history: History) -> Diagnosis:
    """Training reward rises while held-out accuracy does not. Rewards beyond [0, 1] are scaled by their range."""
    trained = history.series("reward/mean")
    evaluated = history.eval_series("eval/avg@k", GAP_EVALS)
    scale = max(1.0, float(np.ptp(trained.values)))
    train_gain, eval_gain = _rise(trained) / scale, _rise(evaluated)
    gap = train_gain - eval_gain
    numbers = {"train_gain": train_gain, "eval_gain": eval_gain, "gap": gap}
    detail = f"training reward {train_gain:+.2f}, held-out {eval_gain:+.2f} over the run"
    status = graded(gap, *GAP)
    if train_gain <= 0 or eval_gain > FLAT * train_gain or status == "ok":
        return Diagnosis("held_out", "ok", detail, numbers)
    advice = (
        "stop at the best evaluation, take more or fresh tasks, lower the learning rate; read episodes for a loophole "
        "in the reward"
    )
    return Diagnosis("held_out", status, detail, numbers, advice)


def plateau(history: History) -> Diagnosis:
    """Nothing gained in the last third, well below the ceiling."""
    reward = history.series("reward/mean", PLATEAU_ROWS)
    start = len(reward) - max(MIN_ROWS, int(len(reward) * PLATEAU_WINDOW))
    window = Series(reward.name, reward.steps[start:], reward.values[start:])
    trend, rise, level = mann_kendall(window.values), _rise(window), window.tail()
    numbers = {"rise": rise, "trend": trend, "level": level, "rows": float(len(window))}
    detail = f"reward {level:.2f}, {rise:+.3f} over the last {len(window)} rows"
    if level >= CEILING or trend > 1.64 or rise >= PLATEAU_RISE:
        return Diagnosis("plateau", "ok", detail, numbers)
    advice = (
        "look first at groups without variance, entropy and truncation; then raise the learning rate, take other "
        "tasks, or stop here"
    )
    return Diagnosis("plateau", "warn", detail, numbers, advice)
