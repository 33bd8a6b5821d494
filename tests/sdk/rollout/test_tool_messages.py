"""Tool calls of an episode: each has exactly one tool message, whatever the model, the tool or the end did."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from puppets import DiaryEngine, InlinePuppet, kind_of, one, task

from plugym.engine import Completion, GenerateRequest, Level
from plugym.env import StepResult
from plugym.errors import InfraError, InfraKind
from plugym.message import Action, Message, ToolCall
from plugym.task import Task, Taskset
from plugym.tools import ToolEnv, tool
from plugym.trajectory import Status, StopReason, Trajectory


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
