"""What run directories are made of in these tests, with hostile text in every place where a model can put some."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from plugym.errors import Failure, InfraKind
from plugym.message import Action, Message, ToolCall
from plugym.reward import Score
from plugym.store import RunDir
from plugym.task import Task
from plugym.trajectory import Group, Purpose, ScoredGroup, StopReason, Trajectory, Turn, stream_of

HOSTILE = '</script><script>window.pwned=1</script><img src=x onerror="window.pwned=1"> & \u2028 \ud800 ${x}'
CONFIG = """model = "tiny"
[env]
name = "math"
[reward.verifier]
plugin = "verifier"
[reward.brief]
plugin = "brief"
weight = 0.2
[algo]
name = "grpo_tcr"
"""
WORDS = ["<unk>", "<|end|>", "a", "The", "answer", "is", "15", "</script>", "calculator"]
STEPS = 30


def episode(name: str, task: Task, answer: str, tokens: int = 6) -> Trajectory:
    """Two turns: a call of a tool, then an answer."""
    call = ToolCall("call_0", "calculator", {"expression": f"7 + 8 {HOSTILE}"})
    first = Turn(
        (Message("user", task.instruction),), Action("", f"think {HOSTILE}", (call,), "raw"), span=(3, 3 + tokens)
    )
    span = (5 + tokens, 5 + 2 * tokens)
    second = Turn((Message("tool", "15", tool_call_id="call_0"),), Action.of(answer), span=span)
    ids = [3 + i % 6 for i in range(tokens)]
    logprobs = [-0.1 * (i % 20) for i in range(tokens)]
    stream = stream_of([([2, 3, 4], ids, logprobs), ([6, 2], ids, logprobs)])
    counts = {"tool_calls": 1.0, "truncated_turns": 0.0}
    return Trajectory(name, task, "g", (first, second), (stream,), counts=counts)


def scored(
    name: str, task: Task, rewards: list[float | None], purpose: Purpose = Purpose.TRAIN, tokens: int = 6
) -> ScoredGroup:
    """A group with one episode per reward; None is an infrastructure failure."""
    trajectories = []
    for i, reward in enumerate(rewards):
        if reward is None:
            failure = Failure(InfraKind.ENV, f"KeyError {HOSTILE}")
            trajectories.append(Trajectory(f"{name}/{i}", task, name, stop_reason=StopReason.INFRA, failure=failure))
        else:
            answer = f"The answer of {name} is {15 if reward > 0.5 else 16} {HOSTILE}"
            trajectories.append(episode(f"{name}/{i}", task, answer, tokens))
    scores = [
        Score.unscored("failed") if r is None else Score(r, r > 0.5, {"brief": 0.5}, why=HOSTILE) for r in rewards
    ]
    return ScoredGroup(Group(name, task, tuple(trajectories), purpose=purpose), tuple(scores))


def task(number: int) -> Task:
    return Task(
        f"math/{number}/{HOSTILE if number == 0 else 'sum'}", "math", instruction=f"7 + 8 = ? {HOSTILE}", answer="15"
    )


def write_groups(run: RunDir, step: int, prefix: str, groups: list[ScoredGroup]) -> None:
    writer = run.write_groups(step, prefix=prefix)
    for group in groups:
        writer.write(group)
    writer.commit()


def metrics(step: int) -> dict[str, float]:
    t = step / STEPS
    return {
        "reward/mean": 0.3 + 0.4 * t + 0.05 * math.sin(step),
        "reward/verifier": 0.2 + 0.4 * t + 0.05 * math.sin(step),
        "reward/brief": 0.5 + 0.05 * math.cos(step),
        "groups/total": 8.0,
        "groups/all_correct": round(2 * t),
        "groups/all_wrong": round(2 * (1 - t)),
        "groups/zero_variance": 2.0,
        "stop/env_done": 0.7,
        "stop/turn_length": 0.3,
        "tokens/response_mean": 120 + 30 * t,
        "tokens/response_max": 220 + 30 * t,
        "actor/entropy": 1.2 - 0.5 * t,
        "actor/mismatch_kl": 1e-5,
        "actor/grad_norm": math.nan if step == 7 else 0.4 + 0.1 * math.sin(3 * step),
        "time/rollout": 3.0,
        "time/train": 1.5,
    }


def write_tokenizer(checkpoint: Path) -> dict[str, int]:
    """A tokenizer of whole words in Hugging Face's file format."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    return {"step": STEPS}
