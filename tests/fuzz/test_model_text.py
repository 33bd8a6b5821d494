"""What a model may write: tool-call parsers and graders take any text, and the chat renderer any conversation."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fuzzing import PER_EXAMPLE, damaged, fuzz, seeds
from hypothesis import given
from hypothesis import strategies as st

from plugym.errors import BadInput
from plugym.message import ImagePart, Message, TextPart, ToolCall, ToolSpec
from plugym.registry import registry
from plugym.rollout.chat import HFChatTokenizer, continuation, without_tools
from plugym.rollout.parsers import HermesParser
from plugym.testing import CharTokenizer
from plugym_rewards.verifier.checks import find_choice
from plugym_rewards.verifier.equal import Verdict, grade, grade_response

DATA = Path(__file__).parents[1] / "data" / "verifier"

text = st.text(st.characters(codec="utf-8"), max_size=12)

# --- parsers ------------------------------------------------------------------------------------------------------

CALLS = [
    '<think>so</think>hi<tool_call>{"name": "add", "arguments": {"a": [1, "\\u00e9"], "b": {}}}</tool_call>bye',
    "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    '<|python_tag|>{"name": "add", "parameters": {"a": 1}}<|eom_id|>',
    '<add>{"a": 1}</add> <call name="add"><a>1</a></call>',
]
PIECES = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"),
    *("<|python_tag|>", '{"name": "f", "arguments": "{}"}', '{"name": 3}', "\\ud800", "\x00", "\u2028", "NaN", "1e999"),
    *("9" * 5000, "[" * 2000, "{", "}", '"', "\\", "\n", "🙂"),
]


@pytest.mark.parametrize("name", sorted({plugin.name for plugin in registry().plugins("parsers")}))
@given(st.lists(st.sampled_from(CALLS) | text, min_size=1, max_size=3), seeds)
@fuzz
def test_parsers(name: str, parts: list[str], seed: int) -> None:
    parser = registry().create("parsers", name)
    for turn, raw in enumerate(damaged("".join(parts), seed, PIECES)):
        action = parser.parse(raw, turn)
        assert action.raw == raw
        ids = [call.id for call in action.tool_calls]
        assert len(set(ids)) == len(ids), raw
        for call in action.tool_calls:
            json.dumps([call.name, dict(call.arguments)], allow_nan=False, ensure_ascii=False).encode()


# --- graders ------------------------------------------------------------------------------------------------------

CASES = [
    json.loads(line)
    for name in ("answers.jsonl", "responses.jsonl")
    for line in (DATA / name).read_text(encoding="utf-8").splitlines()
]
ANSWER_PIECES = [
    *(
        r"\frac{",
        r"\sqrt{",
        r"\boxed{",
        "}",
        "{",
        "^",
        "_",
        "!",
        "(",
        ")",
        "[",
        "]",
        ",",
        "<",
        "=",
        "≤",
        r"\pm",
        "%",
        "$",
    ),
    *(
        " or ",
        "not ",
        r"\text{",
        r"\left",
        r"\begin{pmatrix}",
        "&",
        r"\\",
        "½",
        "²",
        "٣",
        "√",
        "∞",
        "nan",
        "1e400",
        "/0",
    ),
    *("10^{10^{10}}", "9!!!!", "9" * 400, "((((" * 50, "####", "<answer>", "</think>", "\x00", "\ud800"),
]


@given(st.sampled_from(CASES), seeds)
@fuzz
def test_graders(case: dict[str, Any], seed: int) -> None:
    for pred in damaged(case["pred"], seed, ANSWER_PIECES, PER_EXAMPLE // 2):
        assert isinstance(grade(case["gold"], pred), Verdict)
        assert isinstance(grade_response(case["gold"], pred), Verdict)
        assert find_choice(pred) in (None, *"ABCDEFGHIJ")
    for gold in damaged(case["gold"], seed, ANSWER_PIECES, PER_EXAMPLE // 2):
        assert isinstance(grade(gold, case["pred"]), Verdict)


# --- chat rendering -----------------------------------------------------------------------------------------------

ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {}, "required": []})


class PlainTemplate:
    """A transformers tokenizer whose template knows no tools and insists that user and assistant alternate."""

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
        roles = [message["role"] for message in messages if message["role"] != "system"]
        if any(role == earlier for earlier, role in pairwise(roles)):
            raise ValueError("roles must alternate")
        return "".join(f"[{m['role']}]{m['content']}" for m in messages) + "[assistant]"


calls = st.builds(ToolCall, text, text, st.dictionaries(text, st.integers() | text, max_size=2))
contents = text | st.lists(st.builds(TextPart, text), max_size=2).map(tuple)
messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    contents | st.just((ImagePart(b"png"),)),
    text,
    st.lists(calls, max_size=2).map(tuple),
    st.none() | text,
)
TOKENIZERS = [CharTokenizer(), CharTokenizer(tools=False, strip_thinking=True)]


@given(st.lists(messages, min_size=4, max_size=8), seeds)
@fuzz
def test_chat_renderer(pool: list[Message], seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(PER_EXAMPLE):
        chat = rng.choices(pool, k=rng.randint(0, 6))
        tools = [ADD] * rng.randint(0, 1)
        plain = without_tools(chat, tools, HermesParser())
        assert not any(message.role == "tool" or message.tool_calls for message in plain)
        for tokenizer in TOKENIZERS:
            check_rendering(tokenizer, chat, tools)
        check_continuation(HFChatTokenizer(PlainTemplate(), [0]), chat, tools)


def check_rendering(tokenizer: CharTokenizer, chat: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
    """Rendered and encoded without loss, or refused because of an image."""
    pictures = any(message.images for message in chat)
    try:
        rendered = tokenizer.render(chat, tools, generation_prompt=True)
    except BadInput:
        assert pictures
        return
    assert not pictures
    assert tokenizer.decode(tokenizer.encode(rendered)) == rendered
    check_continuation(tokenizer, chat, tools)


def check_continuation(tokenizer: Any, chat: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
    try:
        tail = continuation(tokenizer, chat, tools)
    except BadInput:
        assert any(message.images for message in chat)
    else:
        assert tail is None or tail.endswith(("[assistant]", "<|im_start|>assistant\n"))
