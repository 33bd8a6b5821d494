"""Steps of `TorchLearner`: gradients against a naive reference, micro-batches, skipping, refusals, metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from plugym import functional as F
from plugym.algorithm import Advantage, Aux, LossOutput, Need, TokenBatch, spread
from plugym.errors import BadInput, RunStopped
from plugym.trajectory import Trajectory, stream_of

Make = Callable[..., Any]


def weights_of(learner: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in learner.model.named_parameters()}


def gradient_of(learner: Any, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
    """What a step under GRADIENT_STEP took away from each weight."""
    before = weights_of(learner)
    learner.step(*args, **kwargs)
    return {name: before[name] - after for name, after in weights_of(learner).items()}


def policy_gradient(batch: TokenBatch) -> LossOutput:
    ratio = (batch.logp - batch.old_logp).exp()
    counts = (batch.traj_index, batch.traj_tokens, batch.total_tokens, batch.total_trajs)
    loss = F.aggregate(-batch.advantages * ratio, "token-mean", *counts)
    return LossOutput(loss, {"pg_loss": loss.item(), "ratio": ratio.sum().item() / batch.total_tokens})


def everything(batch: TokenBatch) -> LossOutput:
    """A loss with every term there can be, aggregated by trajectory."""
    assert batch.ref_logp is not None
    assert batch.entropy is not None
    assert batch.values is not None
    assert batch.returns is not None
    per_token = (
        -batch.advantages * (batch.logp - batch.old_logp).exp()
        + 0.3 * F.kl_penalty(batch.logp, batch.ref_logp)
        - 0.2 * batch.entropy
        + 0.5 * (batch.values - batch.returns).square()
    )
    counts = (batch.traj_index, batch.traj_tokens, batch.total_tokens, batch.total_trajs)
    return LossOutput(F.aggregate(per_token, "seq-mean-token-mean", *counts))


def advantages_for(trajectories: Sequence[Trajectory], *values: float) -> list[Advantage]:
    return [spread(t, value) for t, value in zip(trajectories, values, strict=True)]


@pytest.fixture
def advantages(trajectories: list[Trajectory]) -> list[Advantage]:
    return advantages_for(trajectories, 1.0, -0.5, 0.25, 2.0, -1.0, 0.7)


def random_arrays(trajectories: Sequence[Trajectory], seed: int) -> dict[str, tuple[Any, ...]]:
    rng = np.random.default_rng(seed)
    return {t.id: tuple(-rng.random(len(s)).astype(np.float32) for s in t.streams) for t in trajectories}


@pytest.mark.parametrize("limit", [1, 20, 45])
def test_micro_batches_add_up(
    make_learner: Make,
    gradient_step: dict[str, Any],
    trajectories: list[Trajectory],
    advantages: list[Advantage],
    limit: int,
) -> None:
    whole = gradient_of(make_learner(**gradient_step), trajectories, advantages, policy_gradient)
    split = gradient_of(
        make_learner(**gradient_step, micro_batch_tokens=limit), trajectories, advantages, policy_gradient
    )
    torch.testing.assert_close(split, whole, rtol=0, atol=1e-6)
    assert max(float(g.abs().max()) for g in whole.values()) > 0.01


@pytest.mark.parametrize("settings", [{}, {"micro_batch_tokens": 20}, {"gradient_checkpointing": True}])
def test_the_gradient_is_that_of_the_naive_reference(
    make_learner: Make,
    make_llama: Make,
    naive: Make,
    gradient_step: dict[str, Any],
    trajectories: list[Trajectory],
    settings: dict[str, Any],
) -> None:
    """Every term of a loss, several streams, shared prompts and pad ids, against one stream at a time."""
    rng = np.random.default_rng(5)
    advantages = [
        Advantage(
            t.id,
            tuple((s.loss_mask * rng.normal(size=len(s))).astype(np.float32) for s in t.streams),
            returns=tuple(rng.normal(size=len(s)).astype(np.float32) for s in t.streams),
        )
        for t in trajectories
    ]
    aux = Aux(old_logprobs=random_arrays(trajectories, 1), ref_logprobs=random_arrays(trajectories, 2))
    learner = make_learner(
        **gradient_step | settings, temperature=0.8, needs={Need.VALUES, Need.ENTROPY, Need.REF_LOGPROBS}
    )
    head = learner._value_head.linear
    with torch.no_grad():
        head.weight.copy_(torch.linspace(-1, 1, 24, dtype=torch.float64)[None])
    found = gradient_of(learner, trajectories, advantages, everything, aux=aux)

    model = make_llama()
    weight = torch.linspace(-1, 1, 24, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for t, advantage in zip(trajectories, advantages, strict=True):
        for i, stream in enumerate(t.streams):
            at = stream.positions
            output = model(input_ids=torch.tensor(stream.ids)[None], output_hidden_states=True)
            table = torch.log_softmax(output.logits[0, at - 1] / 0.8, dim=-1)
            logp = table[torch.arange(len(at)), torch.tensor(stream.ids[at])]
            old, ref = (torch.tensor(array[t.id][i][at]) for array in (aux.old_logprobs, aux.ref_logprobs))
            assert advantage.returns is not None
            value = output.hidden_states[-1][0, at - 1] @ weight
            losses = (
                -torch.tensor(advantage.streams[i][at]) * (logp - old).exp()
                + 0.3 * ((ref - logp).exp() - (ref - logp) - 1)
                + 0.2 * (table.exp() * table).sum(-1)
                + 0.5 * (value - torch.tensor(advantage.returns[i][at])) ** 2
            )
            total = total + losses.sum() / t.trained_tokens / len(trajectories)
    total.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


def test_skipping_zero_advantages_changes_nothing_but_time(
    make_learner: Make, gradient_step: dict[str, Any], trajectories: list[Trajectory]
) -> None:
    advantages = advantages_for(trajectories, 1.0, 0.0, -2.0, 0.0, 0.0, 0.5)
    rows: list[int] = []

    def counting(batch: TokenBatch) -> LossOutput:
        rows.append(len(batch.traj_tokens))
        assert batch.total_tokens == sum(t.trained_tokens for t in trajectories)
        assert batch.total_trajs == 6
        return policy_gradient(batch)

    skipping, full = make_learner(**gradient_step), make_learner(**gradient_step)
    found = gradient_of(skipping, trajectories, advantages, counting, skip_zero=True)
    torch.testing.assert_close(found, gradient_of(full, trajectories, advantages, counting), rtol=0, atol=1e-12)
    assert rows == [3, 6]


def test_nothing_left_means_no_update(
    make_learner: Make, trajectories: list[Trajectory], advantages: list[Advantage]
) -> None:
    learner = make_learner(schedule="linear", warmup_steps=4, total_steps=10, lr=0.1, weight_decay=0.1)
    learner.step(trajectories, advantages, policy_gradient)
    before = weights_of(learner)
    zeros = advantages_for(trajectories, *[0.0] * 6)
    metrics = learner.step(trajectories, zeros, policy_gradient, skip_zero=True)
    assert metrics == {
        "actor/zero_grad": 1.0,
        "actor/skipped_trajectories": 6.0,
        "actor/lr": pytest.approx(0.05),
        "actor/loss": 0.0,
        "actor/grad_norm": 0.0,
    }
    assert all(torch.equal(before[name], p) for name, p in weights_of(learner).items())
    assert learner.updates == 1
    assert learner.step([], [], policy_gradient)["actor/zero_grad"] == 1.0
    # Without skip_zero the loss may have other terms, so the update takes place.
    metrics = learner.step(trajectories, zeros, policy_gradient)
    assert (metrics["actor/zero_grad"], learner.updates) == (1.0, 2)


def test_a_trajectory_without_trained_tokens_only_counts(
    make_learner: Make, gradient_step: dict[str, Any], trajectories: list[Trajectory]
) -> None:
    empty = Trajectory("empty", None, "g", streams=(stream_of([([1, 2], [], [])]),))
    batches = []

    def loss(batch: TokenBatch) -> LossOutput:
        batches.append(batch)
        return policy_gradient(batch)

    make_learner(**gradient_step).step([empty, trajectories[0]], advantages_for([empty, trajectories[0]], 1, 1), loss)
    assert [(len(b.traj_tokens), b.total_trajs, b.total_tokens) for b in batches] == [(1, 2, 4)]


@pytest.mark.parametrize("method", ["full", "lora"])
def test_metrics(make_learner: Make, trajectories: list[Trajectory], advantages: list[Advantage], method: str) -> None:
    learner = make_learner(method=method, micro_batch_tokens=20, lr=0.01)
    streams = [s for t in trajectories for s in t.streams]
    now = np.concatenate([p[s.positions] for s, p in zip(streams, learner.logprobs(streams), strict=True)])
    sampled = np.concatenate([s.logprobs[s.positions] for s in streams])
    metrics = learner.step(trajectories, advantages, policy_gradient)
    gap = now - sampled
    assert metrics["actor/mismatch_max"] == pytest.approx(np.abs(gap).max(), rel=1e-5)
    assert metrics["actor/mismatch_kl"] == pytest.approx((np.exp(gap) - 1 - gap).mean(), rel=1e-5)
    assert metrics["actor/ratio"] == pytest.approx(1.0)
    assert metrics["actor/pg_loss"] == pytest.approx(metrics["actor/loss"])
    assert 0 < metrics["actor/entropy"] < np.log(61)
    assert metrics["actor/grad_norm"] > 0
    assert (metrics["actor/lr"], metrics["actor/zero_grad"], metrics["actor/skipped_trajectories"]) == (0.01, 0.0, 0.0)


def test_old_logprobs_come_from_aux(
    make_learner: Make, trajectories: list[Trajectory], advantages: list[Advantage]
) -> None:
    learner = make_learner(lr=0.01)
    streams = [s for t in trajectories for s in t.streams]
    rest = iter(learner.logprobs(streams))
    aux = Aux(old_logprobs={t.id: tuple(next(rest) for _ in t.streams) for t in trajectories})
    first = learner.step(trajectories, advantages, policy_gradient, aux=aux)
    second = learner.step(trajectories, advantages, policy_gradient, aux=aux)
    assert first["actor/ratio"] == pytest.approx(1.0)
    assert abs(second["actor/ratio"] - 1.0) > 0.01
    assert second["actor/mismatch_kl"] == pytest.approx(first["actor/mismatch_kl"])


def test_learning(make_learner: Make, trajectories: list[Trajectory]) -> None:
    """A few steps of policy gradient make the rewarded tokens likelier and the punished ones less likely."""
    learner = make_learner(method="lora", lora_rank=4, lr=0.02)
    chosen = trajectories[:2]
    streams = [t.streams[0] for t in chosen]
    before = [p.sum() for p in learner.logprobs(streams)]
    for _ in range(5):
        learner.step(chosen, advantages_for(chosen, 1.0, -1.0), policy_gradient)
    after = [p.sum() for p in learner.logprobs(streams)]
    assert after[0] > before[0] + 1
    assert after[1] < before[1] - 1


@pytest.mark.parametrize("bad", ["loss", "gradient"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_what_is_not_finite_is_never_applied(
    make_learner: Make, trajectories: list[Trajectory], advantages: list[Advantage], bad: str, method: str
) -> None:
    learner = make_learner(method=method, micro_batch_tokens=20, lr=0.01)
    learner.step(trajectories, advantages, policy_gradient)
    before = weights_of(learner)
    seen = []

    def poisoned(batch: TokenBatch) -> LossOutput:
        seen.append(batch)
        output = policy_gradient(batch)
        if len(seen) == 2 and bad == "loss":
            output.loss = output.loss * float("nan")
        if len(seen) == 2 and bad == "gradient":
            # sqrt at 0: the value is 0, the slope infinite.
            output.loss = output.loss + (batch.logp - batch.logp.detach()).square().sum().sqrt()
        return output

    with pytest.raises(
        RunStopped, match="the loss is nan at update 1" if bad == "loss" else "not finite .*at update 1"
    ):
        learner.step(trajectories, advantages, poisoned)
    assert all(torch.equal(before[name], p) for name, p in weights_of(learner).items())
    assert learner.updates == 1
    learner.step(trajectories, advantages, policy_gradient)
    assert all(bool(p.isfinite().all()) for p in weights_of(learner).values())


def test_logprobs_at_a_temperature(make_learner: Make, naive: Make, trajectories: list[Trajectory]) -> None:
    streams = [s for t in trajectories for s in t.streams] + [stream_of([([1, 2], [], [])])]
    learner = make_learner(temperature=0.5, micro_batch_tokens=20)
    found = learner.logprobs(streams)
    for stream, logp in zip(streams, found, strict=True):
        assert logp.dtype == np.float32
        assert logp.shape == stream.ids.shape
        assert not logp[~stream.loss_mask].any()
        if stream.loss_mask.any():
            expected = naive(learner.model, stream, 0.5).detach().numpy()
            np.testing.assert_allclose(logp[stream.positions], expected, rtol=0, atol=1e-6)
    assert learner.logprobs([]) == []


@pytest.mark.parametrize("method", ["full", "lora"])
def test_reference_logprobs_are_those_of_the_start(
    make_learner: Make, trajectories: list[Trajectory], advantages: list[Advantage], method: str
) -> None:
    learner = make_learner(method=method, needs={Need.REF_LOGPROBS}, lr=0.05)
    streams = [s for t in trajectories for s in t.streams]
    start = learner.logprobs(streams)
    for _ in range(2):
        learner.step(trajectories, advantages, policy_gradient)
    for before, reference, now in zip(
        start, learner.logprobs(streams, reference=True), learner.logprobs(streams), strict=True
    ):
        np.testing.assert_allclose(reference, before, rtol=0, atol=1e-6)
        assert np.abs(now - before).max() > 0.01
    # Switching the adapter off and on again must not stop it from being trained.
    before = learner.logprobs(streams)[0]
    learner.step(trajectories, advantages, policy_gradient)
    assert np.abs(learner.logprobs(streams)[0] - before).max() > 0.01


def test_the_value_head_learns(make_learner: Make, trajectories: list[Trajectory]) -> None:
    learner = make_learner(method="lora", needs={Need.VALUES}, lr=0.02)
    streams = [s for t in trajectories for s in t.streams]
    assert not any(value.any() for value in learner.values(streams))
    advantages = [
        Advantage(t.id, spread(t, 0.0).streams, returns=spread(t, 1.0 + i).streams) for i, t in enumerate(trajectories)
    ]

    def loss(batch: TokenBatch) -> LossOutput:
        assert batch.values is not None
        assert batch.returns is not None
        per_token = F.value_loss(batch.values, batch.values.detach(), batch.returns)
        return LossOutput(per_token.sum() / batch.total_tokens)

    losses = [learner.step(trajectories, advantages, loss)["actor/loss"] for _ in range(20)]
    assert losses[-1] < 0.2 * losses[0]
    values = learner.values(streams)
    assert all(
        not value[~s.loss_mask].any() and value[s.loss_mask].all() for s, value in zip(streams, values, strict=True)
    )


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_of_the_model_is_off(
    make_learner: Make,
    make_llama: Make,
    trajectories: list[Trajectory],
    advantages: list[Advantage],
    checkpointing: bool,
) -> None:
    model = make_llama(attention_dropout=0.5)
    model.train()
    learner = make_learner(model, gradient_checkpointing=checkpointing)
    plain = make_learner()
    found = learner.step(trajectories, advantages, policy_gradient)
    assert found["actor/mismatch_kl"] == plain.step(trajectories, advantages, policy_gradient)["actor/mismatch_kl"]
    assert not any(module.training for module in learner.model.modules())


@pytest.mark.parametrize(("checkpointing", "passes"), [(False, 1), (True, 2)])
def test_checkpointing_computes_each_layer_again(
    make_learner: Make, trajectories: list[Trajectory], advantages: list[Advantage], checkpointing: bool, passes: int
) -> None:
    learner = make_learner(gradient_checkpointing=checkpointing, share_prompts=False)
    calls = []
    learner.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    learner.step(trajectories[:1], advantages[:1], policy_gradient)
    assert len(calls) == passes


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_of_the_adapter_is_on_in_steps_only(
    make_learner: Make, trajectories: list[Trajectory], advantages: list[Advantage], dropout: float
) -> None:
    learner = make_learner(method="lora", lora_dropout=dropout, lr=0.05)
    learner.step(trajectories, advantages, policy_gradient)
    (stream,) = trajectories[0].streams
    one, two = (learner.logprobs([stream])[0][stream.positions] for _ in range(2))
    assert np.array_equal(one, two)
    seen = []

    def loss(batch: TokenBatch) -> LossOutput:
        seen.append(batch.logp.detach().float().numpy())
        return policy_gradient(batch)

    learner.step(trajectories[:1], advantages[:1], loss)
    assert np.allclose(seen[0], one, rtol=0, atol=1e-6) == (dropout == 0.0)


def test_adapters_of_a_bfloat16_model_are_float32(
    make_learner: Make, make_llama: Make, trajectories: list[Trajectory], advantages: list[Advantage]
) -> None:
    learner = make_learner(make_llama(dtype=torch.bfloat16), method="lora", dtype="bfloat16")
    state = learner._optimizer.state_dict()
    metrics = learner.step(trajectories, advantages, policy_gradient)
    assert metrics["actor/grad_norm"] > 0
    for name, parameter in learner.model.named_parameters():
        if parameter.requires_grad:
            assert torch.float32 in {parameter.dtype, *(v.dtype for v in state[name].values())}
        else:
            assert parameter.dtype == torch.bfloat16


def test_bad_input(make_learner: Make, trajectories: list[Trajectory], advantages: list[Advantage]) -> None:
    learner = make_learner()
    with pytest.raises(BadInput, match="same order"):
        learner.step(trajectories, advantages[::-1], policy_gradient)
    first = Trajectory("t0", None, "g", streams=(stream_of([([], [1, 2], [-1.0, -1.0])]),))
    with pytest.raises(BadInput, match="token stream 0 of trajectory t0 trains its first token"):
        learner.step([first], [spread(first, 1.0)], policy_gradient)
    with pytest.raises(BadInput, match="token stream 0 trains its first token"):
        learner.logprobs(first.streams)
    with pytest.raises(BadInput, match=r"Need\.VALUES"):
        learner.values([])
    with pytest.raises(BadInput, match="ref_logprobs"):
        learner.logprobs([], reference=True)
    with pytest.raises(BadInput, match="temperature"):
        make_learner(temperature=0.0)
