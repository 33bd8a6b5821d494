"""Policies that are no model: an environment's own winner, random actions, silence.

They sit where an engine sits, so that the episodes they play are played, scored and counted like any other. They set
the scale for a model: what can be won, and what is won by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from plugym.engine import Capabilities, Completion, Engine, EngineConfig, GenerateRequest, Level
from plugym.env import AnyEnv, Oracle, Policy
from plugym.errors import BadInput
from plugym.message import Action
from plugym.spaces import AgentAction
from plugym.task import Task, Taskset

PolicyName = Literal["model", "expert", "random", "noop"]
POLICIES: Sequence[PolicyName] = ("model", "expert", "random", "noop")

Act = Callable[[GenerateRequest], Action]


class PolicyEngine(Engine):
    """Answers each request with what `act` does, tool calls as they are and not as text to be parsed again.

    >>> import asyncio
    >>> engine = PolicyEngine(lambda request: Action.of("42"))
    >>> asyncio.run(engine.generate(GenerateRequest(messages=()))).text
    '42'
    """

    def __init__(self, act: Act, forget: Callable[[str], None] = lambda session: None) -> None:
        super().__init__(EngineConfig())
        self._act = act
        self._forget = forget

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Level.TEXT, images=True)

    async def generate(self, request: GenerateRequest) -> Completion:
        action = self._act(request)
        return Completion(action.raw or action.text, message=action.message())

    def end_session(self, session: str) -> None:
        self._forget(session)


def policy_engine(name: PolicyName, env: AnyEnv, tasks: Taskset) -> PolicyEngine:
    """The engine of a policy by name. Raises `BadInput` for an expert where the environment has none."""
    if name == "expert":
        if not isinstance(env, Oracle):
            raise BadInput(f"{type(env).__name__} has no expert: choose --policy model, random or noop")
        experts = _Experts(env, {task.id: task for task in tasks})
        return PolicyEngine(experts.act, experts.forget)
    if name == "random":
        return PolicyEngine(_random(env))
    return PolicyEngine(lambda request: Action())


class _Experts:
    """One expert per running episode; a session is `<purpose>:<position>:<task id>/<sample>`."""

    def __init__(self, oracle: Oracle, tasks: Mapping[str, Task]) -> None:
        self._oracle = oracle
        self._tasks = tasks
        self._playing: dict[str, Policy] = {}

    def act(self, request: GenerateRequest) -> Action:
        session = request.session
        if session not in self._playing:
            group = session.rpartition("/")[0]
            self._playing[session] = self._oracle.oracle(self._tasks[group.split(":", 2)[2]])
        return self._playing[session].act(request.messages or (), request.tools)

    def forget(self, session: str) -> None:
        self._playing.pop(session, None)


def _random(env: AnyEnv) -> Act:
    """Actions drawn from the environment's action space, by the seed of the request."""
    space = getattr(env, "action_space", None) or AgentAction(tuple(tool.name for tool in env.tools()))

    def act(request: GenerateRequest) -> Action:
        space.seed(request.seed)
        action: Action = space.sample()
        return action

    return act
