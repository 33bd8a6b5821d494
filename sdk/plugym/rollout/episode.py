"""One episode: reset, then generate - parse - step until something ends it. Returns a `Trajectory`, never raises for
an expected end; an infrastructure failure comes back as a trajectory too. What the environment gave back is checked
inside the same boundary that its exceptions pass, so that a malformed answer counts as the environment's failure.
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
from plugym.message import Action, Message, ToolCall, ToolSpec
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
    state = _State(Ledger(player.engine.tokenizer, player.tools, player.settings.history), time.monotonic())
    failure: Failure | None = None
    try:
        with boundary(InfraKind.INTERNAL, "episode"):
            reason = await _loop(player, env, plan, state)
    except InfraError as error:
        failure, reason = Failure.of(error), StopReason.INFRA
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
        if completion.finish == "overflow":
            return StopReason.CONTEXT_OVERFLOW
        action = _parse(player, completion, number)
        stream, span = state.ledger.record(completion, number)
        turn = Turn(state.new, action, stream=stream, span=span, latency=time.monotonic() - before)
        ended = await _step(player, env, state, turn)
        cut = completion.finish == "length"
        state.counts["truncated_turns"] += cut
        if ended is not None:
            return limit if cut and ended is StopReason.ENV_DONE else ended
    return StopReason.MAX_TURNS


@asynccontextmanager
async def _deadline(seconds: float, kind: InfraKind, what: str) -> AsyncIterator[asyncio.Timeout]:
    """Running over, or raising, is an infrastructure failure of `kind`. `expired()` tells our deadline from a
    time-out that the body ran into itself."""
    with boundary(kind, what):
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                yield timeout
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise TimeoutError(f"no answer within {seconds:g} s") from error


def _observe(state: _State, observation: Observation, info: Info) -> None:
    """Take in what the environment said. Raises `TypeError` when it is not what the contract asks for."""
    if not all(isinstance(message, Message) for message in observation):
        raise TypeError(f"an observation is a tuple of Messages, got {type(observation).__name__} {observation!r:.80}")
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
    if left <= 0:
        if state.turns:
            return None
        # Nothing but the reset can have taken the time.
        raise InfraError(InfraKind.ENV, f"reset: took the whole episode deadline of {settings.episode_deadline:g} s")
    request = GenerateRequest(
        prompt_ids=prompt,
        messages=tuple(state.conversation) if state.context is None else state.context,
        tools=player.tools,
        media=state.ledger.media,
        sampling=dataclasses.replace(player.sampling, max_tokens=budget),
        seed=derive_seed(plan.seed, plan.sample, number),
        session=plan.id,
    )
    timeout: asyncio.Timeout | None = None
    try:
        async with _deadline(min(left, settings.generate_deadline), InfraKind.ENGINE, "generate") as timeout:
            return await player.engine.generate(request)
    except InfraError:
        # The episode's own deadline ends it where something was sampled; the server's is an infrastructure failure.
        if timeout is not None and timeout.expired() and left <= settings.generate_deadline and state.turns:
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
        turn = dataclasses.replace(
            turn,
            env_reward=float(reward),
            anchor=info.get("anchor"),
            executed_calls=int(info.get("executed_calls", 0)),
            successful_calls=int(info.get("successful_calls", 0)),
        )
        _observe(state, observation, info)
    state.turns.append(turn)
    state.counts["tool_calls"] += len(action.tool_calls)
    state.counts["unparsable_calls"] += sum(call.error is not None for call in action.tool_calls)
    if terminated:
        return StopReason.AGENT_ERROR if info.get("agent_error") else StopReason.ENV_DONE
    return StopReason.ENV_TRUNCATED if truncated else None


def _answer_all(action: Action, observation: Observation, counts: Counter[str]) -> Observation:
    """Exactly one tool message per call, in the order of the calls, also where the environment did not answer one or
    answered twice; what else it said follows."""
    answers: dict[str | None, Message] = {}
    rest: list[Message] = []
    calls = {call.id: call for call in action.tool_calls}
    for message in observation:
        if message.role != "tool" or message.tool_call_id not in calls:
            rest.append(message)
        elif message.tool_call_id in answers:
            counts["surplus_answers"] += 1
        else:
            answers[message.tool_call_id] = message
    counts["unanswered_calls"] += len(calls) - len(answers)
    return (*(answers.get(call.id) or _not_executed(call) for call in calls.values()), *rest)


def _not_executed(call: ToolCall) -> Message:
    problem = f"it could not be parsed: {call.error}" if call.error else "the call was not executed"
    return Message("tool", f"Error: {problem}.", tool_call_id=call.id)


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
