"""How one episode ends, which kind of failure is which, and what the environment is allowed to do wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from puppets import ALIVE, RELEASE, AsyncPuppet, DiaryEngine, InlinePuppet, Puppet, kind_of, one, task, wait_until

from plugym.engine import GenerateRequest
from plugym.env import AnyEnv, StepResult
from plugym.errors import InfraError, InfraKind, boundary
from plugym.message import Action
from plugym.reward import Score, check_scores, reward
from plugym.testing import CharTokenizer
from plugym.trajectory import Status, StopReason, Trajectory


@pytest.fixture(autouse=True)
def _fresh_puppets() -> Iterator[None]:
    RELEASE.clear()
    ALIVE.clear()
    yield
    RELEASE.set()


def raises(error: Exception, after: int = 0) -> Callable[[GenerateRequest], Any]:
    """An engine that answers `after` turns and then raises."""
    served = [0]

    async def before(request: GenerateRequest) -> None:
        served[0] += 1
        if served[0] > after:
            raise error

    return before


def hangs(after: int = 0) -> Callable[[GenerateRequest], Any]:
    """An engine that answers `after` turns and then never again."""
    served = [0]

    async def before(request: GenerateRequest) -> None:
        served[0] += 1
        if served[0] > after:
            await asyncio.sleep(60)

    return before


# Ends


def test_the_turn_limit() -> None:
    trajectory = one(InlinePuppet, DiaryEngine(), task("a", turns=9), max_turns=3)
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.MAX_TURNS, 3)
    assert trajectory.closing, "the environment's last answer is kept"


@pytest.mark.parametrize("turns", [1, 7])
def test_an_overflowing_context_is_a_counted_stop_reason(turns: int) -> None:
    """On turn 1 the prompt does not fit at all; on turn 7 the conversation has grown too long."""
    engine = DiaryEngine(lambda request, turn: "12345678")
    lengths = [len(r.prompt_ids) for r in _requests(one(InlinePuppet, engine, task("a", turns=9)), engine)]
    engine = DiaryEngine(lambda request, turn: "12345678", max_context=lengths[turns - 1])
    trajectory = one(InlinePuppet, engine, task("a", turns=9))
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.CONTEXT_OVERFLOW, turns - 1)
    assert trajectory.status is Status.TRUNCATED
    assert max((len(stream) for stream in trajectory.streams), default=0) <= lengths[turns - 1]


def _requests(trajectory: Trajectory, engine: DiaryEngine) -> list[Any]:
    return [request for request in engine.requests if request.session == trajectory.id]


def test_a_prompt_that_never_fitted_is_unscored_not_wrong() -> None:
    trajectory = one(InlinePuppet, DiaryEngine(max_context=5), task("a"))
    assert trajectory.turns == ()
    assert trajectory.streams == ()
    provider = reward(lambda trajectory: 0.0)()
    group = _group_of(trajectory)
    (score,) = check_scores("r", provider, group, [Score(0.0)])
    assert score.value is None


def _group_of(trajectory: Trajectory) -> Any:
    from plugym.trajectory import Group

    return Group(trajectory.group_id, trajectory.task, (trajectory,))


def test_a_completion_never_exceeds_what_is_left_of_each_limit() -> None:
    engine = DiaryEngine(lambda request, turn: "x" * 50)
    trajectory = one(InlinePuppet, engine, task("a", turns=9), max_turn_tokens=8, max_response_tokens=40)
    assert trajectory.stop_reason is StopReason.RESPONSE_LENGTH
    assert trajectory.response_tokens(observations=True) <= 40
    assert all(turn.span[1] - turn.span[0] <= 8 for turn in trajectory.turns)
    assert trajectory.counts["truncated_turns"] == len(trajectory.turns)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_turn_tokens": 5}, StopReason.TURN_LENGTH),
        ({"max_response_tokens": 5}, StopReason.RESPONSE_LENGTH),
        ({"max_turn_tokens": 50}, StopReason.ENV_DONE),
    ],
)
def test_a_cut_final_answer_names_the_limit_that_cut_it(limits: dict[str, int], reason: StopReason) -> None:
    engine = DiaryEngine(lambda request, turn: "a long answer")
    assert one(InlinePuppet, engine, task("a"), **limits).stop_reason is reason


def test_a_cut_final_answer_at_the_end_of_the_context() -> None:
    engine = DiaryEngine(lambda request, turn: "a long answer")
    prompt = len(_requests(one(InlinePuppet, engine, task("a")), engine)[0].prompt_ids)
    engine = DiaryEngine(lambda request, turn: "a long answer", max_context=prompt + 4)
    assert one(InlinePuppet, engine, task("a")).stop_reason is StopReason.CONTEXT_OVERFLOW


class _Refuses(InlinePuppet):
    def step(self, action: Action) -> StepResult:
        return (), 0.0, True, False, {"agent_error": True, "counts": {"bans": 2}, "outcome": 0.25}


class _Cuts(InlinePuppet):
    def step(self, action: Action) -> StepResult:
        return (), 0.0, False, True, {"counts": {"bans": 2}}


def test_what_the_environment_says_about_the_end() -> None:
    refused = one(_Refuses, DiaryEngine(), task("a"))
    assert (refused.stop_reason, refused.status) == (StopReason.AGENT_ERROR, Status.AGENT_ERROR)
    assert (refused.outcome, refused.counts["bans"]) == (0.25, 2)
    cut = one(_Cuts, DiaryEngine(), task("a"))
    assert (cut.stop_reason, cut.status, cut.outcome) == (StopReason.ENV_TRUNCATED, Status.TRUNCATED, None)


# Deadlines


@pytest.mark.parametrize("env", [Puppet, AsyncPuppet])
@pytest.mark.parametrize("when", ["reset", "at1"])
def test_an_environment_that_hangs_is_an_env_failure(env: type[AnyEnv], when: str) -> None:
    trajectory = one(env, DiaryEngine(), task("a", turns=3, **{when: "hang"}), step_deadline=0.2)
    assert kind_of(trajectory) == "env"
    assert trajectory.failure is not None
    assert "no answer within 0.2 s" in trajectory.failure.message
    RELEASE.set()
    assert wait_until(lambda: not +ALIVE), "it is closed as soon as it lets go"


@pytest.mark.parametrize("limit", ["generate_deadline", "episode_deadline"])
def test_a_server_that_never_answered_is_infra_and_never_scored(limit: str) -> None:
    trajectory = one(InlinePuppet, DiaryEngine(before=hangs()), task("a"), **{limit: 0.1})
    assert kind_of(trajectory) == "engine"
    (score,) = check_scores("r", reward(lambda t: 1.0)(), _group_of(trajectory), [Score(1.0)])
    assert score.value is None


def test_the_episode_deadline_after_a_sampled_turn_is_a_stop_reason() -> None:
    trajectory = one(InlinePuppet, DiaryEngine(before=hangs(after=2)), task("a", turns=9), episode_deadline=0.5)
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.DEADLINE, 2)
    assert trajectory.status is Status.TRUNCATED
    assert trajectory.trained_tokens > 0


def test_the_servers_deadline_is_infra_also_after_a_sampled_turn() -> None:
    trajectory = one(InlinePuppet, DiaryEngine(before=hangs(after=2)), task("a", turns=9), generate_deadline=0.2)
    assert kind_of(trajectory) == "engine"


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_time_out_of_the_engines_own_is_infra_not_the_episodes_deadline(wrapped: bool) -> None:
    """The engine's connection timed out long before any deadline of ours."""
    error: Exception = TimeoutError("connect timed out")
    if wrapped:
        try:
            with boundary(InfraKind.ENGINE, "POST"):
                raise error
        except InfraError as caught:
            error = caught
    engine = DiaryEngine(before=raises(error, after=1))
    trajectory = one(InlinePuppet, engine, task("a", turns=9), episode_deadline=50, generate_deadline=60)
    assert kind_of(trajectory) == "engine"
    assert trajectory.failure is not None
    assert "connect timed out" in trajectory.failure.message


