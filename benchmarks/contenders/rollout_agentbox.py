"""Contender of rollout_overhead.py: agentbox-rl 0.3.0 with containers that exist in memory only.

Its sandbox is replaced, so that what is left is the orchestration: every command succeeds and prints nothing. The
`true` verifier stands for the score; the answer itself is compared here, as the other contenders do.
"""

from __future__ import annotations

import itertools
import logging
from typing import Any

from agentbox import AgentConfig, ModelConfig, ParallelRunner, SandboxConfig, Task, VerifierSpec
from agentbox.sandbox.manager import SandboxManager
from agentbox.sandbox.types import ExecResult, ImageProfile
from agentbox.tools.decorator import tool
from meter import main, questions


class MemoryBackend:
    """What a `SandboxManager` asks of Docker."""

    def __init__(self) -> None:
        self._ids = itertools.count()

    async def ensure_image(self, image: str, **_: Any) -> None:
        return None

    async def image_profile(self, image: str) -> ImageProfile:
        return ImageProfile(image, image, has_bash=True, has_python=True, has_pytest=True)

    def _labels(self, labels: dict[str, str]) -> dict[str, str]:
        return labels

    async def create_container(self, spec: Any) -> str:
        return f"memory-{next(self._ids)}"

    async def remove_container(self, container: str) -> None:
        return None

    async def put_files(self, *_: Any, **__: Any) -> None:
        return None

    async def exec(self, *_: Any, **__: Any) -> ExecResult:
        return ExecResult(0, "", "", 0.0)


@tool()
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


async def play(url: str, tools: bool, episodes: int, concurrency: int) -> int:
    verifier = VerifierSpec(type="command", command="true")
    pairs = questions(episodes)
    tasks = [Task(task_id=f"sum{i}", description=q, verifier=verifier) for i, (q, _) in enumerate(pairs)]
    answers = {f"sum{i}": f"\\boxed{{{a}}}" for i, (_, a) in enumerate(pairs)}
    runner = ParallelRunner(
        concurrency=concurrency,
        model=ModelConfig(model="fake", base_url=url, api_key="none"),
        agent=AgentConfig(tools="custom", custom_tools=[add] if tools else [], builtins=False),
        manager=SandboxManager(SandboxConfig(), backend=MemoryBackend()),  # type: ignore[arg-type]
    )
    right = 0
    async for trajectory in runner.stream(tasks):
        right += answers[trajectory.task_id] in str(trajectory.messages[-1].content)
    return right


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main(play)
