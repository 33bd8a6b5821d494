"""One episode: reset, then generate - parse - step until something ends it. Returns a `Trajectory`, never raises for
an expected end; an infrastructure failure comes back as a trajectory too.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from plugym.config import RolloutSettings
from plugym.engine import Completion, Engine, GenerateRequest, Sampling
from plugym.env import Info, Observation
from plugym.errors import Failure, InfraError, InfraKind, boundary
from plugym.message import Action, Message, ToolSpec
from plugym.rollout.handles import EnvHandle
from plugym.rollout.ledger import Ledger
from plugym.rollout.parsers import Parser
from plugym.task import Task
from plugym.trajectory import IntArray, StopReason, Trajectory, Turn


def derive_seed(*parts: object) -> int:
    """A 63-bit seed that depends on the parts alone, not on process, order or Python's hash.

    >>> derive_seed(0, "math/1", 3) == derive_seed(0, "math/1", 3) != derive_seed(0, "math/1", 4)
    True
    """
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Which episode: sample number `sample` of `task`, in group `group_id`, played under `seed`."""

    task: Task
    group_id: str
    sample: int
    seed: int

    @property
    def id(self) -> str:
        return f"{self.group_id}/{self.sample}"


@dataclass(frozen=True, slots=True)
class Player:
    """What all episodes of a source share."""

    engine: Engine
    tools: tuple[ToolSpec, ...]
    parser: Parser
    settings: RolloutSettings
    sampling: Sampling


@dataclass(slots=True)
class _State:
    """What an episode knows so far."""

    ledger: Ledger
    started: float
    turns: list[Turn] = field(default_factory=list)
    conversation: list[Message] = field(default_factory=list)
    new: Observation = ()
    context: tuple[Message, ...] | None = None
    outcome: float | None = None
    counts: Counter[str] = field(default_factory=Counter)


async def play(player: Player, env: EnvHandle, plan: Plan) -> Trajectory:
    """Play one episode. Infrastructure failures end it as `StopReason.INFRA` with the `Failure` attached."""
    engine, tools = player.engine, player.tools
    state = _State(Ledger(engine.tokenizer, tools, player.settings.history), time.monotonic())
    failure: Failure | None = None
    try:
        reason = await _loop(player, env, plan, state)
    except InfraError as error:
        failure, reason = Failure.of(error), StopReason.INFRA
    finally:
        engine.end_session(plan.id)
    return _finish(player, plan, state, reason, failure)


async def _loop(player: Player, env: EnvHandle, plan: Plan, state: _State) -> StopReason:
    settings = player.settings
    async with _deadline(settings.step_deadline, InfraKind.ENV, "reset"):
        observation, info = await env.reset(plan.seed, plan.task)
    _observe(state, observation, info)
    for number in range(settings.max_turns):
        prompt = state.ledger.prompt(state.new, state.conversation, state.context)
        budget, limit = _token_budget(player, state, prompt)
        if budget <= 0:
            return limit
        before = time.monotonic()
        completion = await _generate(player, plan, state, prompt, number, budget)
        if completion is None:
            return StopReason.DEADLINE
        action = _parse(player, completion, number)
        stream, span = state.ledger.record(completion, number)
        turn = Turn(state.new, action, stream=stream, span=span, latency=time.monotonic() - before)
        ended = await _step(player, env, state, turn)
        cut = completion.finish == "length"
        state.counts["truncated_turns"] += cut
        if ended is not None:
            return StopReason.TURN_LENGTH if cut and ended is StopReason.ENV_DONE else ended
    return StopReason.MAX_TURNS


@asynccontextmanager
async def _deadline(seconds: float, kind: InfraKind, what: str) -> AsyncIterator[None]:
    """Running over, or raising, is an infrastructure failure of `kind`."""
    with boundary(kind, what):
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise TimeoutError(f"no answer within {seconds:g} s") from error


def _observe(state: _State, observation: Observation, info: Info) -> None:
    state.new = tuple(observation)
    state.conversation.extend(observation)
    state.context = tuple(info["context"]) if info.get("context") is not None else None
    state.counts.update(info.get("counts", {}))
    if info.get("outcome") is not None:
        state.outcome = float(info["outcome"])