def test_a_reset_that_takes_the_whole_episode_is_the_environments_doing() -> None:
    class Slow(AsyncPuppet):
        async def reset(self, **options: Any) -> Any:
            await asyncio.sleep(0.1)
            return await super().reset(**options)

    assert kind_of(one(Slow, DiaryEngine(), task("a"), episode_deadline=0.05)) == "env"


def test_the_environments_own_time_out_keeps_its_message() -> None:
    trajectory = one(Puppet, DiaryEngine(), task("a", at0="timeout"))
    assert kind_of(trajectory) == "env"
    assert trajectory.failure is not None
    assert trajectory.failure.message == "step: TimeoutError: the game server did not answer"
    assert trajectory.failure.retryable


# Kinds of failure


@pytest.mark.parametrize("env", [Puppet, InlinePuppet, AsyncPuppet])
@pytest.mark.parametrize("when", ["reset", "at0", "at1"])
@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("raise", "env", "ValueError: boom"),
        ("exit", "env", "SystemExit: 3"),
        ("stop", "env", "StopIteration"),
        ("sandbox", "sandbox", "the sandbox is gone"),
        ("garbage", "env", "unpack"),
    ],
)
def test_what_an_environment_raises_is_classified(
    env: type[AnyEnv], when: str, what: str, kind: str, message: str
) -> None:
    trajectory = one(env, DiaryEngine(), task("a", turns=3, **{when: what}))
    assert kind_of(trajectory) == kind
    assert trajectory.failure is not None
    assert message in trajectory.failure.message
    assert trajectory.streams == (), "nothing of it can be trained on"
    assert wait_until(lambda: not +ALIVE), "a failed instance is closed"


@pytest.mark.parametrize(
    "answer",
    [
        (None, 0.0, True, False, {}),
        ("text", 0.0, True, False, {}),
        (({"role": "user", "content": "x"},), 0.0, True, False, {}),
        ((), "much", True, False, {}),
        ((), 0.0, True, False, None),
        ((), 0.0, True, False, {"outcome": "won"}),
        ((), 0.0, True, False, {"counts": 3}),
        ((), 0.0, True, False, {"executed_calls": "two"}),
    ],
)
def test_a_malformed_answer_is_the_environments_failure(answer: Any) -> None:
    class Malformed(InlinePuppet):
        def step(self, action: Action) -> StepResult:
            result: StepResult = answer
            return result

    assert kind_of(one(Malformed, DiaryEngine(), task("a"))) == "env"


def test_a_failure_says_the_plugin_authors_own_line() -> None:
    trajectory = one(Puppet, DiaryEngine(), task("a", reset="raise"))
    assert trajectory.failure is not None
    assert "puppets.py" in trajectory.failure.where
    assert trajectory.failure.where.endswith("in misbehave")


def test_our_own_mistakes_are_internal() -> None:
    class Broken(CharTokenizer):
        def encode(self, text: str) -> list[int]:
            raise KeyError(text[:3])

    assert kind_of(one(InlinePuppet, DiaryEngine(tokenizer=Broken()), task("a"))) == "internal"
