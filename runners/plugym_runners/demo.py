"""`make demo`: the recipe `demo`, with its result as one JSON line.

Prints {"eval_before", "eval_after", "held_out_pairs", "seconds"} as the last line of stdout; progress is on stderr.
"""

from __future__ import annotations

import json
import sys

from plugym.config import Layers, file_layer
from plugym.errors import PlugymError
from plugym.registry import registry, validate_settings
from plugym_runners.recipes import recipe_path

EXPECTED_BASE = 0.35
"""Above this the starting model already knows the task, and the demonstration shows less than it claims."""


def main() -> int:
    layers = Layers()
    layers.add(file_layer(recipe_path("demo")), "recipe demo")
    spec = layers.spec()
    runner_class = registry().load("runners", spec.backend.name)
    runner = runner_class(spec, validate_settings(runner_class.Config, spec.train, prefix="--train."))
    held_out = _held_out_pairs(registry().create("envs", spec.env.name, spec.env.settings))
    try:
        outcome = runner.train()
    except PlugymError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if outcome["eval_before"] > EXPECTED_BASE:
        print(f"note: the base model already scores {outcome['eval_before']:.2f}", file=sys.stderr)
    print(
        json.dumps(
            {
                "eval_before": outcome["eval_before"],
                "eval_after": outcome["eval_after"],
                "held_out_pairs": held_out,
                "seconds": outcome["seconds"],
            }
        )
    )
    return 0


def _held_out_pairs(env: object) -> int:
    """Operand pairs of the evaluation split, after checking that none of them, commuted or not, is trained on."""
    held, trained = ({tuple(t.data["operands"]) for t in env.tasks(split)} for split in ("eval", "train"))  # type: ignore[attr-defined]
    leaked = {pair for pair in held if pair in trained or pair[::-1] in trained}
    if leaked:
        raise PlugymError(f"{len(leaked)} held-out pairs are in the training split, such as {sorted(leaked)[0]}")
    return len(held)


if __name__ == "__main__":
    sys.exit(main())