def _token_budget(player: Player, state: _State, prompt: IntArray | None) -> tuple[int, StopReason]:
    """How many tokens the next turn may sample, and which limit it is that binds when there are none."""
    settings, ledger = player.settings, state.ledger
    response = ledger.response_tokens
    if prompt is not None and state.turns and state.context is None:
        # What the environment just said counts as response too, from the second turn on.
        response += max(len(prompt) - ledger.stream_length, 0)
    limits = [
        (settings.max_turn_tokens, StopReason.TURN_LENGTH),
        (settings.max_response_tokens - response, StopReason.RESPONSE_LENGTH),
    ]
    context = player.engine.capabilities.max_context
    if prompt is not None and context is not None:
        limits.append((context - len(prompt), StopReason.CONTEXT_OVERFLOW))
    return min(limits, key=lambda limit: limit[0])


async def _generate(
    player: Player, plan: Plan, state: _State, prompt: IntArray | None, number: int, budget: int
) -> Completion | None:
    """The next completion; None when the episode's deadline passed with at least one turn sampled."""
    settings = player.settings
    left = settings.episode_deadline - (time.monotonic() - state.started)
    if left <= 0 and state.turns:
        return None
    request = GenerateRequest(
        prompt_ids=prompt,
        messages=state.context or tuple(state.conversation),
        tools=player.tools,
        sampling=dataclasses.replace(player.sampling, max_tokens=budget),
        seed=derive_seed(plan.seed, plan.sample, number),
        session=plan.id,
    )
    try:
        async with _deadline(max(min(left, settings.generate_deadline), 0.0), InfraKind.ENGINE, "generate"):
            return await player.engine.generate(request)
    except InfraError as error:
        if isinstance(error.__cause__, TimeoutError) and left <= settings.generate_deadline and state.turns:
            return None
        raise


def _parse(player: Player, completion: Completion, number: int) -> Action:
    if completion.message is not None:  # the server split reasoning and calls itself
        message = completion.message
        return Action(message.text, message.reasoning, message.tool_calls, completion.text)
    return player.parser.parse(completion.text, number)


async def _step(player: Player, env: EnvHandle, state: _State, turn: Turn) -> StopReason | None:
    """Let the environment answer; files the turn and returns the reason when the episode ends here."""
    action = turn.action
    state.conversation.append(action.message())
    async with _deadline(player.settings.step_deadline, InfraKind.ENV, "step"):
        observation, reward, terminated, truncated, info = await env.step(action)
    observation = _answer_all(action, observation, state.counts)
    state.turns.append(
        dataclasses.replace(
            turn,
            env_reward=float(reward),
            anchor=info.get("anchor"),
            executed_calls=int(info.get("executed_calls", 0)),
            successful_calls=int(info.get("successful_calls", 0)),
        )
    )
    state.counts["tool_calls"] += len(action.tool_calls)
    state.counts["unparsable_calls"] += sum(call.error is not None for call in action.tool_calls)
    _observe(state, observation, info)
    if terminated:
        return StopReason.AGENT_ERROR if info.get("agent_error") else StopReason.ENV_DONE
    return StopReason.ENV_TRUNCATED if truncated else None


def _answer_all(action: Action, observation: Observation, counts: Counter[str]) -> Observation:
    """Exactly one tool message per parsed call, also where the environment did not answer one."""
    calls = [call.id for call in action.tool_calls if call.error is None]
    answered = {message.tool_call_id for message in observation if message.role == "tool"}
    missing = [call for call in calls if call not in answered]
    counts["unanswered_calls"] += len(missing)
    extra = tuple(Message("tool", "Error: the call was not executed.", tool_call_id=call) for call in missing)
    return (*extra, *observation)


def _finish(player: Player, plan: Plan, state: _State, reason: StopReason, failure: Failure | None) -> Trajectory:
    ledger, counts = state.ledger, state.counts
    counts["stream_breaks"] += ledger.breaks
    counts["drift_tokens"] += ledger.drift_tokens
    counts["executed_calls"] += sum(turn.executed_calls for turn in state.turns)
    counts["successful_calls"] += sum(turn.successful_calls for turn in state.turns)
    return Trajectory(
        id=plan.id,
        task=plan.task,
        group_id=plan.group_id,
        turns=tuple(state.turns),
        streams=ledger.streams() if failure is None else (),
        outcome=state.outcome,
        stop_reason=reason,
        failure=failure,
        counts=dict(counts),
        closing=state.new,
        level=str(player.engine.capabilities.level),
    )
