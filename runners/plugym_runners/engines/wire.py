"""Requests to JSON bodies, JSON answers to completions: the one place that knows the fields of the two OpenAI APIs.

A `Dialect` is what a server has shown to understand. Fields beyond OpenAI's are vLLM's (`return_token_ids`,
`prompt_token_ids`, `token_ids`); a server without them simply does not send them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from plugym.engine import ChatTokenizer, Completion, Finish, GenerateRequest, Level
from plugym.errors import BadInput
from plugym.message import Message, ToolCall
from plugym.rollout.parsers import call_with
from plugym.trajectory import FloatArray, IntArray
from plugym_runners.engines.refusals import Flaw, error_in

_FINISH: dict[Any, Finish] = {"length": "length", "max_tokens": "length"}
_NO_ANSWER = {"content_filter", "abort", "error"}
"""Ends that are the server's doing: the text is not what the policy would have said."""
_SEED = 2**31 - 1
"""Some servers keep seeds in 32 bits."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a server understands. `fixed` are fields sent with each request, `length_field` names the token limit."""

    model: str
    api: Literal["chat", "completions"]
    level: Level
    fixed: Mapping[str, Any]
    dropped: frozenset[str] = frozenset()
    length_field: str = "max_tokens"
    choices: bool = False
    send_reasoning: bool = False

    @property
    def path(self) -> str:
        return "/chat/completions" if self.api == "chat" else "/completions"


def build(request: GenerateRequest, dialect: Dialect, prompt: IntArray | None) -> dict[str, Any]:
    """The body of a request; `prompt` are its exact ids, None for the chat API. Raises `BadInput` for what this server
    cannot do."""
    sampling = request.sampling
    body: dict[str, Any] = {
        **dialect.fixed,
        "model": request.adapter or dialect.model,
        dialect.length_field: sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": request.seed & _SEED,
    }
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    for name in dialect.dropped & body.keys():
        if (name, body[name]) in (("temperature", 1.0), ("top_p", 1.0)) or name == "seed":
            del body[name]
        else:
            raise BadInput(f"the server of model {dialect.model!r} does not take {name}={body[name]!r}: leave it out")
    if prompt is not None:
        body["prompt"] = prompt.tolist()
        return body
    body["messages"] = [_message(message, dialect.send_reasoning) for message in request.messages or ()]
    if request.tools:
        body["tools"] = [tool.to_openai() for tool in request.tools]
    else:
        body.pop("tool_choice", None)  # servers refuse it where there are no tools
    return body


def _message(message: Message, send_reasoning: bool) -> dict[str, Any]:
    """Endpoints take the arguments of a call as a string; chat templates, for which `to_openai` is, as an object."""
    out = message.to_openai()
    if not send_reasoning:
        out.pop("reasoning_content", None)
    for call in out.get("tool_calls", ()):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return out


def read(
    payload: Any,
    dialect: Dialect,
    request: GenerateRequest,
    prompt: IntArray | None = None,
    tokenizer: ChatTokenizer | None = None,
) -> Completion:
    """The completion in an answer. Raises `Flaw`, or what stumbling over an odd shape raises (see `checked`)."""
    choice = choices_of(payload, 1)[0]
    reason = choice.get("finish_reason")
    if reason in _NO_ANSWER:
        raise Flaw(f"finish_{reason}", f"the server gave up on the answer: finish_reason {reason!r}")
    finish = _FINISH.get(reason, "stop")
    prompt_ids, token_ids, logprobs = prompt, None, None
    if dialect.level is Level.TOKENS:
        shown = choice.get("prompt_token_ids") or payload.get("prompt_token_ids")
        if shown is not None or prompt is None:
            prompt_ids = _ids(shown, "prompt token ids")
        token_ids = _ids(choice.get("token_ids"), "token ids")
    if dialect.level is not Level.TEXT:
        logprobs = _logprobs(choice, dialect.api)
        if token_ids is not None and len(token_ids) != len(logprobs):
            raise Flaw("bad_answer", f"the server sent {len(token_ids)} token ids and {len(logprobs)} log-probs")
    if dialect.api == "completions":
        text, message = _text(choice["text"]), None
        if tokenizer is not None and token_ids is not None:
            # The server's text has lost its special tokens, and some formats of tool calls consist of them.
            sampled = token_ids.tolist()
            text = tokenizer.decode(sampled[:-1] if sampled and sampled[-1] in tokenizer.eos_ids else sampled)
    else:
        text, message = _read_message(choice["message"], request)
    return Completion(text, finish, prompt_ids, token_ids, logprobs, message=message)


