"""The `vllm` engine: a server that it starts and ends, and new weights by adapter and as a whole."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_server import Answer, Fake, encode, says
from harness import FAST, HELLO

from plugym.engine import Level
from plugym.errors import BadInput, InfraError
from plugym_runners.engines.vllm import VLLMConfig, VLLMEngine

SERVE = [sys.executable, str(Path(__file__).parent / "fake_server.py")]


@asynccontextmanager
async def given(fake: Fake, loaded: Any, **settings: Any) -> AsyncIterator[VLLMEngine]:
    async with fake.serving() as url:
        engine = VLLMEngine(VLLMConfig(base_url=url, **FAST, **settings))
        engine.bind(loaded)
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close()


def adapter(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(text)
    return folder


class Model:
    """A model in memory that writes itself, an adapter or a whole one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folders: list[Path] = []

    def save_pretrained(self, folder: str) -> None:
        self.folders.append(Path(folder))
        Path(folder).mkdir()
        (Path(folder) / self.name).write_text("new")


def test_exact_tokens_go_in_and_come_out(loaded: Any) -> None:
    async def go() -> None:
        fake = Fake()
        async with given(fake, loaded) as engine:
            assert engine.capabilities.level is Level.TOKENS
            assert engine.capabilities.choices
            assert engine.tokenizer is not None
            completion = await engine.generate(HELLO)
        assert fake.bodies[-1]["prompt"] == encode("[user]hi[assistant]")
        assert completion.policy_version == 0

    asyncio.run(go())


def test_an_adapter_is_loaded_in_place_and_asked_for(loaded: Any, tmp_path: Path) -> None:
    async def go() -> None:
        fake = Fake()
        async with given(fake, loaded) as engine:
            for version in (1, 2):
                folder = adapter(tmp_path / str(version), f"v{version}")
                await engine.update_weights(version, folder)
                completion = await engine.generate(HELLO)
                assert completion.policy_version == version
                assert completion.logprobs is not None
                assert completion.logprobs[0] == -0.25, "other weights"
                assert (fake.weights, fake.cache_resets) == (f"v{version}", version)
                assert fake.bodies[-1]["model"] == "policy-lora"
                assert fake.adapters == {"policy-lora": str(folder)}

    asyncio.run(go())


def test_whole_weights_are_reloaded(loaded: Any, tmp_path: Path) -> None:
    async def go() -> None:
        fake = Fake()
        async with given(fake, loaded) as engine:
            await engine.update_weights(1, adapter(tmp_path / "a", "adapter"))
            (tmp_path / "config.json").write_text("whole")
            await engine.update_weights(2, str(tmp_path))
            completion = await engine.generate(HELLO)
        assert (fake.weights, fake.bodies[-1]["model"], completion.policy_version) == ("whole", "m", 2)

    asyncio.run(go())


@pytest.mark.parametrize("name", ["adapter_config.json", "config.json"])
def test_the_bound_model_is_written_sent_and_its_files_removed(loaded: Any, name: str) -> None:
    async def go() -> None:
        fake, loaded.model, other = Fake(), Model(name), Model(name)
        async with given(fake, loaded) as engine:
            await engine.update_weights(1)
            await engine.update_weights(2, other)
            assert fake.weights == "new"
        for folder in (*loaded.model.folders, *other.folders):
            assert not folder.exists()
            assert not folder.parent.exists()

    asyncio.run(go())


def test_a_request_under_way_counts_as_of_the_old_weights(loaded: Any, tmp_path: Path) -> None:
    async def go() -> None:
        fake, gate = Fake(), asyncio.Event()

        async def late(request: Any, body: Any) -> Any:
            await gate.wait()
            return await says(fake.answer(body, chat=False))(request, body)

        async with given(fake, loaded) as engine:
            fake.script.append(late)
            job = asyncio.create_task(engine.generate(HELLO))
            await asyncio.sleep(0.05)
            await engine.update_weights(1, adapter(tmp_path / "a", "x"))
            gate.set()
            assert (await job).policy_version == 0
            assert (await engine.generate(HELLO)).policy_version == 1

    asyncio.run(go())


@pytest.mark.parametrize(
    ("fake", "file", "problem"),
    [
        (Fake(lora=False), "adapter_config.json", "has no /v1/load_lora_adapter: start the server with --enable-lora"),
        (Fake(dev_mode=False), "config.json", "has no /collective_rpc: start the server with VLLM_SERVER_DEV_MODE=1"),
        (Fake(dev_mode=False), "adapter_config.json", "has no /reset_prefix_cache: start"),
        (Fake(), "model.bin", "holds no weights"),
    ],
)
def test_a_server_that_cannot_take_weights_says_how_to_start_it(
    loaded: Any, tmp_path: Path, fake: Fake, file: str, problem: str
) -> None:
    async def go() -> None:
        (tmp_path / file).write_text("x")
        async with given(fake, loaded) as engine:
            with pytest.raises(BadInput, match=problem):
                await engine.update_weights(1, tmp_path)
            assert (await engine.generate(HELLO)).policy_version == 0

    asyncio.run(go())


