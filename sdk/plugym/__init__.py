"""plugym: agentic environments, rewards and RL algorithms as plugins. This is what a plugin author imports.

Names are loaded on first use, so that `import plugym` costs little and pulls in no torch. Importing it registers every
installed environment plugin with gymnasium (from metadata; the plugins themselves are not imported). The decorator
`@reward` is imported from `plugym.reward`, because that name at the top level is the module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from plugym.registration import register_envs

if TYPE_CHECKING:
    from plugym.algorithm import Advantage, Algorithm, AlgorithmConfig, Aux, Limits, LossOutput, Need, TokenBatch
    from plugym.checker import Checker, CheckerConfig
    from plugym.engine import Completion, Engine, GenerateRequest
    from plugym.env import AgentEnv, AsyncAgentEnv, EnvConfig, Evolvable, Oracle, Snapshots
    from plugym.errors import BadInput, InfraError, PlugymError
    from plugym.hooks import hookimpl
    from plugym.learner import Learner
    from plugym.message import Action, ImagePart, Message, TextPart, ToolCall, ToolSpec
    from plugym.reward import Composite, RewardConfig, RewardProvider, Score, TrainableReward
    from plugym.source import TrajectorySource
    from plugym.task import Check, Task, Taskset
    from plugym.tools import Tool, ToolEnv, ToolEnvConfig, tool
    from plugym.trajectory import Group, ScoredGroup, StopReason, TokenStream, Trajectory, Turn

__version__ = "0.1.0"

_HOME = {
    "algorithm": "Advantage Algorithm AlgorithmConfig Aux Limits LossOutput Need TokenBatch",
    "checker": "Checker CheckerConfig",
    "engine": "Completion Engine GenerateRequest",
    "env": "AgentEnv AsyncAgentEnv EnvConfig Evolvable Oracle Snapshots",
    "errors": "BadInput InfraError PlugymError",
    "hooks": "hookimpl",
    "learner": "Learner",
    "message": "Action ImagePart Message TextPart ToolCall ToolSpec",
    "reward": "Composite RewardConfig RewardProvider Score TrainableReward",
    "source": "TrajectorySource",
    "task": "Check Task Taskset",
    "tools": "Tool ToolEnv ToolEnvConfig tool",
    "trajectory": "Group ScoredGroup StopReason TokenStream Trajectory Turn",
}
_MODULE_OF = {name: f"plugym.{module}" for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "Action",
    "Advantage",
    "AgentEnv",
    "Algorithm",
    "AlgorithmConfig",
    "AsyncAgentEnv",
    "Aux",
    "BadInput",
    "Check",
    "Checker",
    "CheckerConfig",
    "Completion",
    "Composite",
    "Engine",
    "EnvConfig",
    "Evolvable",
    "GenerateRequest",
    "Group",
    "ImagePart",
    "InfraError",
    "Learner",
    "Limits",
    "LossOutput",
    "Message",
    "Need",
    "Oracle",
    "PlugymError",
    "RewardConfig",
    "RewardProvider",
    "Score",
    "ScoredGroup",
    "Snapshots",
    "StopReason",
    "Task",
    "Taskset",
    "TextPart",
    "TokenBatch",
    "TokenStream",
    "Tool",
    "ToolCall",
    "ToolEnv",
    "ToolEnvConfig",
    "ToolSpec",
    "TrainableReward",
    "Trajectory",
    "TrajectorySource",
    "Turn",
    "hookimpl",
    "tool",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'plugym' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


register_envs()
