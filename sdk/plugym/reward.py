"""Rewards: a provider scores a whole group, so absolute verdicts and relative judging share one contract.

`Score` is what comes back, exactly one per trajectory. `None` as a value means "could not be scored" and is never
turned into 0. `reward` makes a provider of a plain function, `Composite` adds several up, `check_scores` is the gate
every provider's answer passes before anybody uses it.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel

from plugym.errors import RewardError
from plugym.trajectory import Group, ScoredGroup, Trajectory

if TYPE_CHECKING:
    from plugym.engine import Engine
    from plugym.learner import Learner
    from plugym.sandbox import Sandbox

Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Score:
    """The verdict on one trajectory.

    value: in the provider's declared range; None = could not be scored. correct: the verdict, where there is one.
    parts: named components, logged apart and visible to the algorithm. sources: a `Composite` keeps each child's score
    here, untouched. steps: one number per turn. votes: m samples per turn (None = unparsable). evidence: the judge's
    own generations in (turn, sample) order, tokens included. why: one line for the reader. answer: what was compared
    with the reference, in one spelling, where a check extracted it; a majority vote over samples counts it.
    """

    value: float | None
    correct: bool | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, Score] = field(default_factory=dict)
    steps: tuple[float, ...] | None = None
    votes: tuple[tuple[float | None, ...], ...] | None = None
    evidence: tuple[Trajectory, ...] = ()
    why: str = ""
    answer: str | None = None

    @classmethod
    def unscored(cls, why: str) -> Score:
        """Could not be scored, and why."""
        return cls(value=None, why=why)


class RewardConfig(BaseModel, extra="forbid"):
    """Settings of a provider that has none of its own."""


@dataclass(frozen=True, slots=True)
class RewardContext:
    """What a provider may use, handed to `open`: engines by role, a sandbox, a learner per adapter, a budget (tokens,
    None = unlimited) and seeded randomness."""

    engines: Mapping[str, Engine] = field(default_factory=dict)
    sandbox: Sandbox | None = None
    learner: Callable[[str], Learner] | None = None
    budget: int | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))


class RewardProvider(ABC):
    """Scores groups. Constructed as `Provider(config)`; `open` before the first group, `close` at the end.

    `range` declares the closed interval of `Score.value`; None leaves a side open.
    """

    Config: ClassVar[type[BaseModel]] = RewardConfig
    range: tuple[float | None, float | None] = (None, None)

    def __init__(self, config: BaseModel | None = None) -> None:
        self.config = config if config is not None else self.Config()

    async def open(self, ctx: RewardContext) -> None:
        """Take what is needed from the run."""

    @abstractmethod
    async def score(self, group: Group) -> list[Score]:
        """Exactly one score per trajectory, in the same order. Infra-failed trajectories get `Score.unscored`."""

    def can_rescore(self, trajectory: Trajectory) -> bool:
        """True when a stored episode is all that is needed: no engine, no sandbox, nothing from the time it was played.

        Only such scores can be computed again without new rollouts.
        """
        return False

    async def close(self) -> None:
        """Free what `open` took. Idempotent."""


class TrainableReward(RewardProvider):
    """A provider that learns along with the policy, through the `Learner` it was handed."""

    @abstractmethod
    async def learn(self, scored: Sequence[ScoredGroup]) -> Metrics:
        """One update from groups as they were scored, before any shaping."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write everything needed to go on into the directory `path`."""

    @abstractmethod
    def load(self, path: Path) -> None:
        """Continue from `save`."""


def check_scores(name: str, provider: RewardProvider, group: Group, scores: Sequence[Score]) -> tuple[Score, ...]:
    """Refuse a wrong count, NaN, and values outside the declared range, naming the provider and the trajectory.

    Raises `RewardError`. An infra-failed trajectory is unscored whatever the provider said.
    """
    if len(scores) != len(group.trajectories):
        raise RewardError(
            f"reward {name!r} returned {len(scores)} scores for {len(group.trajectories)} trajectories of {group.id}"
        )
    low, high = provider.range
    checked = []
    for trajectory, score in zip(group.trajectories, scores, strict=True):
        if not isinstance(score, Score):
            raise RewardError(f"reward {name!r} gave {score!r} for trajectory {trajectory.id}, which is not a Score")
        if trajectory.infra_failed:
            score = Score.unscored("infrastructure failure")
        elif not trajectory.turns:
            score = Score.unscored("no turn was played")  # the prompt did not fit: nobody's answer was wrong
        _check_numbers(name, trajectory, score)
        value = score.value
        if value is not None and ((low is not None and value < low) or (high is not None and value > high)):
            raise RewardError(
                f"reward {name!r} gave {value} for trajectory {trajectory.id}, outside its range [{low}, {high}]"
            )
        checked.append(score)
    return tuple(checked)


def _check_numbers(name: str, trajectory: Trajectory, score: Score) -> None:
    numbers: list[Any] = [score.value, *score.parts.values(), *(score.steps or ())]
    numbers += [vote for votes in score.votes or () for vote in votes]
    for number in numbers:
        if number is not None and not (isinstance(number, Real) and math.isfinite(number)):
            raise RewardError(
                f"reward {name!r} gave {number!r} for trajectory {trajectory.id}, which is not a finite number"
            )
    for what, found in (("step scores", score.steps), ("lists of votes", score.votes)):
        if found is not None and len(found) != len(trajectory.turns):
            raise RewardError(
                f"reward {name!r} gave {len(found)} {what} for {len(trajectory.turns)} turns of {trajectory.id}"
            )


RewardFunction = Callable[[Trajectory], Any]


