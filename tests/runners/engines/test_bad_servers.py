"""Servers that are down, overrun, silent, cut off, or talk nonsense: each try is counted under its own name, what can
be asked again is, and what remains is an `InfraError` of kind engine, never an answer."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web
from fake_server import Fake, error, hangs, hangs_up, hangs_up_inside, says, streams
from harness import FAST, HELLO, opened
from hypothesis import given
from hypothesis import strategies as st

from plugym.engine import Completion, Level
from plugym.errors import BadInput, InfraError, InfraKind
from plugym_runners.engines.openai import OpenAIEngine
from plugym_runners.engines.refusals import Flaw, Refusal, checked, overflow, refused_parameter, retry_after
from plugym_runners.engines.settings import EndpointConfig
from plugym_runners.engines.stream import EventParser, assemble
from plugym_runners.engines.throttle import Throttle
from plugym_runners.engines.wire import Dialect, read, read_choices


def once_then_always(answer: Any, **settings: Any) -> tuple[Counter[str], InfraError]:
    """The counts after the server did this once and was right at the next try; the error when it always does it."""

    async def go() -> tuple[Counter[str], InfraError]:
        fake = Fake()
        async with opened(fake, **settings) as engine:
            fake.script.append(answer)
            assert (await engine.generate(HELLO)).text == "fine"
            counts = engine.counts.copy()
            fake.script.extend([answer] * 3)
            with pytest.raises(InfraError) as caught:
                await engine.generate(HELLO)
            assert (await engine.generate(HELLO)).text == "fine", "the engine is as good as before"
            return counts, caught.value

    return asyncio.run(go())


def with_choice(**changes: Any) -> dict[str, Any]:
    """An answer at level tokens that is right but for these fields."""
    choice = {
        "message": {"role": "assistant", "content": "a"},
        "finish_reason": "stop",
        "token_ids": [1],
        "logprobs": {"content": [{"logprob": -1.0}]},
    }
    return {"prompt_token_ids": [1], "choices": [choice | changes]}


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (hangs, "silent", "the connection is open but silent: no byte within 0.2 s"),
        (hangs_up, "disconnected", "the connection was lost: ServerDisconnectedError"),
        (hangs_up_inside, "cut_answer", "the connection was lost in the middle of the answer"),
        (says(b'{"choices": [{"message": {"cont'), "bad_json", "the answer is truncated JSON"),
        (says(b"<html>502</html>"), "bad_json", "the answer is not JSON"),
        (says(b""), "bad_json", "the answer is not JSON"),
        (says(b"[" * 100_000), "bad_json", "the answer is truncated JSON"),
        (says({"choices": []}), "too_few_choices", "the server returned 0 choices where 1 were asked for"),
        (says({"object": "x"}), "too_few_choices", "the server returned 0 choices where 1 were asked for"),
        (says([1]), "bad_answer", "the answer is a JSON list, not an object"),
        (says({"choices": [None]}), "bad_answer", "the answer does not have the shape of one"),
        (says(with_choice(message=None)), "bad_answer", "the answer does not have the shape of one"),
        (says(with_choice(message={"content": 5})), "bad_answer", "text was expected, not int"),
        (says(with_choice(token_ids=None)), "bad_answer", "the server sent no token ids"),
        (says(with_choice(token_ids=[1.5])), "bad_answer", "token ids are not a list of integers"),
        (says(with_choice(token_ids=[1, 2])), "bad_answer", "the server sent 2 token ids and 1 log-probs"),
        (says(with_choice(logprobs=None)), "bad_answer", "the server sent no log-probs"),
        (says(b'{"error": {"message": "no gpu", "code": 503}}'), "status_503", "HTTP 503: no gpu"),
        (says(with_choice(finish_reason="abort")), "finish_abort", "the server gave up on the answer"),
        (says({"error": {"message": "busy"}}, 500), "status_500", "HTTP 500: busy"),
        (says(b"<h1>bad  gateway</h1>", 502), "status_502", "HTTP 502: <h1>bad gateway</h1>"),
        (says({"detail": [{"msg": "slow down"}]}, 429), "status_429", "HTTP 429"),
        (streams(b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'), "cut_stream", "in the middle of the answer"),
        (streams(b": keep-alive\n\n"), "cut_stream", "the stream ended before the answer began"),
        (streams(b"data: {oops\n\n"), "bad_stream", "an event of the stream is not JSON: '{oops'"),
        (streams(b"data: \xff\n\n"), "bad_stream", "the stream is not UTF-8"),
        (streams(b'data: {"error": {"message": "out of memory"}}\n\n'), "status_500", "HTTP 500: out of memory"),
    ],
)
def test_each_failure_is_named_counted_and_tried_again(answer: Any, kind: str, message: str) -> None:
    counts, failure = once_then_always(answer, read_timeout=0.2)
    assert dict(counts) == {"requests": 2, "retries": 1, kind: 1}
    assert message in str(failure)
    assert str(failure).endswith("(tried 3 times)")
    assert failure.kind is InfraKind.ENGINE
    assert failure.retryable
    assert failure.where.startswith("POST http://127.0.0.1:")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (says({"error": {"message": "bad tools"}}, 400), "HTTP 400: bad tools"),
        (says({"error": "no money"}, 402), "HTTP 402: no money"),
        (says({}, 404), "HTTP 404"),
        (says({}, 302, Location="http://127.0.0.1:1/"), "HTTP 302"),
    ],
)
def test_what_cannot_get_better_is_not_tried_again(answer: Any, message: str) -> None:
    async def go() -> None:
        fake = Fake()
        async with opened(fake) as engine:
            fake.script.append(answer)
            with pytest.raises(InfraError, match=message) as caught:
                await engine.generate(HELLO)
            assert not caught.value.retryable
            assert engine.counts["requests"] == 1

    asyncio.run(go())


def test_an_endpoint_that_is_down_is_the_users_to_mend_at_first_and_a_failure_later() -> None:
    async def go() -> None:
        fake = Fake()
        async with fake.serving() as url:
            engine = OpenAIEngine(EndpointConfig(base_url=url, **FAST))
            await engine.open()
        with pytest.raises(InfraError, match=r"cannot connect: .*refused.*tried 3 times") as caught:
            await engine.generate(HELLO)
        assert caught.value.retryable
        lost = engine.counts["disconnected"]  # the connection that was kept alive
        assert (engine.counts["unreachable"] + lost, lost <= 1) == (3, True)
        await engine.close()
        with pytest.raises(BadInput, match=r"cannot connect.*is it running\? check engine\.base_url"):
            await engine.open()

    asyncio.run(go())


def test_a_storm_of_429_ends_and_everybody_is_served() -> None:
    """60 requests against a server that takes 4 at a time and sends the rest away for 50 ms."""
    running = most = 0

    async def overrun(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal running, most
        if running >= 4:
            return error(429, "slow down", Retry_After="0.05")
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return web.json_response(with_choice())

    async def go() -> None:
        fake = Fake()
        async with opened(fake, retries=8, max_concurrent=60) as engine:
            fake.script.extend([overrun] * 10_000)
            texts = await asyncio.gather(*(engine.generate(HELLO) for _ in range(60)))
            assert [completion.text for completion in texts] == ["a"] * 60
            assert 56 <= engine.counts["status_429"] < 300
            assert most == 4

    asyncio.run(go())


def test_a_server_that_only_says_429_ends_in_an_error_after_the_waits_it_asked_for() -> None:
    async def go() -> None:
        fake = Fake()
        async with opened(fake, max_wait=0.1) as engine:
            fake.script.extend([says({"error": {"message": "quota"}}, 429, Retry_After="3600")] * 3)
            began = time.monotonic()
            with pytest.raises(InfraError, match=r"HTTP 429: quota \(tried 3 times\)"):
                await engine.generate(HELLO)
            assert 0.2 <= time.monotonic() - began < 5, "as long as asked for, up to max_wait"

    asyncio.run(go())


def test_a_cancelled_request_leaves_nothing_behind() -> None:
    """The driver cancels at its deadline: the place must be free again, also of one that stood in line."""

    async def go() -> None:
        fake = Fake()
        async with opened(fake, max_concurrent=1) as engine:
            fake.script.append(hangs)
            jobs = [asyncio.create_task(engine.generate(HELLO)) for _ in range(3)]
            await asyncio.sleep(0.05)
            for job in jobs[:2]:
                job.cancel()
            assert (await asyncio.wait_for(jobs[2], 2)).text == "fine"

    asyncio.run(go())


def test_no_more_at_once_and_no_more_a_minute_than_set() -> None:
    async def go() -> None:
        throttle, running, most, starts = Throttle(3, per_minute=6000), 0, 0, []

        async def one() -> None:
            nonlocal running, most
            async with throttle:
                starts.append(time.monotonic())
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.001)
                running -= 1

        await asyncio.gather(*(one() for _ in range(12)))
        assert most <= 3
        assert starts[-1] - starts[0] >= 0.1, "11 intervals of 10 ms"

    asyncio.run(go())


def test_the_window_halves_once_a_storm_and_grows_back() -> None:
    throttle = Throttle(8)
    throttle.refused(60)
    throttle.refused(60)
    assert throttle.limit == 4
    for _ in range(4 + 5 + 6 + 7 + 4):
        throttle.succeeded()
    assert throttle.limit == 8


CHUNKS = [
    {"prompt_token_ids": [1, 2], "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"reasoning_content": "h"}, "token_ids": [5]}]},
    {"choices": [{"index": 0, "delta": {"reasoning_content": "m"}, "logprobs": {"content": [{"logprob": -1.0}]}}]},
    {"choices": [{"index": 0, "delta": {"content": "é\u2028"}, "token_ids": [6]}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "add"}}]}}]},
    {"choices": [{"index": 1, "delta": {"content": "of another choice"}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls", "logprobs": {"content": [{"logprob": -2}]}}]},
    {"choices": [], "usage": {"total_tokens": 3}},
]


def wire(ending: str) -> bytes:
    events = [": hello", *(f"data: {json.dumps(chunk, ensure_ascii=False)}" for chunk in CHUNKS), "data: [DONE]"]
    return "".join(event + ending * 2 for event in events).encode()


async def pieces_of(data: bytes, cuts: list[int]) -> Any:
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    for begin, end in itertools.pairwise(places):
        yield data[begin:end]


@given(st.lists(st.integers(0, 10_000), max_size=30), st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_stream_is_the_same_answer_in_whatever_pieces_it_comes(cuts: list[int], ending: str) -> None:
    payload = asyncio.run(assemble(pieces_of(wire(ending), cuts)))
    completion = read(payload, Dialect("m", "chat", Level.TOKENS, {}), HELLO)
    assert completion.message is not None
    assert (completion.message.content, completion.message.reasoning) == ("é\u2028", "hm")
    assert completion.message.tool_calls[0].arguments == {"a": 1}
    assert completion.token_ids is not None
    assert completion.prompt_ids is not None
    assert completion.logprobs is not None
    assert (completion.prompt_ids.tolist(), completion.token_ids.tolist()) == ([1, 2], [5, 6])
    assert completion.logprobs.tolist() == [-1, -2]


def test_a_streamed_answer_is_read_at_either_api(loaded: Any) -> None:
    async def go() -> None:
        fake = Fake()
        async with opened(fake, stream=True) as engine:
            fake.script.append(streams(wire("\n")))
            assert (await engine.generate(HELLO)).text.startswith("<think>hm</think>")
            assert fake.bodies[-1]["stream"] is True
        async with opened(fake, loaded, api="completions") as engine:
            chunks = [
                {"choices": [{"text": c, "token_ids": [ord(c)], "logprobs": {"token_logprobs": [-1.0]}}]} for c in "ok"
            ]
            chunks[-1]["choices"][0]["finish_reason"] = "length"
            fake.script.append(streams(*(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks)))
            completion = await engine.generate(HELLO)
            assert (completion.text, completion.finish) == ("ok", "length")

    asyncio.run(go())


def test_an_event_without_end_is_given_up() -> None:
    parser = EventParser()
    assert list(parser.feed(b"data: " + b"x" * (16 * 2**20 - 6))) == []
    with pytest.raises(Flaw, match="more than 16 MiB"):
        list(parser.feed(b"x"))


FIELDS = [
    "choices",
    "message",
    "content",
    "token_ids",
    "logprobs",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "index",
    "delta",
    "text",
    "finish_reason",
    "error",
    "code",
    "token_logprobs",
    "prompt_token_ids",
    "id",
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, st.sampled_from(["chat", "completions"]), st.sampled_from(list(Level)))
def test_no_json_makes_the_reader_fail_in_another_way(payload: Any, api: Any, level: Level) -> None:
    dialect = Dialect("m", api, level, {})
    for attempt in (payload, {"choices": [payload]}, with_choice(**payload) if isinstance(payload, dict) else {}):
        with suppress(Flaw):
            assert isinstance(checked(lambda answer: read(answer, dialect, HELLO), attempt), Completion)
        with suppress(Flaw):
            assert len(checked(lambda answer: read_choices(answer, 1, [[2]]), attempt)) == 1


def test_ten_thousand_damaged_streams() -> None:
    """Cut, spliced and salted: an answer or a flaw, nothing else."""
    rng, whole, seen = random.Random(0), wire("\n"), Counter[str]()

    async def go() -> None:
        for _ in range(10_000):
            at, to = sorted(rng.randrange(len(whole)) for _ in range(2))
            data = rng.choice(
                [
                    whole[:at],
                    whole[:at] + whole[to:],
                    whole[:to] + whole[at:],
                    whole[:at] + rng.randbytes(3) + whole[at:],
                ]
            )
            try:
                payload = await assemble(pieces_of(data or b"\n", [rng.randrange(1, 5000)]))
                checked(lambda answer: read(answer, Dialect("m", "chat", Level.TEXT, {}), HELLO), payload)
                seen["good"] += 1
            except Flaw as flaw:
                seen[flaw.kind] += 1

    asyncio.run(go())
    assert min(seen["good"], seen["bad_stream"], seen["cut_stream"]) > 200


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"Retry-After": "7"}, 7, 7),
        ({"retry-after": " 1.5 "}, 1.5, 1.5),
        ({"Retry-After": "9", "Retry-After-Ms": "20"}, 0.02, 0.02),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0, 0),
        ({"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, 1e9, 1e12),
    ],
)
def test_retry_after_in_all_its_forms(headers: dict[str, str], low: float, high: float) -> None:
    seconds = retry_after(headers)
    assert seconds is not None
    assert low <= seconds <= high


@given(st.text(max_size=40))
def test_no_header_and_no_refusal_makes_the_reader_raise(text: str) -> None:
    assert (retry_after({"Retry-After": text}) or 0) >= 0
    refusal = Refusal(400, text)
    assert "HTTP 400: " in str(refusal)
    refused_parameter(refusal, ["seed"])
    overflow(refusal)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Unknown parameter: 'top_logprobs'.", "top_logprobs"),
        ('[{"type":"extra_forbidden","loc":["body","seed"],"msg":"Extra inputs are not permitted"}]', "seed"),
        ("property 'logprobs' is unsupported", "logprobs"),
        ("seeds must be planted", None),
    ],
)
def test_the_refused_parameter_is_read(text: str, name: str | None) -> None:
    sent = ["logprobs", "top_logprobs", "seed"]
    assert refused_parameter(Refusal(400, text), sent) == name
    assert refused_parameter(Refusal(500, text), sent) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("maximum context length is 512 tokens ... too large (256 > 512 - 300).", (512, 300)),
        ("maximum context length is 4097 tokens. However, you requested 5000 tokens (900 in the messages", (4097, 900)),
        ('{"error": {"code": "context_length_exceeded"}}', ()),
        ("the request exceeds the available context size", ()),
        ("model not found", None),
    ],
)
def test_an_overflow_is_read(text: str, found: Any) -> None:
    assert overflow(Refusal(400, text)) == found
