"""From groups to scored groups: the one place where providers are called by a run.

Groups are scored concurrently. A provider that cannot be reached leaves the whole group unscored and is counted; a
provider that breaks its contract (NaN, out of range) ends the run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from plugym.config import RewardEntry
from plugym.errors import InfraError, InfraKind, RewardError, boundary
from plugym.registry import registry
from plugym.reward import Composite, Part, RewardProvider, Schedule, Score, check_scores
from plugym.trajectory import Group, ScoredGroup

log = logging.getLogger("plugym.scoring")


def build_reward(entries: Mapping[str, RewardEntry]) -> RewardProvider:
    """The provider of a run: the single one as it is, several (or a weight other than 1) as a `Composite`."""
    parts = [
        Part(label, registry().create("rewards", e.plugin, e.settings, prefix=f"--reward.{label}."), _weight(e))
        for label, e in entries.items()
    ]
    if len(parts) == 1 and parts[0].weight == 1.0:
        return parts[0].provider
    return Composite(parts)


def _weight(entry: RewardEntry) -> float | Schedule:
    weight = entry.weight
    return weight if isinstance(weight, float) else Schedule(weight.start, weight.end, weight.steps)


async def score_group(name: str, provider: RewardProvider, group: Group) -> ScoredGroup:
    """Score one group. Raises `RewardError` for a provider that breaks its contract or has a mistake in its code; one
    that cannot be reached leaves the trajectories unscored."""
    try:
        with boundary(InfraKind.REWARD, f"reward {name!r}"):
            scores = await provider.score(group)
    except InfraError as error:
        if not error.retryable:
            raise RewardError(f"{error} ({error.where}), while scoring group {group.id}") from error
        log.warning("group %s is unscored: %s", group.id, error)
        scores = [Score.unscored(f"infra/{error.kind}: {error}") for _ in group.trajectories]
    return ScoredGroup(group, check_scores(name, provider, group, scores))