def reward(function: RewardFunction | None = None, *, range: tuple[float | None, float | None] = (None, None)) -> Any:
    """Make a provider class of a function of one trajectory that returns a number, a bool or a `Score`.

    The function may be a coroutine. The class can be named in an entry point like any other provider.

    >>> @reward(range=(0, 1))
    ... def short(trajectory):
    ...     return len(trajectory.final_text) < 10
    >>> issubclass(short, RewardProvider)
    True
    """

    def decorate(function: RewardFunction) -> type[RewardProvider]:
        class FunctionReward(RewardProvider):
            async def score(self, group: Group) -> list[Score]:
                scores = []
                for trajectory in group.trajectories:
                    if trajectory.infra_failed:
                        scores.append(Score.unscored("infrastructure failure"))
                        continue
                    result = function(trajectory)
                    scores.append(_as_score(await result if inspect.isawaitable(result) else result))
                return scores

            def can_rescore(self, trajectory: Trajectory) -> bool:
                return True  # the trajectory is all the function gets

        FunctionReward.range = range
        FunctionReward.__name__ = FunctionReward.__qualname__ = function.__name__
        FunctionReward.__doc__ = function.__doc__
        FunctionReward.__module__ = function.__module__
        return FunctionReward

    return decorate if function is None else decorate(function)


def _as_score(result: Any) -> Score:
    if isinstance(result, Score):
        return result
    if isinstance(result, bool | np.bool_):
        return Score(float(result), correct=bool(result))
    if result is None:
        return Score.unscored("the reward function returned None")
    return Score(float(result))


@dataclass(frozen=True, slots=True)
class Schedule:
    """A weight that moves linearly from `start` to `end` over `steps` updates, then stays.

    >>> Schedule(1.0, 0.0, 10).at(5)
    0.5
    """

    start: float
    end: float
    steps: int

    def at(self, step: int) -> float:
        done = min(max(step / self.steps, 0.0), 1.0) if self.steps > 0 else 1.0
        return self.start + (self.end - self.start) * done


@dataclass(frozen=True, slots=True)
class Part:
    """One child of a `Composite`: its unique label, the provider and its weight."""

    label: str
    provider: RewardProvider
    weight: float | Schedule = 1.0


class Composite(TrainableReward):
    """The weighted sum of several providers; one child unscored makes the whole unscored.

    `correct` and `answer` are those of the first child that has a verdict. Children's scores stay in `sources`,
    untouched, and their values appear in `parts` under their labels. Learning, saving and loading are forwarded to
    children that learn.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        labels = [part.label for part in parts]
        if len(set(labels)) != len(labels):
            raise ValueError(f"reward labels must be unique, got {labels}")
        super().__init__()
        self.parts = tuple(parts)
        self.step = 0

    async def open(self, ctx: RewardContext) -> None:
        for part in self.parts:
            await part.provider.open(ctx)

    async def score(self, group: Group) -> list[Score]:
        columns: dict[str, tuple[Score, ...]] = {}
        for part in self.parts:
            scores = await part.provider.score(group)
            columns[part.label] = check_scores(part.label, part.provider, group, scores)
        return [self._combine({label: column[i] for label, column in columns.items()}) for i in _rows(group)]

    def _combine(self, sources: Mapping[str, Score]) -> Score:
        judged = next((s for s in sources.values() if s.correct is not None), Score(None))
        parts: dict[str, float] = {}
        total: float | None = 0.0
        for part in self.parts:
            score = sources[part.label]
            weight = part.weight.at(self.step) if isinstance(part.weight, Schedule) else part.weight
            parts.update({f"{part.label}/{name}": value for name, value in score.parts.items()})
            if score.value is None:
                total = None
            else:
                parts[part.label] = score.value
                total = None if total is None else total + weight * score.value
        why = "; ".join(f"{label}: {s.why}" for label, s in sources.items() if s.why)
        return Score(
            total,
            correct=judged.correct,
            parts=parts,
            sources=sources,
            steps=_first_steps(sources),
            why=why,
            answer=judged.answer,
        )

    def can_rescore(self, trajectory: Trajectory) -> bool:
        return all(part.provider.can_rescore(trajectory) for part in self.parts)

    def set_step(self, step: int) -> None:
        """Move scheduled weights to update number `step`."""
        self.step = step

    def _learners(self) -> list[tuple[str, TrainableReward]]:
        return [(p.label, p.provider) for p in self.parts if isinstance(p.provider, TrainableReward)]

    async def learn(self, scored: Sequence[ScoredGroup]) -> Metrics:
        """Hand each learning child the groups with its own scores."""
        metrics: dict[str, float] = {}
        for label, provider in self._learners():
            own = [ScoredGroup(g.group, tuple(s.sources.get(label, s) for s in g.scores)) for g in scored]
            learned = await provider.learn(own)
            metrics.update({f"{label}/{name}": value for name, value in learned.items()})
        return metrics

    def save(self, path: Path) -> None:
        for label, provider in self._learners():
            (path / label).mkdir(parents=True, exist_ok=True)
            provider.save(path / label)

    def load(self, path: Path) -> None:
        for label, provider in self._learners():
            provider.load(path / label)

    async def close(self) -> None:
        async with AsyncExitStack() as stack:  # closes every part, also when closing one of them fails
            for part in self.parts:
                stack.push_async_callback(part.provider.close)


def _rows(group: Group) -> list[int]:
    return list(range(len(group.trajectories)))


def _first_steps(sources: Mapping[str, Score]) -> tuple[float, ...] | None:
    """Step scores pass through when exactly one child has them; a sum of several has no agreed meaning."""
    having = [score.steps for score in sources.values() if score.steps is not None]
    return having[0] if len(having) == 1 else None
