"""The `openai` engine against a server that does as it is told: levels, fields, tool calls, images, weights."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import deque
from typing import Any

import numpy as np
import pytest
from fake_server import EOS, Fake, encode, says
from harness import HELLO, ask, opened

from plugym.engine import Level, Sampling
from plugym.errors import BadInput, InfraError
from plugym.message import ImagePart, Message, TextPart, ToolCall, ToolSpec
from plugym_runners.engines.openai import OpenAIEngine
from plugym_runners.engines.settings import EndpointConfig

ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {}, "required": []})


def test_tokens_and_log_probs_come_as_the_server_gives_them() -> None:
    fake = Fake()
    completion, _ = ask(fake)
    assert completion.text == "fine"
    assert completion.finish == "stop"
    assert completion.message is None
    assert completion.token_ids is not None
    assert completion.logprobs is not None
    assert completion.prompt_ids is not None
    assert completion.token_ids.tolist() == [*encode("fine"), EOS]
    assert completion.token_ids.dtype == np.int64
    assert completion.logprobs.tolist() == [-0.5] * 5
    assert completion.logprobs.dtype == np.float32
    (body,) = fake.bodies
    assert completion.prompt_ids.tolist() == encode(json.dumps(body["messages"]))
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert (body["max_tokens"], body["temperature"], body["top_p"]) == (16, 1.0, 1.0)
    assert body["seed"] == 5, "31 bits of it: some servers keep no more"
    assert body["top_k"] == -1, "what generation_config.json says must not decide how the policy is sampled"
    assert "tool_choice" not in body


@pytest.mark.parametrize(
    ("settings", "fake", "level"),
    [
        ({}, Fake(), Level.TOKENS),
        ({}, Fake(without=("return_token_ids",)), Level.LOGPROBS),
        ({}, Fake(without=("logprobs",)), Level.TEXT),
        ({}, Fake(unknown=("return_token_ids",)), Level.LOGPROBS),
        ({}, Fake(unknown=("logprobs",)), Level.TEXT),
        ({"ask": "logprobs"}, Fake(), Level.LOGPROBS),
        ({"ask": "text"}, Fake(), Level.TEXT),
    ],
)
def test_the_level_is_what_the_probe_got(settings: dict[str, Any], fake: Fake, level: Level) -> None:
    async def go() -> None:
        async with opened(fake, **settings) as engine:
            assert engine.capabilities.level is level
            assert engine.capabilities.max_context == 512
            assert engine.capabilities.images
            assert not engine.capabilities.choices
            completion = await engine.generate(HELLO)
        assert (completion.token_ids is not None) == (level is Level.TOKENS)
        assert (completion.logprobs is not None) == (level is not Level.TEXT)
        (body,) = fake.bodies
        assert ("return_token_ids" in body) == (level is Level.TOKENS), "nothing is asked for in vain"
        assert ("logprobs" in body) == (level is not Level.TEXT)

    asyncio.run(go())


def test_every_unknown_parameter_is_dropped_and_only_these() -> None:
    fake = Fake(unknown=("min_p", "repetition_penalty", "top_k", "seed", "top_logprobs"))
    completion, _ = ask(fake)
    assert completion.token_ids is not None
    assert not fake.bodies[0].keys() & set(fake.unknown)


def test_a_renamed_token_limit_is_found() -> None:
    fake = Fake()
    text = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    fake.script.append(says({"error": {"message": text}}, 400))
    ask(fake)
    assert fake.bodies[0]["max_completion_tokens"] == 16
    assert "max_tokens" not in fake.bodies[0]


def test_sampling_that_the_server_does_not_take_is_refused_not_forgotten() -> None:
    for sampling, name in ((Sampling(temperature=0.5), "temperature"), (Sampling(top_k=5), "top_k")):
        with pytest.raises(BadInput, match=rf"does not take {name}="):
            ask(Fake(unknown=(name,)), dataclasses.replace(HELLO, sampling=sampling))
    ask(Fake(unknown=("temperature",)), dataclasses.replace(HELLO, sampling=Sampling(temperature=1.0)))


def test_what_the_user_asked_for_is_never_dropped() -> None:
    with pytest.raises(BadInput, match="refuses a plain request: HTTP 400: Unknown parameter: 'min_p'"):
        ask(Fake(unknown=("min_p",)), extra_body={"min_p": 0.1})


@pytest.mark.parametrize(
    ("settings", "sampling", "kept"),
    [
        ("raw", Sampling(), True),
        ("raw", Sampling(temperature=0.0), True),
        ("raw", Sampling(temperature=0.7), False),
        ("processed", Sampling(temperature=0.7), True),
        ("processed", Sampling(top_p=0.9), False),
        ("processed", Sampling(top_k=9), False),
        ("raw", Sampling(top_p=0.9), True),
    ],
)
def test_log_probs_of_another_distribution_are_withheld(settings: str, sampling: Sampling, kept: bool) -> None:
    completion, counts = ask(Fake(), dataclasses.replace(HELLO, sampling=sampling), logprobs=settings)
    assert (completion.logprobs is not None) == kept
    assert counts["unfit_logprobs"] == (not kept)


def answer(**message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}]}


def call(name: str, arguments: Any, call_id: str | None = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def talk(*messages: dict[str, Any], tools: tuple[ToolSpec, ...] = (ADD,)) -> Any:
    """What becomes of this message of the server."""
    fake = Fake(without=("logprobs",))

    async def go() -> Any:
        async with opened(fake) as engine:
            fake.script.extend(says(answer(**message)) for message in messages)
            return await engine.generate(dataclasses.replace(HELLO, tools=tools))

    return asyncio.run(go())


def test_calls_and_reasoning_the_server_found_become_the_message() -> None:
    got = talk({"content": None, "reasoning_content": "hm", "tool_calls": [call("add", '{"a": 1}')]})
    assert got.message == Message("assistant", "", "hm", got.message.tool_calls)
    (found,) = got.message.tool_calls
    assert (found.id, found.name, found.arguments, found.error) == ("c1", "add", {"a": 1}, None)
    assert got.text == '<think>hm</think><tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def test_reasoning_alone_is_the_servers_work_only_where_there_are_no_tools_to_call() -> None:
    got = talk({"content": "4", "reasoning": "2+2"}, tools=())
    assert (got.message.text, got.message.reasoning) == ("4", "2+2")
    got = talk({"content": "<tool_call>...", "reasoning": "2+2"})
    assert (got.message, got.text) == (None, "<think>2+2</think><tool_call>..."), "the driver looks for calls"


@pytest.mark.parametrize("arguments", ["{oops", "[1]", '{"a": NaN}', "[" * 100_000, '{"a": "\\ud800"}'])
def test_arguments_that_cannot_be_read_are_an_error_of_the_call(arguments: str) -> None:
    (found,) = talk({"content": "", "tool_calls": [call("add", arguments)]}).message.tool_calls
    assert found.error
    assert found.arguments == {}
    assert arguments in found.raw


def test_ids_of_calls_are_made_unique() -> None:
    calls = [call("add", "{}", "same"), call("add", {}, "same"), call("add", None, None)]
    got = talk({"content": None, "tool_calls": calls})
    assert [found.id for found in got.message.tool_calls] == ["same", "call_0_1", "call_0_2"]


def test_text_that_no_file_could_hold_is_mended() -> None:
    assert talk({"content": "a\ud800b"}).text == "a?b"


def test_content_in_parts_is_joined() -> None:
    assert talk({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}).text == "ab"


def test_a_server_without_a_parser_for_calls_still_shows_the_tools() -> None:
    fake = Fake()

    async def go() -> None:
        async with opened(fake) as engine:
            text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            fake.script.extend([says({"error": {"message": text}}, 400)] * 2)
            await asyncio.gather(*(engine.generate(dataclasses.replace(HELLO, tools=(ADD,))) for _ in range(2)))
            assert fake.bodies[-1]["tool_choice"] == "none"
            assert fake.bodies[-1]["tools"] == [ADD.to_openai()]
            await engine.generate(HELLO)
            assert "tool_choice" not in fake.bodies[-1]

    asyncio.run(go())


def test_what_was_said_is_sent_in_the_form_of_endpoints() -> None:
    image = ImagePart(b"png")
    said = (
        Message("user", (TextPart("look"), image)),
        Message("assistant", "", "thought", (ToolCall("c", "add", {"a": 1}),)),
        Message("tool", "2", tool_call_id="c"),
    )
    for send in (False, True):
        fake = Fake()
        ask(fake, dataclasses.replace(HELLO, messages=said), send_reasoning=send)
        user, assistant, tool = fake.bodies[0]["messages"]
        assert user["content"][1]["image_url"]["url"] == "data:image/png;base64,cG5n"
        assert assistant["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
        assert assistant.get("reasoning_content") == ("thought" if send else None)
        assert (tool["role"], tool["tool_call_id"]) == ("tool", "c")


def test_completions_take_exact_prompts(loaded: Any) -> None:
    fake = Fake(text="<|tool|>")
    completion, _ = ask(fake, loaded=loaded, api="completions")
    assert fake.bodies[0]["prompt"] == encode("[user]hi[assistant]")
    assert completion.text == "<|tool|>", "decoded here: the server's text has lost its special tokens"
    exact = dataclasses.replace(HELLO, prompt_ids=np.array([7, 8]), messages=None)
    completion, _ = ask(fake, exact, loaded=loaded, api="completions")
    assert fake.bodies[0]["prompt"] == [7, 8]
    assert completion.prompt_ids is not None
    assert completion.prompt_ids.tolist() == [7, 8]
    cut = dataclasses.replace(exact, sampling=Sampling(max_tokens=2))
    completion, _ = ask(fake, cut, loaded=loaded, api="completions")
    assert (completion.text, completion.finish) == ("<|", "length")


def test_choices_are_scored_by_the_log_probs_of_prompts(loaded: Any) -> None:
    request = dataclasses.replace(HELLO, choices=("A", "BC"))
    completion, _ = ask(Fake(), request, loaded=loaded, api="completions")
    assert completion.finish == "choices"
    assert completion.choice_logprobs == pytest.approx([-0.65, -0.66 - 0.67])


def test_what_an_endpoint_cannot_do_is_said(loaded: Any) -> None:
    choices = dataclasses.replace(HELLO, choices=("A",))
    with pytest.raises(BadInput, match="cannot score choices"):
        ask(Fake(), choices)
    hot = dataclasses.replace(choices, sampling=Sampling(temperature=0.5))
    with pytest.raises(BadInput, match="temperature 1 only"):
        ask(Fake(), hot, loaded=loaded, api="completions")
    with pytest.raises(BadInput, match=r"use engine\.api completions"):
        ask(Fake(), dataclasses.replace(HELLO, messages=None, prompt_ids=np.array([1])))
    with pytest.raises(BadInput, match=r"use engine\.api chat"):
        ask(Fake(), dataclasses.replace(HELLO, media=(ImagePart(b""),)), loaded=loaded, api="completions")
    with pytest.raises(BadInput, match=r"set engine\.tokenizer"):
        ask(Fake(), api="completions")

    async def train() -> None:
        async with opened(Fake()) as engine:
            await engine.update_weights(1)

    with pytest.raises(BadInput, match="train with engine vllm or hf"):
        asyncio.run(train())


def test_a_limit_beyond_the_context_is_cut_to_what_is_left() -> None:
    texts = [
        "'max_tokens' or 'max_completion_tokens' is too large: 16. This model's maximum context length is 40 tokens "
        "and your request has 38 input tokens (16 > 40 - 38).",
        "This model's maximum context length is 40 tokens. However, you requested 54 tokens (38 in the messages, 16 in "
        "the completion).",
    ]
    for text in texts:
        fake = Fake()
        fake.script.extend([fake_probe(fake), says({"error": {"message": text}}, 400)])
        completion, counts = ask(fake)
        assert (completion.text, completion.finish) == ("fi", "length")
        assert counts["shortened"] == 1


def fake_probe(fake: Fake) -> Any:
    return says(
        fake.answer({"model": "m", "messages": [], "max_tokens": 1, "logprobs": True, "return_token_ids": 1}, True)
    )


def test_a_parameter_refused_late_is_dropped_for_all_who_sent_it() -> None:
    fake = Fake()

    async def go() -> None:
        async with opened(fake) as engine:
            fake.unknown = ("min_p",)
            await asyncio.gather(*(engine.generate(HELLO) for _ in range(3)))
            assert engine.counts["requests"] == 6
            await engine.generate(HELLO)
            assert "min_p" not in fake.bodies[-1]

    asyncio.run(go())


@pytest.mark.parametrize("without", [(), ("return_token_ids",)])
def test_a_full_context_is_an_end_not_an_exception(without: tuple[str, ...]) -> None:
    fake = Fake(without=without)

    async def go() -> None:
        async with opened(fake) as engine:
            text = "This model's maximum context length is 40 tokens and your request has 50 input tokens"
            fake.script.append(says({"error": {"message": text}}, 400))
            completion = await engine.generate(HELLO)
            assert (completion.text, completion.finish) == ("", "overflow")
            assert (completion.token_ids is not None) == (not without)
            assert engine.counts["context_overflow"] == 1

    asyncio.run(go())


def test_a_level_never_changes_under_a_run() -> None:
    fake = Fake()

    async def go() -> None:
        async with opened(fake) as engine:
            fake.unknown = ("return_token_ids",)
            with pytest.raises(InfraError, match="return_token_ids") as caught:
                await engine.generate(HELLO)
            assert not caught.value.retryable

    asyncio.run(go())


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, r"has no address: set engine\.base_url"),
        ({"base_url": "localhost:80"}, "is no address"),
        ({"base_url": "http://[::1/v1"}, "is no address"),
        ({"base_url": "http://me:secret@host/v1"}, "user name or password"),
        ({"base_url": "http://127.0.0.1:9/v1", "api_key_env": "PLUGYM_TEST_UNSET"}, "PLUGYM_TEST_UNSET is not set"),
        ({"base_url": "http://127.0.0.1:9/v1", "headers": {"X-Api-Key": "secret"}}, "name an environment variable"),
    ],
)
def test_settings_that_cannot_work_say_what_to_do(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput, match=problem) as caught:
        asyncio.run(OpenAIEngine(EndpointConfig(**settings)).open())
    assert "secret" not in str(caught.value).replace("writing a secret", "")


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUGYM_TEST_KEY", "s3cr3t-key")
    monkeypatch.setenv("PLUGYM_TEST_ORG", "acme")
    fake = Fake(key="s3cr3t-key")
    settings = {"api_key_env": "PLUGYM_TEST_KEY", "headers": {"X-Org": "$PLUGYM_TEST_ORG", "X-Plain": "1"}}
    ask(fake, **settings)
    assert fake.headers["X-Org"] == "acme"
    assert fake.headers["X-Plain"] == "1"
    fake = Fake(key="another")
    with pytest.raises(BadInput, match=r"HTTP 401: no such key: Bearer \*\*\*.*check engine\.api_key_env") as caught:
        ask(fake, **settings)
    assert "s3cr3t" not in str(caught.value)
    long = says({"error": {"message": "x" * 275 + " s3cr3t-key and acme"}}, 400)
    fake = Fake(key="s3cr3t-key", script=deque([long]))
    with pytest.raises(BadInput) as caught:
        ask(fake, **settings)
    assert "x ***" in str(caught.value)
    assert "s3" not in str(caught.value)


def test_the_model_is_found_or_asked_for() -> None:
    fake = Fake(lists_models=False)
    with pytest.raises(BadInput, match=r"HTTP 404.*check engine\.base_url"):
        ask(fake)
    ask(fake, model="m")
    with pytest.raises(BadInput, match=r"The model `other` does not exist.*check engine\.base_url and engine\.model"):
        ask(Fake(), model="other")


def test_an_adapter_is_asked_for_by_its_name() -> None:
    fake = Fake(adapters={"ad": "path"})
    ask(fake, dataclasses.replace(HELLO, adapter="ad"))
    assert fake.bodies[0]["model"] == "ad"


def test_before_open_there_is_nothing_to_ask() -> None:
    with pytest.raises(RuntimeError, match="not open"):
        _ = OpenAIEngine(EndpointConfig()).capabilities
