"""`VLLMEngine`: an endpoint whose weights a run replaces after each step, by LoRA adapter or as a whole.

The server is started here, on the loopback, or given by `base_url`; then it must see the files that new weights are
written to, and have been started as `docs/how-to/use-an-endpoint.md` says.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

from pydantic import BaseModel, Field

from plugym.errors import BadInput, InfraError, InfraKind
from plugym_runners.engines.openai import Bound, OpenAIEngine
from plugym_runners.engines.refusals import Refusal
from plugym_runners.engines.server import Server
from plugym_runners.engines.settings import EndpointConfig

_MODEL = "policy"
_ADAPTER = "policy-lora"
_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # /collective_rpc, /reset_prefix_cache
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


class VLLMConfig(EndpointConfig):
    """Settings of the vLLM engine. Without `base_url` a server is started for `model`, or for the run's own."""

    api: Literal["chat", "completions"] = Field("completions", description="completions: exact prompt ids in")
    logprobs: Literal["raw", "processed"] = Field(
        "processed", description="what the server's --logprobs-mode is; a server started here gets it from this"
    )
    command: list[str] = Field(default_factory=lambda: ["vllm", "serve"], description="program that starts a server")
    args: list[str] = Field(default_factory=list, description="further arguments, such as --tensor-parallel-size=2")
    env: dict[str, str] = Field(
        default_factory=dict, description="further environment variables of the server, no secrets"
    )
    dtype: str = Field("bfloat16", description="of the weights of a server started here")
    lora_rank: int = Field(16, ge=0, description="largest rank of adapters it takes, 0 = no adapters")
    start_timeout: float = Field(600.0, gt=0, description="seconds until a started server must be ready")


class VLLMEngine(OpenAIEngine):
    """Samples from a vLLM server and gives it new weights. Each completion carries the version its request was sent
    under: one that is under way during an update counts as of the old weights."""

    Config: ClassVar[type[BaseModel]] = VLLMConfig
    follows_policy: ClassVar[bool] = True
    name: ClassVar[str] = "vllm"

    def __init__(self, config: BaseModel) -> None:
        self.server_settings = config if isinstance(config, VLLMConfig) else VLLMConfig()
        super().__init__(self.server_settings)
        self._loaded: Bound | None = None
        self._server: Server | None = None
        self._folder: Path | None = None
        self._base_model = ""

    def bind(self, loaded: Bound) -> None:
        super().bind(loaded)
        self._loaded = loaded

    async def open(self) -> None:
        """Start the server where none is given, connect and probe."""
        if self._opened is not None:
            return
        self._folder = Path(tempfile.mkdtemp(prefix="plugym-vllm-"))
        try:
            if self.settings.base_url is not None:
                await super().open()
            else:
                await self._start(self._folder)
        except BaseException:
            await self.close()
            raise
        self._base_model = self._live.dialect.model

    async def _start(self, folder: Path) -> None:
        settings = self.server_settings
        model = settings.model or getattr(self._loaded, "path", None)
        if model is None:
            raise BadInput("engine vllm has no model to start a server for: set engine.model, or engine.base_url")
        self._server = Server(
            serve_command(settings, str(model)), {**_ENVIRONMENT, **settings.env}, folder / "server.log"
        )
        await self._server.start(settings.start_timeout)
        # On this side the weights are known by the name the server was told to use for them.
        self.settings = settings.model_copy(update={"model": _MODEL})
        await self._connect(f"{self._server.root}/v1", self._server.key)

    async def update_weights(self, version: int, source: Any = None) -> None:
        """`source`: a directory with a PEFT adapter or a whole model, a model in memory, or None for the bound one.

        Raises `BadInput` for a server that was not started to take new weights, `InfraError` when it fails to.
        """
        made: Path | None = None
        if not isinstance(source, str | Path):
            source = made = await self._write(version, source)
        try:
            path, adapter = _weights(Path(source))
            if adapter:
                await self._load_adapter(path)
            else:
                await self._reload(path)
            # Keys and values of the old weights are still there, under the same name.
            await self._control("/reset_prefix_cache", fix="start the server with VLLM_SERVER_DEV_MODE=1")
        finally:
            if made is not None:
                shutil.rmtree(made)
        model = _ADAPTER if adapter else self._base_model
        self._live.dialect = dataclasses.replace(self._live.dialect, model=model)
        self._version = version

    async def _write(self, version: int, model: Any) -> Path:
        """The model in memory as files; of a LoRA model the adapter alone."""
        model = model if model is not None else getattr(self._loaded, "model", None)
        if model is None or self._folder is None:
            raise BadInput("engine vllm has no weights to send: give update_weights a path, or bind a model")
        path = self._folder / f"version-{version}"
        await asyncio.to_thread(model.save_pretrained, str(path))
        return path

    async def _load_adapter(self, path: Path) -> None:
        body = {"lora_name": _ADAPTER, "lora_path": str(path), "load_inplace": True}
        fix = "start the server with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
        await self._control("/v1/load_lora_adapter", body, fix=fix)

    async def _reload(self, path: Path) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
        await self._control("/collective_rpc", body, fix="start the server with VLLM_SERVER_DEV_MODE=1")

    async def _control(self, path: str, body: dict[str, Any] | None = None, *, fix: str) -> None:
        """Raises `BadInput` with `fix` where the server does not have `path`, `InfraError` when it says it failed."""
        try:
            answer = await self._live.client.control(path, body)
        except Refusal as refusal:
            _failed(path, str(refusal))
        except InfraError as error:
            # "Not Found" alone is the router's; a missing adapter is a 404 with a sentence.
            cause = error.__cause__
            missing = isinstance(cause, Refusal) and cause.status in (404, 405)
            if missing and "no adapter found" not in str(cause).lower():
                raise BadInput(f"the vLLM server has no {path}: {fix}") from error
            raise
        if answer.lstrip().startswith("{") and json.loads(answer).get("success") is False:
            _failed(path, "the server says it did not succeed; are requests still running?")

    async def close(self) -> None:
        """A server started here ends with its engine."""
        await super().close()
        if self._server is not None:
            await self._server.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._server = self._folder = None


def _weights(path: Path) -> tuple[Path, bool]:
    """The absolute path, as the server needs it, and whether an adapter lies there. Raises `BadInput` for neither."""
    path = path.resolve()
    adapter = (path / "adapter_config.json").is_file()
    if not adapter and not (path / "config.json").is_file():
        raise BadInput(f"{path} has neither an adapter_config.json nor a config.json: it holds no weights")
    return path, adapter


def _failed(path: str, problem: str) -> NoReturn:
    raise InfraError(InfraKind.ENGINE, f"vLLM {path}: {problem}", retryable=False)


def serve_command(settings: VLLMConfig, model: str) -> list[str]:
    """The command line of a server, but for its port.

    >>> serve_command(VLLMConfig(lora_rank=0, args=["--enforce-eager"]), "/models/a")[:5]
    ['vllm', 'serve', '/models/a', '--served-model-name', 'policy']
    """
    command = [*settings.command, model, "--served-model-name", _MODEL, "--host", "127.0.0.1"]
    command += ["--dtype", settings.dtype, "--logprobs-mode", f"{settings.logprobs}_logprobs"]
    # The policy is sampled as asked, not as the model's generation_config.json has it.
    command += ["--generation-config", "vllm"]
    if settings.max_context is not None:
        command += ["--max-model-len", str(settings.max_context)]
    if settings.lora_rank:
        command += ["--enable-lora", "--max-lora-rank", str(settings.lora_rank), "--max-loras", "2"]
    return [*command, *settings.args]