def test_no_weights_to_send_is_said(loaded: Any) -> None:
    async def go() -> None:
        async with given(Fake(), loaded) as engine:
            with pytest.raises(BadInput, match="no weights to send"):
                await engine.update_weights(1)

    asyncio.run(go())


@pytest.mark.parametrize(
    ("path", "answer", "problem"),
    [
        ("/reset_prefix_cache", says({"success": False}), "did not succeed; are requests still running"),
        ("/v1/load_lora_adapter", says({"error": {"message": "rank 64 is too large"}}, 400), "HTTP 400: rank 64"),
        ("/v1/load_lora_adapter", says({"error": {"message": "No adapter found for /a"}}, 404), "No adapter found"),
    ],
)
def test_a_failed_update_is_a_failure_of_the_engine(
    loaded: Any, tmp_path: Path, path: str, answer: Answer, problem: str
) -> None:
    async def go() -> None:
        async with given(Fake(control={path: answer}), loaded) as engine:
            with pytest.raises(InfraError, match=problem) as caught:
                await engine.update_weights(1, adapter(tmp_path / "a", "x"))
            assert not caught.value.retryable
            assert (await engine.generate(HELLO)).policy_version == 0

    asyncio.run(go())


def processes_in(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getpgid(int(entry.name)) == group:
                    found.append(int(entry.name))
            except ProcessLookupError:
                pass
    return found


def start(loaded: Any, **settings: Any) -> VLLMEngine:
    engine = VLLMEngine(VLLMConfig(**{"command": SERVE, "start_timeout": 30, **FAST, **settings}))
    engine.bind(loaded)
    return engine


def test_a_server_is_started_used_and_ended(loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not for the server")

    async def go() -> None:
        engine = start(loaded, args=["--enforce-eager"], env={"VLLM_CPU_KVCACHE_SPACE": "1"})
        await engine.open()
        folder, server = engine._folder, engine._server
        assert folder is not None
        assert server is not None
        assert server._process is not None
        group = server._process.pid
        arguments, environment = (folder / "server.log").read_text().splitlines()[:2]
        assert "--enforce-eager" in arguments
        assert "--logprobs-mode processed_logprobs" in arguments
        assert server.key not in arguments, "anybody may read the arguments of a process"
        assert {"VLLM_SERVER_DEV_MODE", "VLLM_API_KEY", "VLLM_CPU_KVCACHE_SPACE"} <= set(environment.split())
        assert "OPENAI_API_KEY" not in environment
        assert (await engine.generate(HELLO)).text == "fine"
        await engine.update_weights(4, adapter(tmp_path / "a", "x"))
        assert (await engine.generate(HELLO)).policy_version == 4
        assert processes_in(group)
        await engine.close()
        assert not processes_in(group)
        assert not folder.exists()
        await engine.close()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("settings", "kind", "problem"),
    [
        ({"args": ["--die"]}, InfraError, "ended with code 1 before it was ready: .*CUDA is out of luck"),
        ({"args": ["--never-ready"], "start_timeout": 1.0}, InfraError, "was not ready within 1 s"),
        ({"command": ["no-such-vllm", "serve"]}, BadInput, r"no program 'no-such-vllm': set engine\.command"),
    ],
)
def test_a_server_that_does_not_come_up_is_reported_and_gone(
    loaded: Any, settings: dict[str, Any], kind: type[Exception], problem: str
) -> None:
    async def go() -> None:
        engine = start(loaded, **settings)
        with pytest.raises(kind, match=problem):
            await engine.open()
        assert engine._folder is None
        assert engine._server is None

    asyncio.run(go())


def test_without_a_model_there_is_nothing_to_start() -> None:
    with pytest.raises(BadInput, match=r"set engine\.model, or engine\.base_url"):
        asyncio.run(VLLMEngine(VLLMConfig()).open())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_server_dies_with_a_run_that_is_killed(tmp_path: Path) -> None:
    """kill -9 leaves no time to clean up."""
    code = f"""
import asyncio, os, signal
from pathlib import Path
from plugym_runners.engines.server import Server
async def go():
    command = {SERVE!r} + ["w", "--served-model-name=m", "--host=127.0.0.1"]
    server = Server(command, {{}}, Path({str(tmp_path)!r}, "log"))
    await server.start(30)
    print(server._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(go())
"""

    async def go() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        assert process.returncode == -signal.SIGKILL
        for _ in range(100):
            if not processes_in(int(out)):
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the server lives on")

    asyncio.run(go())
