"""The `math` environment: one problem, one answer, and a calculator where it is asked for.

| module | what is in it |
|---|---|
| `env` | `MathEnv`: settings, prompts, episodes |
| `procedural` | the built-in problems and which of them are never trained on |
| `data` | problems from a JSONL file |
| `calculator` | the `calculator` tool |

Whether an answer is right is decided by the check that a task names, never here.
"""

from __future__ import annotations

from .calculator import Calculator
from .env import MathConfig, MathEnv

__all__ = ["Calculator", "MathConfig", "MathEnv"]
