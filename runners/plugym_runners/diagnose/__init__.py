"""What a run's own numbers say about its health: metrics rows in, findings with advice out. Pure, no torch, no files.

`history` is what the checks look at, `statistics` the robust estimators they use, `rollouts` the checks of episodes,
groups and rewards, `updates` those of the optimizer; `diagnosis` is what one check answers. `CHECKS` is the whole list.
"""

from collections.abc import Callable, Mapping, Sequence

from plugym_runners.diagnose import rollouts, updates
from plugym_runners.diagnose.diagnosis import Diagnosis, Skip
from plugym_runners.diagnose.history import History, Row, Weight

__all__ = ["CHECKS", "Diagnosis", "History", "diagnose"]

CHECKS: Mapping[str, Callable[[History], Diagnosis]] = {
    "groups_all_correct": rollouts.groups_all_correct,
    "groups_all_wrong": rollouts.groups_all_wrong,
    "groups_tied": rollouts.groups_tied,
    "truncation": rollouts.truncation,
    "length_growth": rollouts.length_growth,
    "reward_part": rollouts.reward_part,
    "held_out": rollouts.held_out,
    "plateau": rollouts.plateau,
    "entropy_collapse": updates.entropy_collapse,
    "clip_fraction": updates.clip_fraction,
    "clip_asymmetry": updates.clip_asymmetry,
    "kl": updates.kl,
    "gradient_spikes": updates.gradient_spikes,
    "zero_gradients": updates.zero_gradients,
}
"""Every check by its name, in the order in which findings are reported."""


def diagnose(
    rows: Sequence[Row], evals: Sequence[Row] = (), weights: Mapping[str, Weight] | None = None
) -> list[Diagnosis]:
    """One finding per check.

    rows, evals: lines of metrics.jsonl and evals.jsonl under the fixed names, `step` among them, NaN where nothing was
    measured. weights: of the reward's parts by label; one that changes over the run is a `Schedule`.

    >>> row = {"groups/total": 8.0, "groups/zero_variance": 8.0, "groups/all_wrong": 8.0, "groups/all_correct": 0.0}
    >>> findings = diagnose([{"step": step, **row} for step in range(12)])
    >>> {finding.name: finding.status for finding in findings if finding.status != "skip"}
    {'groups_all_correct': 'ok', 'groups_all_wrong': 'fail', 'groups_tied': 'ok'}
    """
    history = History(tuple(rows), tuple(evals), dict(weights or {}))
    return [_run(name, check, history) for name, check in CHECKS.items()]


def _run(name: str, check: Callable[[History], Diagnosis], history: History) -> Diagnosis:
    try:
        return check(history)
    except Skip as reason:
        return Diagnosis(name, "skip", str(reason))
