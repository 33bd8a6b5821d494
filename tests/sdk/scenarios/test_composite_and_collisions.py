"""Several rewards in one, and several plugins with one name: weights, labels, qualified names, and who is imported."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import group, install, trajectory, user_registry

from plugym.config import Layers
from plugym.errors import BadInput, PluginError, RewardError
from plugym.metrics import batch_metrics
from plugym.registry import registry, use_registry
from plugym.reward import Composite, Part, RewardContext, RewardProvider, Schedule, Score, reward
from plugym.scoring import build_reward, score_group
from plugym.trajectory import Group, ScoredGroup

pytestmark = pytest.mark.usefixtures("own_registry")

JUDGE = """
from plugym.reward import RewardConfig, RewardProvider, Score

class JudgeConfig(RewardConfig):
    value: float = {value}

class Judge(RewardProvider):
    Config = JudgeConfig
    range = (0.0, 1.0)

    async def score(self, group):
        return [Score(self.config.value, parts={{"length": float(len(t.final_text))}}) for t in group.trajectories]
"""


class Fixed(RewardProvider):
    """Gives prepared scores and keeps a diary."""

    def __init__(self, *scores: Score, fails_to_close: bool = False) -> None:
        super().__init__()
        self.scores = scores
        self.fails_to_close = fails_to_close
        self.diary: list[str] = []

    async def open(self, ctx: RewardContext) -> None:
        self.diary.append("open")

    async def score(self, group: Group) -> list[Score]:
        return list(self.scores)

    async def close(self) -> None:
        self.diary.append("close")
        if self.fails_to_close:
            raise OSError("busy")


def scored(provider: RewardProvider, n: int = 1) -> ScoredGroup:
    answers = group(*(trajectory(f"t{i}", "x" * i) for i in range(n)))
    return asyncio.run(score_group("both", provider, answers))


def test_the_weighted_sum_keeps_each_childs_score_untouched() -> None:
    first = Score(1.0, correct=True, parts={"path": 1.0}, why="exact", answer="7")
    second = Score(0.5, correct=False, why="terse", answer="8")
    composite = Composite([Part("verifier", Fixed(first)), Part("tone", Fixed(second), 0.2)])
    (score,) = scored(composite).scores
    assert score.value == pytest.approx(1.1)
    assert (score.correct, score.answer) == (True, "7"), "of the first child that has a verdict"
    assert score.sources == {"verifier": first, "tone": second}
    assert score.parts == {"verifier": 1.0, "verifier/path": 1.0, "tone": 0.5}
    assert score.why == "verifier: exact; tone: terse"


def test_a_sum_can_be_computed_again_when_all_of_it_can() -> None:
    function = reward(lambda trajectory: 1.0)()
    needy = Fixed(Score(1.0))
    assert Composite([Part("a", function)]).can_rescore(trajectory("t"))
    assert not Composite([Part("a", function), Part("b", needy)]).can_rescore(trajectory("t"))


def test_one_child_unscored_makes_the_whole_unscored() -> None:
    composite = Composite(
        [
            Part("verifier", Fixed(Score(1.0), Score(0.0))),
            Part("judge", Fixed(Score(0.5), Score.unscored("no verdict"))),
        ]
    )
    result = scored(composite, n=2)
    assert [score.value for score in result.scores] == [1.5, None]
    assert result.scores[1].parts == {"verifier": 0.0}
    assert result.scores[1].why == "judge: no verdict"
    assert batch_metrics([result])["reward/unscored"] == 1


def test_a_schedule_moves_a_weight() -> None:
    composite = Composite([Part("a", Fixed(Score(1.0))), Part("b", Fixed(Score(1.0)), Schedule(1.0, 0.0, 4))])
    values = []
    for step in (0, 1, 4, 9):
        composite.set_step(step)
        values.append(scored(composite).scores[0].value)
    assert values == [2.0, 1.75, 1.0, 1.0]
    assert Schedule(1.0, 0.5, 0).at(0) == 0.5


def test_a_childs_mistake_is_named_by_its_label() -> None:
    class Wild(Fixed):
        range = (0.0, 1.0)

    with pytest.raises(RewardError, match=r"reward 'tone' gave 7.0 for trajectory t0"):
        scored(Composite([Part("a", Fixed(Score(1.0))), Part("tone", Wild(Score(7.0)))]))


def test_labels_are_unique() -> None:
    with pytest.raises(ValueError, match=r"labels must be unique"):
        Composite([Part("a", Fixed()), Part("a", Fixed())])
    layers = Layers()
    with pytest.raises(BadInput, match=r"two rewards are labelled 'judge' \(flag\): name one with --reward LABEL="):
        layers.add({"env": "math", "reward": ["judge", "judge:0.2"]}, "flag")


def test_every_child_is_closed_also_when_one_of_them_fails_to() -> None:
    children = [Fixed(), Fixed(fails_to_close=True), Fixed()]
    composite = Composite([Part(str(i), child) for i, child in enumerate(children)])

    async def main() -> None:
        await composite.open(RewardContext())
        with pytest.raises(OSError, match=r"busy"):
            await composite.close()

    asyncio.run(main())
    assert [child.diary for child in children] == [["open", "close"]] * 3


def _two_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for dist, value in (("acme-judge", 0.25), ("Zeta.Judge", 0.75)):
        module = dist.replace("-", "_").replace(".", "_").lower()
        install(
            tmp_path / module,
            monkeypatch,
            dist,
            {"rewards": {"fake_judge": f"{module}:Judge"}},
            **{module: JUDGE.format(value=value)},
        )


def test_a_name_claimed_twice_names_both_and_the_qualified_form_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _two_judges(tmp_path, monkeypatch)
    with pytest.raises(PluginError, match=r"2 plugins are called 'fake_judge'") as caught:
        registry().create("rewards", "fake_judge")
    assert "fake_judge@acme-judge or fake_judge@Zeta.Judge" in str(caught.value)
    assert not {"acme_judge", "zeta_judge"} & set(sys.modules), "neither was imported to find that out"
    for spelling in ("fake_judge@Zeta.Judge", "fake_judge@zeta-judge", "fake_judge@zeta_judge"):
        assert registry().create("rewards", spelling).config.value == 0.75
    with pytest.raises(PluginError, match=r"does not come from 'nobody': choose fake_judge@acme-judge or"):
        registry().create("rewards", "fake_judge@nobody")


def test_two_judges_under_labels_of_their_own_make_one_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _two_judges(tmp_path, monkeypatch)
    layers = Layers()
    flags: dict[str, Any] = {
        "env": "math",
        "algo": "grpo",
        "reward": ["fake_judge@acme-judge", "tone=fake_judge@zeta-judge:0.2"],
    }
    layers.add(flags, "flag")
    layers.add({"reward": {"tone": {"value": "0.5"}}}, "flag")
    composite = build_reward(layers.spec().reward)
    (score,) = scored(composite).scores
    assert score.value == pytest.approx(0.25 + 0.2 * 0.5)
    assert set(score.sources) == {"fake_judge", "tone"}
    assert score.parts["tone/length"] == 0


def test_one_reward_of_weight_one_is_not_wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _two_judges(tmp_path, monkeypatch)
    for text, wrapped in (("fake_judge@acme-judge", False), ("fake_judge@acme-judge:0.5", True)):
        layers = Layers()
        layers.add({"env": "math", "algo": "grpo", "reward": text}, "flag")
        assert isinstance(build_reward(layers.spec().reward), Composite) is wrapped


def test_a_wrong_setting_of_a_label_is_spelled_as_the_user_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _two_judges(tmp_path, monkeypatch)
    layers = Layers()
    layers.add({"env": "math", "algo": "grpo", "reward": ["tone=fake_judge@acme-judge"]}, "flag")
    layers.add({"reward": {"tone": {"valu": "1"}}}, "flag")
    with pytest.raises(BadInput, match=r"no option --reward.tone.valu; did you mean --reward.tone.value\?"):
        build_reward(layers.spec().reward)


def test_a_broken_plugin_is_listed_and_fails_only_when_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path,
        monkeypatch,
        "broken-dist",
        {
            "rewards": {
                "broken_import": "broken_mod:Judge",
                "no_module": "nowhere_at_all:Judge",
                "no_attribute": "half_mod:Judge",
                "no_class": "half_mod:function",
                "bad_init": "half_mod:Fails",
            }
        },
        broken_mod="raise ValueError('half installed')\n",
        half_mod=(
            "from plugym.reward import RewardConfig\n"
            "def function(trajectory): return 1.0\n"
            "class Fails:\n    Config = RewardConfig\n    def __init__(self, config): raise OSError('no disk')\n"
        ),
    )
    names = {info.name for info in registry().plugins("rewards")}
    assert {"broken_import", "no_module", "no_attribute", "no_class", "bad_init"} <= names
    for name, problem in [
        ("broken_import", "ValueError: half installed (loading broken_mod:Judge)"),
        ("no_module", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("no_attribute", "AttributeError: module 'half_mod' has no attribute 'Judge'"),
        ("no_class", "TypeError: it is not a plugin class with a Config"),
        ("bad_init", "OSError: no disk (constructing half_mod:Fails)"),
    ]:
        with pytest.raises(PluginError) as caught:
            registry().create("rewards", name)
        assert str(caught.value).startswith(f"reward {name!r} from broken-dist is broken: ")
        assert problem in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spelling", ["evil-dist", "Evil_Dist", "evil.dist"])
@pytest.mark.parametrize("rule", ['deny = ["{}"]', 'allow = ["some-other-dist", "not-{}"]'])
def test_a_denied_distribution_is_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str, rule: str
) -> None:
    """However its name is spelled: pip takes all of these for the same."""
    trace = tmp_path / "imported"
    install(
        tmp_path / "site",
        monkeypatch,
        "Evil-Dist",
        {"rewards": {"evil": "evil_mod:Judge"}},
        evil_mod=f"open({str(trace)!r}, 'w').close()\n",
    )
    use_registry(user_registry(tmp_path, rule.format(spelling)))
    with pytest.raises(PluginError, match=r"reward 'evil' comes from 'Evil-Dist', which registry.toml does not allow"):
        registry().create("rewards", "evil")
    assert not trace.exists()


def test_a_denied_claim_leaves_the_name_to_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _two_judges(tmp_path, monkeypatch)
    use_registry(user_registry(tmp_path, 'deny = ["acme_judge"]'))
    assert registry().create("rewards", "fake_judge").config.value == 0.75
    with pytest.raises(PluginError, match=r"does not allow"):
        registry().create("rewards", "fake_judge@acme-judge")
    assert "acme_judge" not in sys.modules


def test_a_pinned_version_must_be_the_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _two_judges(tmp_path, monkeypatch)
    use_registry(user_registry(tmp_path, '[pins]\nAcme_Judge = "2.0"\n"zeta.judge" = "1.0"\n'))
    with pytest.raises(PluginError, match=r"pins acme-judge==2.0, installed is 1.0: pip install 'acme-judge==2.0'"):
        registry().create("rewards", "fake_judge@acme-judge")
    assert registry().create("rewards", "fake_judge@zeta-judge").config.value == 0.75