def choices_of(payload: Any, n: int) -> list[dict[str, Any]]:
    """The `n` choices of an answer, in order. Raises `Flaw` when there are fewer."""
    if not isinstance(payload, dict):
        raise Flaw("bad_answer", f"the answer is a JSON {type(payload).__name__}, not an object")
    error = error_in(payload)
    if error is not None:
        raise error
    choices = payload.get("choices") or []
    if not isinstance(choices, list) or len(choices) < n:
        got = len(choices) if isinstance(choices, list) else 0
        raise Flaw("too_few_choices", f"the server returned {got} choices where {n} were asked for")
    return sorted(choices[:n], key=lambda choice: choice.get("index") or 0)


def _ids(values: Any, what: str) -> IntArray:
    if not isinstance(values, list):
        raise Flaw("bad_answer", f"the server sent no {what}, though it did when it was probed")
    ids = np.array(values)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind != "i"):
        raise TypeError(f"{what} are not a list of integers")
    return ids.astype(np.int64)


def _logprobs(choice: Mapping[str, Any], api: str) -> FloatArray:
    part = choice.get("logprobs")
    if not isinstance(part, dict):
        raise Flaw("bad_answer", "the server sent no log-probs, though it did when it was probed")
    content = part.get("content") if api == "chat" else part.get("token_logprobs")
    values = np.array([entry["logprob"] for entry in content or ()] if api == "chat" else content or (), np.float32)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError("log-probs are not finite numbers")
    return values


def _read_message(message: Mapping[str, Any], request: GenerateRequest) -> tuple[str, Message | None]:
    """(text as the model may have written it, what the server made of it). The message is None where the server did
    no work: reasoning alone does not count while the answer may hold calls that it did not look for."""
    content = _text(message.get("content"))
    reasoning = _text(message.get("reasoning_content") or message.get("reasoning"))
    text = f"<think>{reasoning}</think>{content}" if reasoning else content
    entries = message.get("tool_calls") or ()
    if not entries:
        parsed = Message("assistant", content, reasoning) if reasoning and not request.tools else None
        return text, parsed
    turn = sum(earlier.role == "assistant" for earlier in request.messages or ())
    calls: list[ToolCall] = []
    for number, entry in enumerate(entries):
        call = _call(entry, f"call_{turn}_{number}", {other.id for other in calls})
        calls.append(call)
        text += call.raw
    return text, Message("assistant", content, reasoning, tuple(calls))


def _call(entry: Mapping[str, Any], own_id: str, taken: set[str]) -> ToolCall:
    """A call the server found; its arguments are the model's text and may be anything."""
    function = entry["function"]
    name, raw = _text(function["name"]), function.get("arguments") or "{}"
    raw = json.dumps(raw, ensure_ascii=False) if isinstance(raw, dict) else _text(raw)  # some send an object
    call_id = entry.get("id")
    if not isinstance(call_id, str) or not call_id or call_id in taken:
        call_id = own_id
    written = f'<tool_call>{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {raw}}}</tool_call>'
    return call_with(call_id, name, raw, written)


def _text(content: Any) -> str:
    """Text out of a field of an answer. Halves of surrogate pairs, which no file can hold, become question marks."""
    if content is None:
        return ""
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content)
    if not isinstance(content, str):
        raise TypeError(f"text was expected, not {type(content).__name__}")
    return content.encode(errors="replace").decode()


def choice_body(prompt: IntArray, answers: Sequence[Sequence[int]], model: str) -> dict[str, Any]:
    """Asks for the log-probs of prompt plus answer, one prompt per answer (`echo` gives those of the prompt)."""
    prompts = [[*prompt.tolist(), *answer] for answer in answers]
    return {"model": model, "prompt": prompts, "max_tokens": 1, "temperature": 0.0, "echo": True, "logprobs": 1}


def read_choices(payload: Any, start: int, answers: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """Summed log-prob of each answer; `start` is the length of the prompt."""
    sums = []
    for choice, answer in zip(choices_of(payload, len(answers)), answers, strict=True):
        values = choice["logprobs"]["token_logprobs"][start : start + len(answer)]
        if len(values) != len(answer):
            raise Flaw("bad_answer", f"the server sent {len(values)} log-probs for a choice of {len(answer)} tokens")
        sums.append(float(sum(values)))
    if not np.isfinite(sums).all():
        raise ValueError("log-probs are not finite numbers")
    return tuple(sums)
