"""The dry run: the whole composition once, without training - before anybody spends an hour on it.

One scripted episode with the real tokenizer and environment, one reward, one loss on a toy batch, and what the chat
template can do. A check that cannot run says `skip`; it never counts as passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plugym.algorithm import Advantage, Aux, Need, collate, counted_trajectories, flatten
from plugym.engine import GenerateRequest
from plugym.env import Oracle, Policy
from plugym.errors import PlugymError
from plugym.message import Action
from plugym.reward import RewardContext
from plugym.rollout.chat import HFChatTokenizer
from plugym.rollout.driver import RolloutDriver
from plugym.rollout.parsers import Parser
from plugym.rollout.scripted import ScriptedEngine
from plugym.runner import Finding
from plugym.scoring import score_group
from plugym.trajectory import Group, Purpose, ScoredGroup
from plugym_runners.compose import Composition
from plugym_runners.local.models import load_tokenizer, resolve_model


def dry_run(composition: Composition) -> list[Finding]:
    """Findings in the order they were looked at; a later check is skipped when one it builds on failed."""
    findings: list[Finding] = []
    spec = composition.spec
    reward = ", ".join(entry.plugin for entry in spec.reward.values())
    findings.append(
        Finding("composition", "ok", f"{spec.env.name} + {reward} + {spec.algo.name} on {spec.backend.name}")
    )

    state: dict[str, Any] = {}

    def run(name: str, check: Callable[[], Finding]) -> bool:
        try:
            findings.append(check())
        except PlugymError as error:
            findings.append(Finding(name, "fail", str(error)))
        return findings[-1].status != "fail"

    checks: dict[str, Callable[[], Finding]] = {
        "model": lambda: _model(composition, state),
        "template": lambda: _template(composition, state),
        "episode": lambda: asyncio.run(_episode(composition, state)),
        "reward": lambda: asyncio.run(_reward(composition, state)),
        "loss": lambda: _loss(composition, state),
    }
    passed = True
    for name, check in checks.items():
        if passed:
            passed = run(name, check)
        else:
            findings.append(Finding(name, "skip", "an earlier check failed"))
    return findings


def _model(composition: Composition, state: dict[str, Any]) -> Finding:
    reference = resolve_model(composition.spec.model)
    tokenizer, eos_ids = load_tokenizer(composition.spec.model)
    state["tokenizer"] = HFChatTokenizer(tokenizer, eos_ids)
    return Finding("model", "ok", f"{composition.spec.model} ({reference.path or 'hub'})")


def _template(composition: Composition, state: dict[str, Any]) -> Finding:
    tools = composition.probe.tools()
    if tools and not state["tokenizer"].supports_tools:
        return Finding(
            "template", "warn", "no tools branch: schemas go into the system message, results into user turns"
        )
    return Finding("template", "ok", "renders tools" if tools else "no tools needed")


async def _episode(composition: Composition, state: dict[str, Any]) -> Finding:
    """An oracle's episode where the environment has one, and one that says nothing."""
    task = composition.tasks("train")[0]
    probe = composition.probe
    policy = probe.oracle(task) if isinstance(probe, Oracle) else None
    engine = ScriptedEngine(script=_script(policy, composition.parser), tokenizer=state["tokenizer"])
    settings = composition.spec.rollout.model_copy(update={"same_failure_limit": 1})
    driver = RolloutDriver(
        engine=engine,
        env=composition.env,
        taskset=composition.tasks("train"),
        settings=settings,
        parser=composition.parser,
        seed=composition.spec.run.seed,
    )
    try:
        groups = [group async for group in driver.play([task], 2, purpose=Purpose.EVAL)]
    finally:
        await driver.close()
    state["group"] = groups[0]
    first = groups[0].trajectories[0]
    who = "oracle" if policy else "silent policy (the environment has no oracle)"
    return Finding(
        "episode", "ok", f"{who}: {len(first.turns)} turn(s), {first.trained_tokens} tokens, {first.stop_reason}"
    )


def _script(policy: Policy | None, parser: Parser) -> Callable[[GenerateRequest, int], str]:
    """Sample 0 plays the oracle, the others say nothing."""

    def script(request: GenerateRequest, turn: int) -> str:
        if policy is None or not request.session.endswith("/0"):
            return ""
        return _written(policy.act(request.messages or (), request.tools), parser)

    return script


def _written(action: Action, parser: Parser) -> str:
    calls = "".join(parser.render_call(call.name, dict(call.arguments)) for call in action.tool_calls)
    return action.text + calls


async def _reward(composition: Composition, state: dict[str, Any]) -> Finding:
    group: Group = state["group"]
    try:
        await composition.reward.open(RewardContext(rng=np.random.default_rng(0)))
        scored = await score_group("reward", composition.reward, group)
    finally:
        await composition.reward.close()
    state["scored"] = scored
    values = [score.value for score in scored.scores]
    if all(value is None for value in values):
        return Finding("reward", "fail", f"nothing could be scored: {scored.scores[0].why}")
    return Finding("reward", "ok", f"scripted winner {values[0]}, silent policy {values[1]}")


def _loss(composition: Composition, state: dict[str, Any]) -> Finding:
    """The algorithm's own loss on the two episodes, with invented log-probs."""
    import torch

    scored: ScoredGroup = composition.algo.shape(state["scored"], composition.limits)
    trajectories = counted_trajectories([scored])
    rng = np.random.default_rng(0)
    arrays = {t.id: tuple(-rng.random(len(s)).astype(np.float32) for s in t.streams) for t in trajectories}
    needs = composition.algo.needs
    aux = Aux(ref_logprobs=arrays if Need.REF_LOGPROBS in needs else {}, values=arrays if Need.VALUES in needs else {})
    advantages: Sequence[Advantage] = composition.algo.advantages([scored], aux)
    flat = torch.from_numpy(flatten(trajectories, [arrays[t.id] for t in trajectories]))
    logp = flat.clone().requires_grad_()
    extra = {"values": flat.clone().requires_grad_()} if Need.VALUES in needs else {}
    batch = collate(trajectories, advantages, logp=logp, aux=aux, entropy=-flat, **extra)
    loss = composition.algo.loss(batch).loss
    torch.autograd.backward(loss)
    value = loss.item()
    if not np.isfinite(value) or logp.grad is None or not torch.isfinite(logp.grad).all():
        return Finding("loss", "fail", f"loss or gradient is not finite ({value:g})")
    return Finding("loss", "ok", f"{value:.4f} with a finite gradient over {len(flat)} tokens")
