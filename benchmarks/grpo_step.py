"""CPU seconds of one local GRPO step: rollouts, rewards, loss and update of the same model, beside TRL 1.16.

Both play `--groups` questions of single-digit sums, 8 samples each, at most `--tokens` tokens at temperature 1, without
KL, and make one AdamW update in float32 on one thread, without gradient checkpointing. The reward is a hash of the
completion's text: it costs nothing and always differs within a group, so that no contender can leave a group out. CPU
seconds are the process's, from one step's end to the next; the first step warms up, the figure is the median of the
others. Goal: half of TRL's; floor: no more than TRL's.

    python benchmarks/grpo_step.py --peer-python /path/to/peers/bin/python [--model smollm2] [--method lora]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from common import contend, parser, report

from plugym.registry import registry
from plugym_runners.local.models import ensure, resolve_model


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--model", default="tiny", help="tiny, smollm2, or anything plugym can load")
    options.add_argument("--method", default="full", choices=["full", "lora"])
    options.add_argument("--groups", type=int, default=2, help="questions per step")
    options.add_argument("--tokens", type=int, default=32, help="at most, per completion")
    options.add_argument("--steps", type=int, default=4, help="with the first, which warms up")
    chosen = options.parse_args()
    env = registry().create("envs", "math", {})
    prompts = [env.reset(seed=0, options={"task": task})[0] for task in env.tasks("train").take(64)]
    with tempfile.TemporaryDirectory() as folder:
        setup = {
            "folder": folder,
            "model": chosen.model,
            "path": str(ensure(resolve_model(chosen.model))),
            "prompts": [[{"role": m.role, "content": m.text} for m in messages] for messages in prompts],
            **{name: getattr(chosen, name) for name in ("method", "groups", "tokens", "steps")},
        }
        work = Path(folder, "setup.json")
        work.write_text(json.dumps(setup))
        results = {
            "plugym": contend(sys.executable, "step_plugym.py", work),
            "trl": contend(chosen.peer_python, "step_trl.py", work, needs="trl"),
        }
    settings = {name: getattr(chosen, name) for name in ("model", "method", "groups", "tokens", "steps")}
    report("grpo_step", results, group_size=8, **settings)


if __name__ == "__main__":
    main()
