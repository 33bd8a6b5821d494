"""The killable algebra worker: verdicts, deadlines, crashes, a missing library, life and death of its processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from plugym_rewards.verifier.algebra import AlgebraPool, AlgebraUnavailable
from plugym_rewards.verifier.equal import agrade, agrade_response, grade

TOWER = "9^{9^{9^{9}}}"


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for math-verify that equates texts, talks on stdout and misbehaves on demand."""
    package = tmp_path / "math_verify"
    package.mkdir()
    (package / "errors.py").write_text("class TimeoutException(BaseException): ...\n")
    (package / "__init__.py").write_text(
        textwrap.dedent("""
        import os, time
        from .errors import TimeoutException
        class LatexExtractionConfig: ...
        def parse(text, *args, **kwargs):
            print("noise on stdout")
            if "crash" in text: os._exit(3)
            if "late" in text: raise TimeoutException
            if "broken" in text: raise RecursionError
            if "memory" in text: bytearray(1 << 33)
            if "spin" in text:
                while True: pass
            if "sleep" in text: time.sleep(60)
            return [text]
        def verify(gold, pred, **kwargs):
            return gold == pred
        """)
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return package


def _pids(pool: AlgebraPool) -> list[int]:
    return [worker._process.pid for worker in [*pool._idle, *pool._busy]]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_real_verdicts(algebra: AlgebraPool) -> None:
    assert algebra.submit(r"\frac{\pi}{4}", r"\arctan(1)") == "equal"
    assert algebra.submit(r"\sqrt{x^2}", "x") == "different"
    assert algebra.submit("1", r"\undefined{") == "unreadable"


def test_a_runaway_computation_is_killed_and_the_next_answer_is_right(algebra: AlgebraPool) -> None:
    before = _pids(algebra)
    assert algebra.submit("2", TOWER, timeout_s=0.3) == "timeout"
    assert algebra.submit("2", "1+1") == "equal"
    assert not set(before) & set(_pids(algebra))
    assert not any(map(_alive, before))


def test_the_event_loop_goes_on_while_algebra_computes(stub: Path) -> None:
    async def main() -> tuple[str, float]:
        task = asyncio.create_task(pool.asubmit("2", "spin", timeout_s=0.3))
        longest, last = 0.0, time.monotonic()
        while not task.done():
            await asyncio.sleep(0.005)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        return await task, longest

    with AlgebraPool() as pool:
        pool.start()
        outcome, longest = asyncio.run(main())
    assert outcome == "timeout"
    assert longest < 0.5


def test_asynchronous_and_synchronous_grading_agree(algebra: AlgebraPool) -> None:
    pairs = [("1/2", "0.5"), (r"\frac{\pi}{4}", r"\arctan(1)"), (r"\sqrt{x^2}", "x"), ("100", "107 = 100"), ("5", "")]

    async def main() -> list[bool]:
        graded = await asyncio.gather(*(agrade(g, p, algebra=algebra) for g, p in pairs))
        assert (await agrade_response("7", r"\boxed{7}", algebra=algebra)).correct
        assert not (await agrade_response("7", "<think>7", algebra=algebra)).correct
        return [v.correct for v in graded]

    assert asyncio.run(main()) == [grade(g, p, algebra=algebra).correct for g, p in pairs]


def test_a_missing_library_names_the_extra(stub: Path) -> None:
    (stub / "__init__.py").write_text("raise ImportError('not installed')")
    with AlgebraPool() as pool, pytest.raises(AlgebraUnavailable, match=r"pip install 'plugym\[math\]'"):
        grade(r"\frac{\pi}{4}", r"\arctan(1)", algebra=pool)


def test_a_worker_that_cannot_start_is_an_error_and_no_verdict(stub: Path) -> None:
    (stub / "__init__.py").write_text("import os; os._exit(1)")
    with AlgebraPool() as pool, pytest.raises(AlgebraUnavailable, match="did not start"):
        pool.start()


@pytest.mark.parametrize("text", ["crash", "late", "broken", "memory"])
def test_input_that_breaks_the_worker_is_unreadable(stub: Path, text: str) -> None:
    with AlgebraPool() as pool:
        assert pool.submit("1", text) == "unreadable"
        assert pool.submit("1", "1") == "equal", "the pool is well afterwards"


def test_deadlines_are_cpu_time_with_a_wall_clock_limit_behind(stub: Path) -> None:
    with AlgebraPool() as pool:
        pool.start()
        assert pool.submit("1", "spin", timeout_s=0.2) == "timeout"
        start = time.monotonic()
        assert pool.submit("1", "sleep", timeout_s=0.2) == "timeout"
        assert 0.7 < time.monotonic() - start < 10


def test_several_pairs_share_one_deadline_and_all_must_hold(stub: Path) -> None:
    with AlgebraPool() as pool:
        assert pool.submit_all([("a", "a"), ("b", "b")]) == "equal"
        assert pool.submit_all([("a", "a"), ("b", "c")]) == "different"
        assert pool.submit_all([("a", "a"), ("b", "spin")], timeout_s=0.2) == "timeout"


def test_a_worker_killed_from_outside_is_replaced(stub: Path) -> None:
    with AlgebraPool() as pool:
        pool.start()
        os.kill(_pids(pool)[0], signal.SIGKILL)
        assert pool.submit("1", "1") == "equal"


def test_more_callers_than_workers(stub: Path) -> None:
    with AlgebraPool(workers=2) as pool, ThreadPoolExecutor(8) as threads:
        texts = ["1", "crash", "2", "3", "late", "4"] * 4
        outcomes = list(threads.map(lambda text: pool.submit(text, text), texts))
        assert outcomes == ["unreadable" if text in ("crash", "late") else "equal" for text in texts]
        assert len(_pids(pool)) <= 2


def test_closing_ends_the_processes_and_is_idempotent(stub: Path) -> None:
    pool = AlgebraPool()
    assert _pids(pool) == [], "nothing is started before it is needed"
    pool.start()
    (pid,) = _pids(pool)
    pool.close()
    pool.close()
    assert not _alive(pid)
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit("1", "1")


def test_closing_ends_a_call_in_flight(stub: Path) -> None:
    pool = AlgebraPool()
    pool.start()
    (pid,) = _pids(pool)
    errors: list[BaseException] = []

    def call() -> None:
        try:
            pool.submit("1", "sleep", timeout_s=20)
        except RuntimeError as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    while not pool._busy:
        time.sleep(0.01)
    pool.close()
    caller.join(10)
    assert "closed" in str(errors[0])
    assert not _alive(pid)


def test_workers_end_with_a_parent_that_forgot_to_close(stub: Path) -> None:
    script = """
        from plugym_rewards.verifier.algebra import AlgebraPool
        pool = AlgebraPool(); pool.start(); print(pool._idle[0]._process.pid)
    """
    path = os.pathsep.join([str(stub.parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    deadline = time.monotonic() + 10
    while _alive(int(done.stdout)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(int(done.stdout))


def test_the_grading_process_never_imports_sympy() -> None:
    script = """
        import sys
        from plugym_rewards.verifier.equal import grade
        assert grade("(x+1)^2", "x^2+2x+1").correct
        assert not {"sympy", "math_verify"} & set(sys.modules)
    """
    path = os.pathsep.join(filter(None, sys.path))
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env={**os.environ, "PYTHONPATH": path}, check=True)


@pytest.mark.parametrize("settings", [{"workers": 0}, {"timeout_s": 0}])
def test_bad_settings(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="workers >= 1 and timeout_s > 0"):
        AlgebraPool(**settings)
