"""Chat rendering with a Hugging Face-like tokenizer: tools where the template has them, the fallback where not."""

from __future__ import annotations

from typing import Any

import pytest

from plugym.errors import BadInput
from plugym.message import ImagePart, Message, TextPart, ToolCall, ToolSpec
from plugym.rollout.chat import HFChatTokenizer, continuation
from plugym.testing import CharTokenizer

ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {}, "required": []})
CALL = ToolCall("c0", "add", {"a": 1})
CHAT = (
    Message("system", "Be brief."),
    Message("user", "1+1?"),
    Message("assistant", "Hm.", tool_calls=(CALL,)),
    Message("tool", "2", tool_call_id="c0"),
    Message("tool", "3", tool_call_id="c1"),
)


class FakeHF:
    """What `HFChatTokenizer` needs of a transformers tokenizer. `kind`: `tools`, `silent` (drops what it does not
    know), `strict` (raises on roles it does not know)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def apply_chat_template(
        self, messages: list[dict[str, Any]], *, tools: Any, add_generation_prompt: bool, tokenize: bool
    ) -> str:
        out = f"[tools {[t['function']['name'] for t in tools]}]" if tools and self.kind == "tools" else ""
        for message in messages:
            if message["role"] == "tool" and self.kind != "tools":
                if self.kind == "strict":
                    raise ValueError("roles must alternate user/assistant")
                continue
            calls = message.get("tool_calls", []) if self.kind == "tools" else []
            names = "".join(f"<{c['function']['name']}>" for c in calls)
            out += f"[{message['role']}]{message['content']}{names}[end]"
        return out + ("[assistant]" if add_generation_prompt else "")

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert add_special_tokens is False
        return [ord(char) for char in text]

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens is False
        return "".join(map(chr, ids))


def test_support_for_tools_is_tried_not_guessed() -> None:
    assert [HFChatTokenizer(FakeHF(kind), [0]).supports_tools for kind in ("tools", "silent", "strict")] == [
        True,
        False,
        False,
    ]


def test_a_template_with_tools_gets_everything_as_it_is() -> None:
    text = HFChatTokenizer(FakeHF("tools"), [0]).render(CHAT, [ADD], generation_prompt=True)
    assert text == (
        "[tools ['add']][system]Be brief.[end][user]1+1?[end][assistant]Hm.<add>[end]"
        "[tool]2[end][tool]3[end][assistant]"
    )


@pytest.mark.parametrize("kind", ["silent", "strict"])
def test_the_fallback_puts_schemas_in_the_system_message_and_results_in_user_turns(kind: str) -> None:
    text = HFChatTokenizer(FakeHF(kind), [0]).render(CHAT, [ADD], generation_prompt=True)
    system, rest = text.split("[end]", 1)
    assert system.startswith("[system]Be brief.\n\n")
    assert ADD.to_json() in system
    assert rest == (
        '[user]1+1?[end][assistant]Hm.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>[end]'
        "[user]Tool result: 2\nTool result: 3[end][assistant]"
    )


def test_the_fallback_makes_a_system_message_where_there_is_none() -> None:
    text = HFChatTokenizer(FakeHF("strict"), [0]).render(CHAT[1:2], [ADD], generation_prompt=False)
    assert text.startswith("[system]You may call these tools")
    assert text.endswith("[user]1+1?[end]")


def test_a_chat_without_tools_is_left_alone() -> None:
    assert HFChatTokenizer(FakeHF("strict"), [0]).render(CHAT[:2], [], generation_prompt=False) == (
        "[system]Be brief.[end][user]1+1?[end]"
    )


@pytest.mark.parametrize("role", ["user", "tool"])
@pytest.mark.parametrize("kind", ["tools", "strict"])
def test_an_image_is_refused_never_dropped(kind: str, role: Any) -> None:
    picture = Message(role, (TextPart("look"), ImagePart(b"png")), tool_call_id="c0" if role == "tool" else None)
    tokenizer = HFChatTokenizer(FakeHF(kind), [0])
    with pytest.raises(BadInput, match="takes text only"):
        tokenizer.render([*CHAT[:3], picture], [ADD], generation_prompt=True)
    with pytest.raises(BadInput, match="takes text only"):
        continuation(tokenizer, [picture], [ADD])


def test_continuation_is_what_follows_the_assistants_text() -> None:
    tokenizer = CharTokenizer()
    tail = continuation(tokenizer, [Message("tool", "2", tool_call_id="c0")], [ADD])
    assert tail == "<|im_end|>\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n"
    assert continuation(HFChatTokenizer(FakeHF("strict"), [0]), [Message("tool", "2")], []) == (
        "[end][user]Tool result: 2[end][assistant]"
    )


def test_continuation_says_when_a_template_cannot_tell() -> None:
    class Refuses(CharTokenizer):
        def render(self, messages: Any, tools: Any, *, generation_prompt: bool) -> str:
            raise ValueError("only one user turn")

    class Swallows(CharTokenizer):
        def render(self, messages: Any, tools: Any, *, generation_prompt: bool) -> str:
            return "nothing of what was said"

    assert continuation(Refuses(), [Message("user", "x")], ()) is None
    assert continuation(Swallows(), [Message("user", "x")], ()) is None


def test_ids_go_through_without_special_tokens_added() -> None:
    tokenizer = HFChatTokenizer(FakeHF("tools"), [3, 4])
    assert list(tokenizer.eos_ids) == [3, 4]
    assert tokenizer.decode(tokenizer.encode("hi")) == "hi"
