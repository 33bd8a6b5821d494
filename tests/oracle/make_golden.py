"""Write tests/data/oracle_{trl,verl}.json: losses and gradients of other libraries on small random batches.

CI compares plugym.functional with these files, so that it needs neither library. Run once per library and
version in a venv that has it beside this project (see `trl_oracle.py`, `verl_oracle.py`):

    python tests/oracle/make_golden.py trl
    python tests/oracle/make_golden.py verl

Everything is computed in float64 and written with 12 digits.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from golden_cases import make_inputs

DATA = Path(__file__).resolve().parents[1] / "data"
SEEDS = (0, 1)
GROUPS = [0, 0, 1, 0, 2]
"""Group of each trajectory in the advantage vectors: one of three, of which one has no trained token, and two
of one."""


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value


def golden(library: str) -> dict[str, Any]:
    """What the file of `library` ('trl' or 'verl') holds."""
    oracle = import_module(f"{library}_oracle")
    batches = []
    for seed in SEEDS:
        inputs = make_inputs(seed)
        losses = []
        for case in oracle.CASES:
            loss, gradient = oracle.oracle_loss(case, inputs)
            losses.append({"case": asdict(case), "loss": loss, "grad": gradient})
        batch: dict[str, Any] = {"inputs": inputs.to_json(), "losses": losses}
        if library == "verl":
            batch["groups"] = GROUPS
            batch["advantages"] = oracle.oracle_advantages(inputs, GROUPS)
            loss, gradient = oracle.oracle_value_loss(inputs)
            batch["value_loss"] = {"loss": loss, "grad": gradient}
            batch["settings"] = {"gamma": oracle.GAMMA, "lam": oracle.LAM, "value_clip": oracle.VALUE_CLIP}
        batches.append(batch)
    return {"source": oracle.SOURCE, "torch": torch.__version__, "batches": _rounded(batches)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=["trl", "verl"])
    library = parser.parse_args().library
    target = DATA / f"oracle_{library}.json"
    # One line per case: a readable diff when a version changes something.
    text = json.dumps(golden(library), separators=(",", ":")).replace('{"case"', '\n{"case"')
    target.write_text(text + "\n")
    print(f"wrote {target} ({target.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
