"""Metrics of scored groups under the fixed names of a run (`reward/mean`, `stop/<reason>`, `tokens/...`, `eval/...`).

Infra-failed trajectories appear under `infra/<kind>` and in no other statistic.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from plugym.trajectory import ScoredGroup, StopReason, Trajectory

Metrics = dict[str, float]


def batch_metrics(groups: Sequence[ScoredGroup]) -> Metrics:
    """Everything that can be said of a step's groups before training: rewards, stops, tools, tokens, failures."""
    everybody = [trajectory for group in groups for trajectory in group.group.trajectories]
    played = [trajectory for trajectory in everybody if not trajectory.infra_failed]
    failures = Counter(str(t.failure.kind) for t in everybody if t.failure is not None)
    return {
        "episodes": float(len(played)),
        **_reward_metrics(groups),
        **_group_metrics(groups),
        **{f"stop/{reason}": _share(t.stop_reason is reason for t in played) for reason in _used(played)},
        **{f"infra/{kind}": float(count) for kind, count in failures.items()},
        **_tool_metrics(played),
        **_token_metrics(played),
    }


def _used(played: Sequence[Trajectory]) -> list[StopReason]:
    """One-hot over all reasons but INFRA, so that a curve exists from the first step on."""
    return [reason for reason in StopReason if reason is not StopReason.INFRA] if played else []


def _share(flags: object) -> float:
    values = np.fromiter((float(flag) for flag in flags), dtype=np.float64)  # type: ignore[attr-defined]
    return float(values.mean()) if len(values) else 0.0


def _reward_metrics(groups: Sequence[ScoredGroup]) -> Metrics:
    values = np.concatenate([group.values() for group in groups]) if groups else np.zeros(0)
    unscored = sum(
        score.value is None and not trajectory.infra_failed
        for group in groups
        for trajectory, score in zip(group.group.trajectories, group.scores, strict=True)
    )
    metrics: Metrics = {"reward/unscored": float(unscored)}
    if len(values):
        metrics["reward/mean"] = float(values.mean())
        metrics["reward/std"] = float(values.std())
    parts: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        for index, _, _ in group.counted():
            for name, value in group.scores[index].parts.items():
                parts[name].append(value)
    # A part that only some answers have (which path decided it, say) is a share of all counted answers.
    metrics.update({f"reward/{name}": float(np.sum(found) / len(values)) for name, found in parts.items()})
    return metrics


def _group_metrics(groups: Sequence[ScoredGroup]) -> Metrics:
    verdicts = [[group.scores[i].correct for i, _, _ in group.counted()] for group in groups]
    judged = [v for v in verdicts if v and all(correct is not None for correct in v)]
    spread = [len(set(group.values().tolist())) <= 1 for group in groups if group.counted()]
    return {
        "groups/total": float(len(groups)),
        "groups/all_correct": float(sum(all(v) for v in judged)),
        "groups/all_wrong": float(sum(not any(v) for v in judged)),
        "groups/zero_variance": float(sum(spread)),
    }


def _tool_metrics(played: Sequence[Trajectory]) -> Metrics:
    calls = sum(int(t.counts.get("tool_calls", 0)) for t in played)
    succeeded = sum(int(t.counts.get("successful_calls", 0)) for t in played)
    metrics: Metrics = {"tools/calls": calls / len(played) if played else 0.0}
    if calls:
        metrics["tools/success_rate"] = succeeded / calls
    for name in ("unparsable_calls", "unanswered_calls", "stream_breaks", "drift_tokens", "retries"):
        total = sum(t.counts.get(name, 0.0) for t in played)
        if total:
            metrics[f"counts/{name}"] = float(total)
    return metrics


def _token_metrics(played: Sequence[Trajectory]) -> Metrics:
    if not played:
        return {}
    responses = np.array([t.response_tokens(observations=True) for t in played], dtype=np.float64)
    prompts = [_prompt_tokens(t) for t in played]
    trained = sum(t.trained_tokens for t in played)
    turns = sum(len(t.turns) for t in played)
    return {
        "tokens/prompt_mean": float(np.mean(prompts)),
        "tokens/response_mean": float(responses.mean()),
        "tokens/response_max": float(responses.max()),
        "tokens/per_turn": trained / turns if turns else 0.0,
        "tokens/truncated": float(sum(t.counts.get("truncated_turns", 0.0) for t in played)),
        "turns/mean": turns / len(played),
    }


def _prompt_tokens(trajectory: Trajectory) -> int:
    if not trajectory.streams or not len(trajectory.streams[0].positions):
        return 0
    return int(trajectory.streams[0].positions[0])
