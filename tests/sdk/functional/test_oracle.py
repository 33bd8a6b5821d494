"""Losses, gradients and advantages equal those of TRL and verl.

Against the committed golden values always; against the installed library where there is one. The golden files
are made by tests/oracle/make_golden.py.
"""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden_cases import Case, Inputs, difference, make_inputs, our_loss

from plugym.functional import (
    aggregate,
    discounted_returns,
    gae,
    group_advantages,
    rloo_advantages,
    value_loss,
    whiten,
)

DATA = Path(__file__).resolve().parents[2] / "data"
TOLERANCE = 1e-6
GOLDEN = {library: json.loads((DATA / f"oracle_{library}.json").read_text()) for library in ("trl", "verl")}
needs_trl = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed (extra `oracle`)")


def _golden_losses() -> Iterator[Any]:
    for library, golden in GOLDEN.items():
        for number, batch in enumerate(golden["batches"]):
            for entry in batch["losses"]:
                case = Case(**entry["case"])
                inputs = Inputs(**batch["inputs"])
                yield pytest.param(library, case, inputs, entry, id=f"{library}-{case.name}-{number}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("library", "case", "inputs", "entry"), list(_golden_losses()))
def test_loss_and_gradient_equal_the_golden_values(library, case, inputs, entry, dtype) -> None:
    # A trajectory without trained tokens counts in TRL's means and not in verl's.
    ours = our_loss(case, inputs, dtype, count_empty=library == "trl")
    assert difference(ours, (entry["loss"], entry["grad"])) <= TOLERANCE


def test_the_golden_cases_cover_what_they_should() -> None:
    """Each loss type with and without KL, both sides clipped, the dual clip active, or equality is empty."""
    names = {entry["case"]["name"] for entry in GOLDEN["trl"]["batches"][0]["losses"]}
    for name in ("grpo", "bnpo", "dapo", "dr_grpo", "cispo", "gspo"):
        assert {name, f"{name}+kl"} <= names
    for golden in GOLDEN.values():
        for batch in golden["batches"]:
            inputs = Inputs(**batch["inputs"])
            ratio = (inputs.tensor("logp") - inputs.tensor("old_logp")).exp()
            falling = (inputs.tensor("advantages") < 0)[:, None] & inputs.tensor("mask").bool()
            rising = (inputs.tensor("advantages") > 0)[:, None] & inputs.tensor("mask").bool()
            assert (falling & (ratio < 0.8)).any()
            assert (rising & (ratio > 1.28)).any()
            assert (falling & (ratio > 10)).any()


def test_gspo_with_token_wise_gradient_equals_trl() -> None:
    """TRL differentiates through the mean, verl token-wise; both forms are ours."""
    for batch in GOLDEN["trl"]["batches"]:
        for entry in batch["losses"]:
            if entry["case"]["name"] in ("gspo", "gspo+kl"):
                case = Case(**{**entry["case"], "ratio": "gspo"})
                ours = our_loss(case, Inputs(**batch["inputs"]))
                assert difference(ours, (entry["loss"], entry["grad"])) <= TOLERANCE


@pytest.mark.parametrize("number", [0, 1])
def test_advantages_equal_verl(number: int) -> None:
    batch = GOLDEN["verl"]["batches"][number]
    inputs, groups, settings = Inputs(**batch["inputs"]), np.array(batch["groups"]), batch["settings"]
    trained = np.array(inputs.mask, dtype=bool)
    counts = trained.sum(1)
    rewards, values = np.array(inputs.advantages), np.array(inputs.ref_logp)

    def per_group(function, **options) -> np.ndarray:
        result = np.zeros_like(rewards)
        for group in np.unique(groups):
            result[groups == group] = function(rewards[groups == group], **options)
        return result

    def along_tokens(row: int) -> np.ndarray:
        """The outcome on the last trained token."""
        return np.append(np.zeros(counts[row] - 1), rewards[row]) if counts[row] else np.zeros(0)

    estimates = [
        gae(along_tokens(row), values[row][trained[row]], settings["gamma"], settings["lam"])
        for row in range(len(rewards))
    ]
    returns = [discounted_returns(along_tokens(row), settings["gamma"]) for row in range(len(rewards))]
    ours = {
        "grpo": np.repeat(per_group(group_advantages), counts),
        "grpo_no_std": np.repeat(per_group(group_advantages, scale="none"), counts),
        "rloo": np.repeat(per_group(rloo_advantages), counts),
        "reinforce_plus_plus": whiten(np.concatenate(returns)),
        "reinforce_plus_plus_baseline": np.repeat(whiten(per_group(group_advantages, scale="none"), counts), counts),
        "gae": whiten(np.concatenate([advantages for advantages, _ in estimates])),
        "gae_returns": np.concatenate([targets for _, targets in estimates]),
    }
    assert ours.keys() == batch["advantages"].keys()
    for name, advantages in ours.items():
        theirs = np.array(batch["advantages"][name])[trained]
        assert advantages == pytest.approx(theirs, abs=TOLERANCE), name


@pytest.mark.parametrize("number", [0, 1])
def test_value_loss_equals_verl(number: int) -> None:
    batch = GOLDEN["verl"]["batches"][number]
    inputs = Inputs(**batch["inputs"])
    mask = inputs.tensor("mask").bool()
    leaf = inputs.tensor("logp").requires_grad_()
    old, returns = inputs.tensor("old_logp")[mask], inputs.tensor("ref_logp")[mask]
    losses = value_loss(leaf[mask], old, returns, clip=batch["settings"]["value_clip"])
    index, counts = mask.nonzero()[:, 0], mask.sum(1)
    loss = aggregate(losses, "token-mean", index, counts, int(counts.sum()), len(counts))
    loss.backward()
    theirs = (batch["value_loss"]["loss"], batch["value_loss"]["grad"])
    assert difference((loss.item(), leaf.grad.tolist()), theirs) <= TOLERANCE


@needs_trl
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("seed", [10, 11, 12])
def test_loss_and_gradient_equal_live_trl(seed: int, dtype: torch.dtype) -> None:
    import trl_oracle

    inputs = make_inputs(seed)
    for case in trl_oracle.CASES:
        ours, theirs = our_loss(case, inputs, dtype), trl_oracle.oracle_loss(case, inputs, dtype)
        assert difference(ours, theirs) <= TOLERANCE, case.name


@needs_trl
def test_the_golden_values_are_those_of_the_installed_trl() -> None:
    import trl_oracle

    for batch in GOLDEN["trl"]["batches"]:
        for case, entry in zip(trl_oracle.CASES, batch["losses"], strict=True):
            assert case == Case(**entry["case"])
            theirs = trl_oracle.oracle_loss(case, Inputs(**batch["inputs"]))
            assert difference(theirs, (entry["loss"], entry["grad"])) <= 1e-9, case.name
