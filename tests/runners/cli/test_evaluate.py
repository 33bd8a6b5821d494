"""`runner eval`: policies without a model, crashes in the middle, failures that are tried again, scoring again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plugym.store import GroupLog, RunDir
from plugym.trajectory import ScoredGroup
from plugym_runners.policies import PolicyEngine

EVAL = ("eval", "--env", "math", "--reward", "verifier", "--n-tasks", "6")

ENV = '''
from pathlib import Path
from plugym.env import AgentEnv
from plugym.task import Task, Taskset
from plugym_envs.math import MathEnv

class Shaky(MathEnv):
    """Cannot start its third task while there is a file `down`."""

    def reset(self, *, seed=None, options=None):
        if Path("down").exists() and options["task"].id == self.tasks("eval")[2].id:
            raise ConnectionError("the simulator is down")
        return super().reset(seed=seed, options=options)

class Bare(AgentEnv):
    """Has no winner to show."""

    def tasks(self, split):
        return Taskset([Task("bare/1")])

    def reset(self, **options):
        return (), {}

    def step(self, action):
        return (), 0.0, True, False, {}
'''

REWARDS = '''
from plugym.reward import RewardProvider, Score, reward

class Judge(RewardProvider):
    """Needs an engine."""
    async def score(self, group):
        return [Score(0.5) for _ in group.trajectories]

@reward(range=(0, 1))
def brief(trajectory):
    return len(trajectory.final_text) < 3
'''


@pytest.fixture
def shop(install: Any) -> None:
    points = {
        "envs": {"shaky": "shop_parts:Shaky", "bare": "shop_parts:Bare"},
        "rewards": {"needy": "shop_parts:Judge", "brief": "shop_parts:brief"},
    }
    install("shop-parts", points, {"shop_parts": ENV + REWARDS})


def episodes(run: str) -> list[ScoredGroup]:
    groups, cut = RunDir(Path(run)).group_log().read()
    assert not cut
    return groups


def plain(groups: list[ScoredGroup]) -> list[Any]:
    return [(g.group.id, [t.messages() for t in g.group.trajectories], g.scores) for g in groups]


def test_the_expert_wins_and_the_report_is_one_document(cli: Any) -> None:
    result = cli(*EVAL, "--policy", "expert", "--n", "2", "--json")
    assert (result.code, result.err) == (0, "")
    report = result.document
    assert report["avg@n"] == report["maj@n"] == {"value": 1.0, "se": 0.0, "tasks": 6}
    assert report["pass@k"].keys() == {"1", "2"}
    assert (report["tasks"], report["episodes"], report["n"], report["infra"], report["unscored"]) == (6, 12, 2, {}, 0)
    assert (report["policy"], report["model"], report["env"], report["split"]) == ("expert", None, "math", "eval")
    assert report["paths"] == {"fast": 12}
    assert list(report["sources"]) == ["math/sum"]
    run = RunDir(Path(report["dir"]))
    assert run.read_outcome() == report
    (row,) = run.read_evals().rows
    counts = {"step": 0, "eval/tasks": 6, "eval/unscored": 0, "eval/infra": 0}
    assert row == counts | {"eval/avg@k": 1, "eval/pass@2": 1, "eval/maj@k": 1}
    stored = episodes(report["dir"])
    assert [group.group.id for group in stored] == sorted(group.group.id for group in stored)
    assert stored[0].scores[0].answer == stored[0].group.task.answer  # type: ignore[union-attr]


def test_the_report_for_people(cli: Any) -> None:
    out = cli(*EVAL, "--policy", "noop", "--n", "4").out
    head, avg, *rest = out.splitlines()
    assert head.startswith("noop on math, split eval: 6 tasks x 4, in runs/eval-math-noop")
    assert avg.split() == ["avg@4", "0.000", "+-", "0.000", "over", "6", "tasks"]
    assert [line.split()[0] for line in rest if line.startswith(("pass", "maj"))] == ["pass@2", "pass@4", "maj@4"]
    assert "decided by  none 24" in out


def test_random_episodes_repeat_themselves(cli: Any) -> None:
    first, second = (cli(*EVAL, "--policy", "random", "--n", "3", "--json").document for _ in range(2))
    assert first["dir"] != second["dir"]
    assert plain(episodes(first["dir"])) == plain(episodes(second["dir"]))
    texts = {t.final_text for group in episodes(first["dir"]) for t in group.group.trajectories}
    assert len(texts) > 3


def test_tool_calls_of_a_policy_are_taken_as_they_are(cli: Any) -> None:
    result = cli(*EVAL, "--env.tools", "calculator", "--policy", "random", "--n", "8", "--json")
    calls = [
        c for g in episodes(result.document["dir"]) for t in g.group.trajectories for c in t.turns[0].action.tool_calls
    ]
    assert {call.name for call in calls} == {"calculator"}
    assert all(call.error is None for call in calls)


def test_an_engine_without_tokens_and_without_weights(cli: Any) -> None:
    lines = ("--engine", "scripted", "--engine.lines", '["7"]')
    report = cli(*EVAL, *lines, "--model", "somewhere/else", "--json").document
    stored = episodes(report["dir"])
    expected = sum(group.group.task.answer == "7" for group in stored) / 6  # type: ignore[union-attr]
    assert report["avg@n"]["value"] == pytest.approx(expected)
    assert report["response_tokens_mean"] is None
    assert report["model"] == "somewhere/else"


@pytest.mark.usefixtures("shop")
def test_no_expert_is_bad_input_and_writes_nothing(cli: Any) -> None:
    result = cli("eval", "--env", "bare", "--reward", "brief", "--policy", "expert")
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: Bare has no expert: choose --policy model, random or noop\n"
    assert not Path("runs").exists()


def test_a_crash_keeps_what_was_finished(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cli(*EVAL, "--policy", "random", "--n", "2", "--name", "whole", "--json").document
    append = GroupLog.append
    seen: list[str] = []

    def crash(self: GroupLog, group: ScoredGroup) -> None:
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(group.group.id)
        append(self, group)

    with monkeypatch.context() as patch:
        patch.setattr(GroupLog, "append", crash)
        assert cli(*EVAL, "--policy", "random", "--n", "2", "--name", "cut").code == 130
    log = RunDir(Path("runs/cut")).group_log()
    log.path.write_bytes(log.path.read_bytes()[:-2])  # and the third one did not reach the disk whole
    played: list[str] = []
    forget = PolicyEngine.end_session
    monkeypatch.setattr(PolicyEngine, "end_session", lambda self, s: (played.append(s), forget(self, s)))
    result = cli("eval", "--resume", "runs/cut", "--json")
    assert result.code == 0
    assert "the last episodes of" in result.err
    assert "2 of 6 tasks are done" in result.err
    assert len(set(played)) == 8
    assert plain(episodes("runs/cut")) == plain(episodes("runs/whole"))
    same = ("avg@n", "pass@k", "maj@n", "paths", "stop")
    assert {key: result.document[key] for key in same} == {key: whole[key] for key in same}


def test_a_finished_evaluation_says_so(cli: Any) -> None:
    report = cli(*EVAL, "--policy", "random", "--json").document
    before = (Path(report["dir"]) / "outcome.json").stat().st_mtime_ns
    again = cli("eval", "--resume", report["dir"], "--json")
    assert "is finished: there is nothing to resume" in again.err
    assert again.document["avg@n"] == report["avg@n"]
    assert (Path(report["dir"]) / "outcome.json").stat().st_mtime_ns == before


@pytest.mark.usefixtures("shop")
def test_what_infrastructure_spoiled_is_played_again(cli: Any) -> None:
    Path("down").touch()
    shaky = ("eval", "--env", "shaky", "--reward", "verifier", "--n-tasks", "6", "--rollout.retries", "0")
    first = cli(*shaky, "--policy", "expert", "--json").document
    assert (first["infra"], first["avg@n"]["tasks"], first["avg@n"]["value"]) == ({"env": 1}, 5, 1.0)
    Path("down").unlink()
    second = cli("eval", "--resume", first["dir"], "--json").document
    assert (second["infra"], second["avg@n"]["tasks"]) == ({}, 6)
    assert len(RunDir(Path(first["dir"])).read_evals().rows) == 1


def test_changed_tasks_are_bad_input(cli: Any) -> None:
    report = cli(*EVAL, "--policy", "noop", "--json").document
    config = Path(report["dir"]) / "config.toml"
    config.write_text(config.read_text().replace("level = 0", "level = 1"))
    result = cli("eval", "--resume", report["dir"])
    assert result.code == 2
    assert "have changed since it was started" in result.err


@pytest.mark.usefixtures("shop")
def test_stored_episodes_are_scored_again_without_playing(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report = cli(*EVAL, "--policy", "expert", "--json").document

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("played")

    monkeypatch.setattr("plugym_runners.evaluation.evaluate", never)
    again = cli("eval", "--rescore", report["dir"], "--json").document
    assert Path(again["dir"]).name == "eval-math-expert-rescored"
    same = ("policy", "tasks", "avg@n", "paths", "sources")
    assert {key: again[key] for key in same} == {key: report[key] for key in same}
    assert plain(episodes(again["dir"])) == plain(episodes(report["dir"]))
    brief = cli("eval", "--rescore", report["dir"], "--reward", "brief", "--json").document
    assert (brief["reward"], brief["paths"]) == (["brief"], {})


@pytest.mark.usefixtures("shop")
def test_only_stateless_checks_score_again(cli: Any) -> None:
    report = cli(*EVAL, "--policy", "noop", "--json").document
    result = cli("eval", "--rescore", report["dir"], "--reward", "verifier", "--reward", "needy:0.5")
    assert result.code == 2
    assert "reward verifier+needy needs more than the stored episode of eval:000000:math/" in result.err
    assert [path.name for path in Path("runs").iterdir()] == ["eval-math-noop"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--env", "math"), "choose a reward with --reward NAME"),
        (("--reward", "verifier"), "choose one with --env NAME"),
        (("--env", "mth", "--reward", "verifier"), "did you mean 'math'?"),
        (("--env", "math", "--reward", "verifier", "--eval.nn", "2"), "unknown option --eval.nn: did you mean 'n'?"),
        (("--env", "math", "--reward", "verifier", "--polcy", "noop"), "did you mean --policy?"),
        (("--env", "math", "--reward", "verifier", "--policy", "best"), "'best' is not one of 'model', 'expert'"),
        (("--env", "math", "--reward", "verifier", "--n", "0"), "0 is not in the range x>=1"),
        (("--resume", "nowhere"), "nowhere is not a run directory"),
        (("--resume", "nowhere", "--n", "3", "--env", "math"), "leave out --n, other settings"),
        (("--rescore", "nowhere"), "cannot read nowhere/config.toml"),
        (("--rescore", "nowhere", "--policy", "model"), "leave out --policy"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(cli: Any, args: tuple[str, ...], message: str) -> None:
    result = cli("eval", *args)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert list(Path().iterdir()) == []


def test_each_kind_of_run_has_its_own_resume(cli: Any) -> None:
    report = cli(*EVAL, "--policy", "noop", "--json").document
    assert f"is an evaluation: runner eval --resume {report['dir']}" in cli("resume", report["dir"]).err
    (Path(report["dir"]) / "evaluation.json").unlink()
    assert "is a training run, not an evaluation" in cli("eval", "--resume", report["dir"]).err


def test_resume_hands_the_directory_and_its_settings_to_the_runner(cli: Any, fake: tuple[str, ...]) -> None:
    run = RunDir.create(Path("runs"), "old")
    run.write_config(
        'model = "tiny"\nenv = "math"\nreward = "verifier"\nalgo = "grpo"\nbackend = "fake"\n[train]\nlr = 0.25\n'
    )
    result = cli("resume", "runs/old", "--json")
    assert result.code == 2
    assert result.err == "error: runner FakeRunner cannot resume a run: start runs/old again from its config.toml\n"
    import fake_runner  # type: ignore[import-not-found]

    with pytest.MonkeyPatch.context() as patch:
        resume = lambda self, path: {"dir": path, "lr": self.config.lr}  # noqa: E731
        patch.setattr(fake_runner.FakeRunner, "resume", resume)
        assert json.loads(cli("resume", "runs/old", "--json").out) == {"dir": "runs/old", "lr": 0.25}
