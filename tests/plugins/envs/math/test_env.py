"""Episodes of `MathEnv`: prompts, ends, tools, the oracle, and gymnasium's own checker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from plugym.errors import BadInput, PluginError
from plugym.message import Action, Message, ToolCall
from plugym.registry import Registry, UserRegistry, use_registry, validate_settings
from plugym.task import Check, Task
from plugym_envs.math import MathConfig, MathEnv
from plugym_envs.math.env import FORMATS, Extract

GSM8K = Path(__file__).resolve().parents[4] / "tests" / "data" / "math" / "gsm8k.jsonl"


@pytest.fixture
def tool_env() -> Iterator[MathEnv]:
    """The environment with a calculator, which any registry can name as it likes."""
    use_registry(Registry(UserRegistry(local={"tools": {"sums": "plugym_envs.math:Calculator"}})))
    yield MathEnv(MathConfig(tools=["sums"], max_steps=3))
    use_registry(None)


def call(expression: str) -> Action:
    return Action(tool_calls=(ToolCall("c0", "calculator", {"expression": expression}),))


@pytest.mark.parametrize("level", range(4))
def test_gymnasium_accepts_it(level: int) -> None:
    check_env(MathEnv(MathConfig(level=level)), skip_render_check=True)


def test_gymnasium_accepts_it_with_tools(tool_env: MathEnv) -> None:
    check_env(tool_env, skip_render_check=True)


def test_prompt_of_the_demo() -> None:
    env = MathEnv()
    task = next(task for task in env.tasks("all") if task.id == "math/sum/3+4/p0")
    messages, info = env.reset(seed=0, options={"task": task})
    assert messages == (Message("system", ""), Message("user", "What is 3+4?"))
    assert info == {}
    assert task.check == Check("math", {"extract": "last_number"})


@pytest.mark.parametrize(
    ("system", "roles"), [("", ["system", "user"]), ("Think.", ["system", "user"]), (None, ["user"])]
)
def test_system_message(system: str | None, roles: list[str]) -> None:
    messages, _ = MathEnv(MathConfig(system=system)).reset(seed=0)
    assert [message.role for message in messages] == roles
    assert system is None or messages[0].text == system


def in_line(env: MathEnv, line: int) -> Task:
    return next(task for task in env.tasks("all") if task.data["line"] == line)


def test_problems_of_a_file_are_asked_for_a_boxed_answer() -> None:
    task = in_line(MathEnv(MathConfig(data=GSM8K)), 2)
    assert task.instruction.startswith("Weng earns $12 an hour")
    assert task.instruction.endswith("\n\nPut the final answer in \\boxed{}.")
    assert task.check == Check("math", {"extract": "boxed"})


def test_instruction_of_the_users_own() -> None:
    config = MathConfig(data=GSM8K, instruction="Q: {question} {braces} stay. A:", extract="auto")
    task = in_line(MathEnv(config), 2)
    assert task.instruction.startswith("Q: Weng earns")
    assert task.instruction.endswith("{braces} stay. A:")


def test_an_episode_without_tools_is_one_turn() -> None:
    env = MathEnv()
    for action in (Action.of("7"), Action(), call("1+1")):
        env.reset(seed=0)
        _, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated) == (0.0, True, False)
        assert "outcome" not in info


def test_calling_a_tool_that_is_not_there_is_answered() -> None:
    env = MathEnv()
    env.reset(seed=0)
    messages, _, terminated, _, info = env.step(call("1+1"))
    assert terminated
    assert [message.tool_call_id for message in messages] == ["c0"]
    assert info["executed_calls"] == 0


def test_tool_turns_go_on_until_the_answer(tool_env: MathEnv) -> None:
    tool_env.reset(seed=0)
    messages, _, terminated, truncated, info = tool_env.step(call("6*7"))
    assert [message.text for message in messages] == ["42"]
    assert (terminated, truncated) == (False, False)
    assert (info["executed_calls"], info["successful_calls"]) == (1, 1)
    assert tool_env.step(Action.of("42"))[1:4] == (0.0, True, False)


def test_tool_turns_are_limited(tool_env: MathEnv) -> None:
    for _ in range(2):
        tool_env.reset(seed=0)
        ends = [tool_env.step(call("1/0"))[2:4] for _ in range(3)]
        assert ends == [(False, False), (False, False), (False, True)]


def test_an_answer_in_the_last_turn_is_no_cut(tool_env: MathEnv) -> None:
    tool_env.reset(seed=0)
    ends = [tool_env.step(action)[2:4] for action in (call("1"), call("2"), Action.of("3"))]
    assert ends[-1] == (True, False)


@pytest.mark.parametrize(
    ("tool_call", "says", "executed"),
    [
        (ToolCall("c0", "calculator", {"expression": "1/0"}), "Error: ValueError: division by zero", 1),
        (ToolCall("c0", "calculator", {"formula": "1"}), "Error: bad arguments for calculator", 0),
        (ToolCall("c0", "abacus"), "Error: there is no tool 'abacus'. Tools: calculator.", 0),
        (ToolCall("c0", "", error="no JSON"), "Error: the tool call could not be parsed: no JSON", 0),
    ],
)
def test_failed_calls_are_told_to_the_model(tool_env: MathEnv, tool_call: ToolCall, says: str, executed: int) -> None:
    tool_env.reset(seed=0)
    messages, _, terminated, _, info = tool_env.step(Action(tool_calls=(tool_call,)))
    assert messages[0].text.startswith(says)
    assert not terminated
    assert (info["executed_calls"], info["successful_calls"]) == (executed, 0)


def test_isolation_depends_on_tools(tool_env: MathEnv) -> None:
    assert MathEnv().isolation == MathEnv.isolation == "inline"
    assert tool_env.isolation == "thread"


ENVS = {level: (MathEnv(MathConfig(level=level)), MathEnv(MathConfig(level=level))) for level in (0, 3)}


@given(seed=st.integers(0, 2**31), level=st.sampled_from([0, 3]), text=st.text(max_size=20))
@settings(max_examples=30, deadline=None)
def test_same_task_and_seed_same_episode(seed: int, level: int, text: str) -> None:
    def episode(env: MathEnv, options: dict[str, Any] | None) -> tuple[Any, ...]:
        first = env.reset(seed=seed, options=options)
        return first, env.step(Action.of(text)), env.task

    one, other = ENVS[level]
    drawn = episode(one, None)
    assert drawn == episode(other, None)
    assert drawn == episode(one, {"task": drawn[2]})


@pytest.mark.parametrize("extract", FORMATS)
@pytest.mark.parametrize("data", [None, GSM8K])
def test_oracle_answers_in_the_right_format(extract: Extract, data: Path | None) -> None:
    env = MathEnv(MathConfig(data=data, extract=extract))
    for task in env.tasks("all").take(3):
        text = env.oracle(task).act((), ()).text
        expected = {
            "boxed": f"The answer is \\boxed{{{task.answer}}}.",
            "hash": f"#### {task.answer}",
            "answer_tag": f"<answer>{task.answer}</answer>",
            "last_number": task.answer,
            "auto": f"The answer is \\boxed{{{task.answer}}}.",
        }
        assert text == expected[extract]


def test_oracle_follows_the_task_and_not_the_settings() -> None:
    task = MathEnv(MathConfig(extract="hash")).tasks("train")[0]
    assert MathEnv().oracle(task).act((), ()).text == f"#### {task.answer}"


def test_nothing_the_policy_sees_gives_the_answer_away() -> None:
    """Two-digit sums: no operand can equal the sum, so any sight of it would be a leak."""
    env = MathEnv(MathConfig(level=1))
    for task in env.tasks("eval"):
        messages, info = env.reset(seed=0, options={"task": task})
        assert task.answer is not None
        assert all(task.answer not in message.text for message in messages)
        assert env.step(Action())[0] == ()
        assert info == {}


def test_splits() -> None:
    env = MathEnv()
    assert [len(env.tasks(split)) for split in ("train", "eval", "all")] == [300, 200, 500]
    assert {task.split for task in env.tasks("eval")} == {"eval"}
    with pytest.raises(BadInput, match="no split 'test': choose train, eval, all"):
        env.tasks("test")


def test_order_is_seeded_and_held_out_problems_stay_so() -> None:
    first, second, again = (MathEnv(MathConfig(seed=seed)).tasks("train") for seed in (0, 1, 0))
    assert [t.id for t in first] == [t.id for t in again]
    assert first.fingerprint() != second.fingerprint()


def test_fewer_training_problems() -> None:
    whole, part = MathEnv(), MathEnv(MathConfig(n_tasks=7))
    assert [t.id for t in part.tasks("train")] == [t.id for t in whole.tasks("train").take(7)]
    assert len(part.tasks("eval")) == 200


def test_drawing_a_task_never_draws_a_held_out_one() -> None:
    env = MathEnv()
    drawn = set()
    for seed in range(40):
        env.reset(seed=seed)
        drawn.add(env.task.id)
        assert env.task.split == "train"
    assert len(drawn) > 20


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"level": 4}, "option --env.level of math: .*less than or equal to 3"),
        ({"level": "easy"}, "option --env.level of math"),
        ({"held_out": 100}, "option --env.held_out of math: .*level 0 has 100 operand pairs"),
        ({"preset": "gsm8k"}, "option --env.preset of math: .*data names none"),
        ({"answer_column": "a"}, "option --env.answer_column of math: .*data names none"),
        ({"instruction": "Solve it."}, "option --env.instruction of math: .*{question}"),
        ({"eval_share": 1.0}, "option --env.eval_share of math"),
        ({"extract": "regex"}, "option --env.extract of math: .*'boxed', 'hash'"),
        ({"levle": 1}, "did you mean --env.level?"),
    ],
)
def test_bad_settings_name_the_option(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PluginError, match=says):
        validate_settings(MathConfig, options, prefix="--env.", owner="math")


def test_settings_as_the_command_line_gives_them() -> None:
    config = validate_settings(MathConfig, {"level": "2", "held_out": "100", "n_tasks": "5"}, owner="math")
    assert [len(MathEnv(config).tasks(split)) for split in ("eval", "train")] == [500, 5]


def test_every_setting_is_described() -> None:
    assert all(field.description for field in MathConfig.model_fields.values())
