"""How one episode ends, which kind of failure is which, and what the environment is allowed to do wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from puppets import ALIVE, RELEASE, AsyncPuppet, DiaryEngine, InlinePuppet, Puppet, driver, play, task, wait_until

from plugym.engine import Completion, GenerateRequest, Level
from plugym.env import AnyEnv, StepResult
from plugym.errors import InfraError, InfraKind, boundary
from plugym.message import Action, Message, ToolCall
from plugym.reward import Score, check_scores, reward
from plugym.task import Task, Taskset
from plugym.testing import CharTokenizer
from plugym.tools import ToolEnv, tool
from plugym.trajectory import Status, StopReason, Trajectory


@pytest.fixture(autouse=True)
def _fresh_puppets() -> Iterator[None]:
    RELEASE.clear()
    ALIVE.clear()
    yield
    RELEASE.set()


def one(env: type[AnyEnv], engine: DiaryEngine, about: Task, **changes: Any) -> Trajectory:
    """Play one episode."""
    (group,) = play(driver(env, engine, same_failure_limit=99, **changes), [about])
    (trajectory,) = group.trajectories
    return trajectory


def kind_of(trajectory: Trajectory) -> str:
    assert trajectory.failure is not None
    assert trajectory.status is Status.INFRA_FAILED
    return str(trajectory.failure.kind)


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


# Tool calls


class Tools(ToolEnv):
    """`add` and `fail`; the episode ends with the first answer."""

    isolation = "inline"
    order: ClassVar[list[str]] = []

    @tool
    def add(self, a: int, b: int = 0) -> int:
        """Add."""
        self.order.append(f"{a}+{b}")
        return a + b

    @tool
    def fail(self) -> str:
        """Fail."""
        raise RuntimeError("no luck")

    @tool
    def sandbox(self) -> str:
        """Lose the sandbox."""
        raise InfraError(InfraKind.SANDBOX, "gone")

    def tasks(self, split: str) -> Taskset:
        return Taskset([Task("t")])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        return (Message("user", "go"),), {}

    def answer(self, action: Action) -> StepResult:
        return (), 0.0, True, False, {}


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def says(*lines: str, **options: Any) -> DiaryEngine:
    return DiaryEngine(lambda request, turn: lines[min(turn, len(lines) - 1)], **options)


def answered_once(trajectory: Trajectory) -> list[list[str]]:
    """Checks the invariant for every turn; returns the texts of the answers."""
    texts = []
    later = [*(turn.messages for turn in trajectory.turns[1:]), trajectory.closing]
    for turn, following in zip(trajectory.turns, later, strict=True):
        answers = [message for message in following if message.role == "tool"]
        assert [message.tool_call_id for message in answers] == [c.id for c in turn.action.tool_calls]
        texts.append([message.text for message in answers])
    return texts


def test_parallel_calls_run_in_order_and_each_has_its_message() -> None:
    Tools.order.clear()
    engine = says(call("add", '{"a": 1, "b": 2}') + call("fail", "{}") + call("add", '{"a": 5}'), "done")
    trajectory = one(Tools, engine, task("a"))
    assert answered_once(trajectory) == [["3", "Error: RuntimeError: no luck", "5"], []]
    assert Tools.order == ["1+2", "5+0"]
    assert trajectory.executed_calls == 3
    assert trajectory.counts["tool_calls"] == trajectory.counts["executed_calls"] == 3
    assert trajectory.counts["successful_calls"] == 2
    ids = [c.id for turn in trajectory.turns for c in turn.action.tool_calls]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("written", "reply"),
    [
        ("<tool_call>{oops}</tool_call>", "could not be parsed"),
        ("<tool_call>[1]</tool_call>", "could not be parsed"),
        ('<tool_call>{"name": "add", "arguments": [', "could not be parsed"),
        (call("add", '{"a": "\\ud800"}'), "could not be parsed"),
        (call("divide", "{}"), "there is no tool 'divide'. Tools: add, fail, sandbox"),
        (call("add", "{}"), "bad arguments for add: a: Missing"),
        (call("add", '{"a": "x"}'), "bad arguments for add: a:"),
        (call("add", '{"a": 1, "c": 2}'), "bad arguments for add: c:"),
        (call("add", '{"self": 1, "a": 1}'), "bad arguments for add"),
        (call("__init__", "{}"), "there is no tool '__init__'"),
        (call("reset", "{}"), "there is no tool 'reset'"),
    ],
)
def test_mistakes_come_back_to_the_model_and_the_episode_goes_on(written: str, reply: str) -> None:
    trajectory = one(Tools, says(written, "done"), task("a"))
    assert trajectory.stop_reason is StopReason.ENV_DONE
    assert len(trajectory.turns) == 2
    ((text,), _) = answered_once(trajectory)
    assert reply in text
    assert trajectory.counts["tool_calls"] == 1
    assert trajectory.executed_calls == 0, "a refused call is not an executed one"


def test_a_lost_sandbox_is_not_a_tool_error() -> None:
    assert kind_of(one(Tools, says(call("sandbox", "{}")), task("a"))) == "sandbox"


@pytest.mark.parametrize("limits", [{"max_turns": 1}, {"max_response_tokens": 90}])
def test_calls_of_a_cut_episode_are_answered_too(limits: dict[str, int]) -> None:
    trajectory = one(Tools, says(call("add", '{"a": 1}')), task("a"), **limits)
    assert trajectory.status is Status.TRUNCATED
    answered_once(trajectory)


class Mute(InlinePuppet):
    """Ends at the first call without a word about it."""

    said: ClassVar[tuple[Message, ...]] = ()

    def step(self, action: Action) -> StepResult:
        return self.said, 0.0, True, False, {}


def test_calls_an_environment_leaves_unanswered_are_answered_for_it_and_counted() -> None:
    Mute.said = (Message("user", "bye"), Message("tool", "second", tool_call_id="call_0_1"))
    engine = says(call("a", "{}") + call("b", "{}") + "<tool_call>{</tool_call>")
    trajectory = one(Mute, engine, task("a"))
    ((first, second, third),) = answered_once(trajectory)
    assert (first, second) == ("Error: the call was not executed.", "second")
    assert "could not be parsed" in third
    assert trajectory.closing[-1] == Message("user", "bye"), "what else was said follows"
    assert trajectory.counts["unanswered_calls"] == 2


def test_a_call_answered_twice_keeps_the_first_answer_and_counts_the_second() -> None:
    Mute.said = tuple(Message("tool", text, tool_call_id="call_0_0") for text in ("first", "again"))
    trajectory = one(Mute, says(call("a", "{}")), task("a"))
    assert answered_once(trajectory) == [["first"]]
    assert trajectory.counts["surplus_answers"] == 1


def test_a_server_that_parses_itself_is_believed() -> None:
    class Splits(DiaryEngine):
        async def generate(self, request: GenerateRequest) -> Completion:
            await super().generate(request)
            message = Message("assistant", "visible", "because", (ToolCall("srv-1", "add", {"a": 1}),))
            return Completion("raw", message=message)

    trajectory = one(Tools, Splits(level=Level.TEXT), task("a"), max_turns=1)
    (turn,) = trajectory.turns
    assert (turn.action.text, turn.action.reasoning, turn.action.raw) == ("visible", "because", "raw")
    assert answered_once(trajectory) == [["1"]]
    assert trajectory.level == "text"
    assert [stream.trainable for stream in trajectory.streams] == [False]
