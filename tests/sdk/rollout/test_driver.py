"""The driver as a source: streaming, retries, limits, early stops, determinism, and nothing left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
from puppets import (
    ALIVE,
    RELEASE,
    AsyncPuppet,
    DiaryEngine,
    InlinePuppet,
    ProcessPuppet,
    Puppet,
    driver,
    play,
    task,
    wait_until,
)

from plugym.engine import GenerateRequest, Sampling
from plugym.env import AnyEnv
from plugym.errors import BadInput, InfraError, InfraKind, RunStopped
from plugym.rollout.driver import FailureWatch
from plugym.trajectory import Group, Purpose, StopReason, Trajectory

IN_PROCESS: list[type[AnyEnv]] = [Puppet, InlinePuppet, AsyncPuppet]


@pytest.fixture(autouse=True)
def _fresh_puppets() -> Iterator[None]:
    RELEASE.clear()
    ALIVE.clear()
    yield
    RELEASE.set()


async def _take(groups: AsyncIterator[Group], n: int) -> list[Group]:
    return [await anext(groups) for _ in range(n)]


@pytest.mark.parametrize("env", [*IN_PROCESS, ProcessPuppet])
def test_every_isolation_plays_the_same_episodes(env: type[AnyEnv]) -> None:
    engine = DiaryEngine()
    groups = play(driver(env, engine), [task("a", turns=2), task("b", turns=3)])
    assert [len(group.trajectories[0].turns) for group in groups] == [2, 3]
    assert [t.stop_reason for group in groups for t in group.trajectories] == [StopReason.ENV_DONE] * 2
    reference = play(driver(InlinePuppet, DiaryEngine()), [task("a", turns=2), task("b", turns=3)])
    for group, expected in zip(groups, reference, strict=True):
        assert group.trajectories[0].messages() == expected.trajectories[0].messages()
    assert not +ALIVE, "every instance is closed, the probe included"


def test_finished_groups_stream_out_while_others_play() -> None:
    release = asyncio.Event()

    async def hold_task_a(request: GenerateRequest) -> None:
        if ":a/" in request.session:
            await release.wait()

    async def main() -> list[str]:
        source = driver(InlinePuppet, DiaryEngine(before=hold_task_a))
        groups = source.groups()
        first = await anext(groups)
        release.set()
        second = await anext(groups)
        await source.close()
        return [first.id, second.id]

    assert asyncio.run(main()) == ["train:000001:b", "train:000000:a"]


def test_groups_that_are_done_are_skipped_and_the_others_stay_who_they_were() -> None:
    async def main(skip: set[str]) -> dict[str, list[int]]:
        engine = DiaryEngine()
        source = driver(InlinePuppet, engine)
        tasks = [task(name) for name in "abc"]
        groups = [group.id async for group in source.play(tasks, 2, purpose=Purpose.EVAL, skip=skip)]
        await source.close()
        seeds = {id: sorted(r.seed for r in engine.requests if r.session.startswith(f"{id}/")) for id in groups}
        return dict(sorted(seeds.items()))

    whole = asyncio.run(main(set()))
    assert list(whole) == ["eval:000000:a", "eval:000001:b", "eval:000002:c"]
    rest = asyncio.run(main({"eval:000001:b"}))
    assert rest == {id: seeds for id, seeds in whole.items() if id != "eval:000001:b"}
    assert asyncio.run(main(set(whole))) == {}


def test_groups_pulls_a_step_at_a_time_and_keeps_its_position() -> None:
    async def main() -> None:
        engine = DiaryEngine()
        source = driver(InlinePuppet, engine, [task(name) for name in "abc"])
        groups = source.groups()
        assert {group.task.id for group in await _take(groups, 2) if group.task} == {"a", "b"}
        assert len(engine.requests) == 4, "the next step's episodes wait for the next step's weights"
        assert source.state_dict() == {"position": 2}
        assert {group.task.id for group in await _take(groups, 2) if group.task} == {"c", "a"}
        await source.close()

        resumed = driver(InlinePuppet, DiaryEngine(), [task(name) for name in "abc"])
        resumed.load_state_dict({"position": 2})
        assert {group.id for group in await _take(resumed.groups(), 2)} == {"train:000002:c", "train:000003:a"}
        await resumed.close()

    asyncio.run(main())


@pytest.mark.parametrize("env", IN_PROCESS)
def test_same_seed_same_trajectories_whatever_arrives_first(env: type[AnyEnv]) -> None:
    def episodes(delays: int, seed: int) -> list[Any]:
        rng = random.Random(delays)

        async def dawdle(request: GenerateRequest) -> None:
            await asyncio.sleep(rng.random() * 0.02)

        source = driver(env, DiaryEngine(before=dawdle), seed=seed, max_concurrent=1 + delays * 3)
        groups = play(source, [task("a", turns=3), task("b", turns=2), task("c")], n=3)
        return [
            (t.id, t.messages(), [s.ids.tolist() for s in t.streams], [s.turn_ids.tolist() for s in t.streams])
            for group in groups
            for t in group.trajectories
        ]

    first = episodes(delays=1, seed=0)
    assert first == episodes(delays=2, seed=0)
    assert first != episodes(delays=2, seed=1)
    texts = [messages[1].text for _, messages, *_ in first]
    assert len(set(texts)) > 1, "samples of a group differ"


def test_samples_of_a_group_share_the_environment_seed_and_visits_differ() -> None:
    groups = play(driver(InlinePuppet, DiaryEngine()), [task("a"), task("a")], n=3)
    openings = [{t.turns[0].messages for t in group.trajectories} for group in groups]
    assert [len(opening) for opening in openings] == [1, 1]
    assert openings[0] != openings[1]


def test_max_concurrent_is_respected() -> None:
    async def slow(request: GenerateRequest) -> None:
        await asyncio.sleep(0.005)

    engine = DiaryEngine(before=slow)
    groups = play(driver(InlinePuppet, engine, max_concurrent=3), [task(str(i)) for i in range(4)], n=3)
    assert sum(len(group.trajectories) for group in groups) == 12
    assert engine.most_running == 3


def test_retries_with_back_off_until_it_works() -> None:
    failures = 2
    times: list[float] = []

    async def flaky(request: GenerateRequest) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) <= failures:
            raise ConnectionError("refused")

    engine = DiaryEngine(before=flaky)
    (group,) = play(driver(InlinePuppet, engine, retries=2, backoff=0.05), [task("a")])
    (trajectory,) = group.trajectories
    assert trajectory.stop_reason is StopReason.ENV_DONE
    assert trajectory.counts["retries"] == 2
    assert times[1] - times[0] >= 0.05
    assert times[2] - times[1] >= 0.1, "back-off doubles"
    (id_,) = engine.announced
    assert engine.announced[id_] == engine.ended[id_] == 3, "each attempt is announced and ended once"
    seeds = {request.seed for request in engine.requests}
    assert len(seeds) == 1, "a retry repeats the episode, it does not roll the dice again"


def test_retries_are_bounded_and_then_it_is_infra_failed() -> None:
    async def refuse(request: GenerateRequest) -> None:
        raise ConnectionError("refused")

    (group,) = play(driver(InlinePuppet, DiaryEngine(before=refuse), retries=1, same_failure_limit=99), [task("a")])
    (trajectory,) = group.trajectories
    assert trajectory.infra_failed
    assert trajectory.failure is not None
    assert (trajectory.failure.kind, trajectory.failure.message) == (
        InfraKind.ENGINE,
        "generate: ConnectionError: refused",
    )
    assert trajectory.counts["retries"] == 1


def test_a_mistake_in_code_is_not_retried() -> None:
    (group,) = play(driver(InlinePuppet, DiaryEngine(), retries=5), [task("a", reset="bug")])
    (trajectory,) = group.trajectories
    assert trajectory.infra_failed
    assert trajectory.counts["retries"] == 0


def test_one_failing_episode_leaves_its_group_intact() -> None:
    async def refuse_sample_1(request: GenerateRequest) -> None:
        if request.session.endswith("/1"):
            raise ConnectionError("refused")

    (group,) = play(driver(InlinePuppet, DiaryEngine(before=refuse_sample_1)), [task("a")], n=3)
    assert [t.id for t in group.trajectories] == [f"{group.id}/{i}" for i in range(3)]
    assert [t.infra_failed for t in group.trajectories] == [False, True, False]


class _Unbuildable(InlinePuppet):
    """Can be made once (the driver's probe), never again."""

    made = 0

    def __init__(self, config: Any = None) -> None:
        type(self).made += 1
        if type(self).made > 1:
            raise OSError("no space left on device")
        super().__init__(config)


class _UnbuildableThread(_Unbuildable):
    isolation = "thread"


class _NeverBuilt(InlinePuppet):
    def __init__(self, config: Any = None) -> None:
        raise OSError("no space left on device")


@pytest.mark.parametrize("env", [_Unbuildable, _UnbuildableThread])
def test_a_constructor_that_raises_is_an_infra_failure(env: type[_Unbuildable]) -> None:
    env.made = 0
    engine = DiaryEngine()
    (group,) = play(driver(env, engine), [task("a")], n=2)
    for trajectory in group.trajectories:
        assert trajectory.failure is not None
        assert trajectory.failure.kind is InfraKind.ENV
        assert "no space left on device" in trajectory.failure.message
    assert engine.announced == engine.ended, "the engine does not wait for episodes that never began"


def test_an_environment_that_cannot_be_made_at_all_is_one_clear_error() -> None:
    with pytest.raises(InfraError, match="constructor: OSError: no space left on device"):
        driver(_NeverBuilt, DiaryEngine())


def test_the_first_n_identical_failures_stop_the_run() -> None:
    async def main() -> None:
        source = driver(InlinePuppet, DiaryEngine(), same_failure_limit=3)
        try:
            with pytest.raises(RunStopped, match=r"first 3 episodes all failed: \[env\] reset: ValueError: boom"):
                async for _ in source.play([task(str(i), reset="raise") for i in range(8)], 1):
                    pass
        finally:
            await source.close()

    asyncio.run(main())


def test_a_share_of_a_step_that_fails_alike_stops_the_run_before_its_last_group_is_out() -> None:
    """The consumer takes exactly as many groups as it trains on: it must hear of it in the same step."""
    tasks = [task("good"), task("bad1", reset="raise"), task("bad2", reset="raise"), task("bad3", reset="raise")]

    async def main(share: float) -> list[Group]:
        source = driver(
            InlinePuppet, DiaryEngine(), tasks, tasks_per_step=4, same_failure_limit=99, same_failure_share=share
        )
        try:
            return await _take(source.groups(), 4)
        finally:
            await source.close()

    assert len(asyncio.run(main(0.75))) == 4
    with pytest.raises(RunStopped, match="6 of 8 episodes failed alike"):
        asyncio.run(main(0.7))


def test_different_failures_do_not_stop_the_run() -> None:
    tasks = [task("a", reset="raise"), task("b", reset="bug"), task("c", reset="sandbox")]
    groups = play(driver(InlinePuppet, DiaryEngine(), same_failure_limit=3, same_failure_share=0.5), tasks)
    kinds = [t.failure.kind for g in groups for t in g.trajectories if t.failure]
    assert kinds == [InfraKind.ENV, InfraKind.ENV, InfraKind.SANDBOX]


def test_failure_watch_looks_at_the_first_episodes_only() -> None:
    from plugym.errors import Failure

    def ended(failed: bool) -> Trajectory:
        failure = Failure(InfraKind.ENV, "x") if failed else None
        reason = StopReason.INFRA if failed else StopReason.ENV_DONE
        return Trajectory("t", None, "g", stop_reason=reason, failure=failure)

    watch = FailureWatch(2, 0.5)
    for failed in (True, False, True, True, True):
        watch.episode(ended(failed))
    watch.pull([ended(True), ended(False)])
    with pytest.raises(RunStopped, match="2 of 3 episodes failed alike"):
        watch.pull([ended(True), ended(True), ended(False)])


def test_announce_and_end_session_come_in_pairs_however_the_episode_ends() -> None:
    engine = DiaryEngine()
    tasks = [task("ok", turns=2), task("bad", reset="raise"), task("late", at0="raise")]
    play(driver(InlinePuppet, engine, retries=1), tasks, n=2)
    assert engine.announced == engine.ended
    assert {session.split(":")[2]: n for session, n in engine.ended.items()} == {
        "ok/0": 1,
        "ok/1": 1,
        "bad/0": 2,
        "bad/1": 2,
        "late/0": 2,
        "late/1": 2,
    }


@pytest.mark.parametrize("max_concurrent", [1, 256])
def test_sessions_are_ended_when_the_consumer_leaves_early(max_concurrent: int) -> None:
    """An engine that waits for announced sessions would wait for ever for one that was dropped before it began."""

    async def forever(request: GenerateRequest) -> None:
        if ":slow" in request.session:
            await asyncio.sleep(60)

    async def main() -> None:
        engine = DiaryEngine(before=forever)
        source = driver(InlinePuppet, engine, max_concurrent=max_concurrent)
        async with aclosing(source.play([task("quick"), task("slow1"), task("slow2")], 2)) as played:
            assert (await anext(played)).task == task("quick")
        assert engine.announced == engine.ended
        assert len(asyncio.all_tasks()) == 1, "no episode goes on"
        await source.close()

    asyncio.run(main())


@pytest.mark.parametrize("env", IN_PROCESS)
def test_close_cancels_running_episodes_and_ends_the_stream(env: type[AnyEnv]) -> None:
    async def forever(request: GenerateRequest) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        engine = DiaryEngine(before=forever)
        source = driver(env, engine)
        consumer = asyncio.create_task(_drain(source.groups()))
        await engine.busy(4)
        await source.close()
        await source.close()
        assert await consumer == []
        assert engine.announced == engine.ended
        assert len(asyncio.all_tasks()) == 1
        with pytest.raises(RuntimeError, match="closed"):
            await anext(source.play([task("a")], 1))

    async def _drain(groups: AsyncIterator[Group]) -> list[Group]:
        return [group async for group in groups]

    asyncio.run(main())
    assert wait_until(lambda: not +ALIVE)


def test_cancelling_the_consumer_cancels_the_episodes() -> None:
    async def forever(request: GenerateRequest) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        engine = DiaryEngine(before=forever)
        source = driver(InlinePuppet, engine)
        groups = source.groups()
        consumer = asyncio.ensure_future(anext(groups))
        await engine.busy(4)
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer
        assert engine.announced == engine.ended
        assert engine.running == 0
        await source.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_bad_input_of_an_environment_ends_the_run_with_its_own_line() -> None:
    class Refuses(InlinePuppet):
        def reset(self, **_: Any) -> Any:
            raise BadInput("the data file has no column 'question'")

    with pytest.raises(BadInput, match="no column 'question'"):
        play(driver(Refuses, DiaryEngine()), [task("a")], n=2)


def test_evaluation_overrides_sampling_and_purpose() -> None:
    async def main() -> None:
        engine = DiaryEngine()
        source = driver(InlinePuppet, engine)
        groups = [
            g async for g in source.play([task("a")], 1, sampling=Sampling(temperature=0.0), purpose=Purpose.EVAL)
        ]
        await source.close()
        assert groups[0].purpose is Purpose.EVAL
        assert groups[0].id == "eval:000000:a"
        assert [r.sampling.temperature for r in engine.requests] == [0.0]

    asyncio.run(main())


def test_log_probs_and_versions_are_those_of_the_engine() -> None:
    async def main() -> None:
        engine = DiaryEngine()
        await engine.update_weights(7)
        source = driver(InlinePuppet, engine)
        (group,) = [g async for g in source.play([task("a", turns=2)], 1)]
        await source.close()
        (stream,) = group.trajectories[0].streams
        assert np.array_equal(stream.policy_versions == 7, stream.loss_mask)
        assert set(stream.policy_versions[~stream.loss_mask]) == {-1}

    asyncio.run(main())
