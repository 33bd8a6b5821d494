"""What a server understands, found out once by asking: its model, its context, and how much it says about tokens.

A request with everything we would like goes out. A 400 that names a parameter costs the server that parameter, and the
next request goes without it; what is in the answer that comes at last decides the level.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from plugym.engine import GenerateRequest, Level, Sampling
from plugym.errors import BadInput, InfraError
from plugym.message import Message
from plugym.trajectory import IntArray
from plugym_runners.engines.client import Client
from plugym_runners.engines.refusals import Flaw, Refusal, checked, refused_parameter
from plugym_runners.engines.settings import EndpointConfig
from plugym_runners.engines.wire import Dialect, build, choice_body, choices_of, read, read_choices

log = logging.getLogger("plugym.engines")

HELLO = GenerateRequest(messages=(Message("user", "Say OK."),), sampling=Sampling(max_tokens=1))
"""What is asked. One token is enough."""

# What the server would otherwise take from the model's generation_config.json, and the policy is then not sampled
# from as the learner believes. Each value means "off" to the servers that know the field.
_OFF = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
_TOKEN_FIELDS = {
    "chat": {"logprobs": True, "top_logprobs": 0, "return_token_ids": True},
    "completions": {"logprobs": 0, "return_token_ids": True},
}
_ABOUT_LOGPROBS = ("logprobs", "top_logprobs", "return_token_ids")
_CONTEXT_FIELDS = ("max_model_len", "context_length", "context_window", "max_context_length")


@dataclass(frozen=True, slots=True)
class Served:
    """The model to ask for, and its context length in tokens where the server says."""

    model: str
    max_context: int | None


async def find_model(client: Client, config: EndpointConfig) -> Served:
    """Raises `BadInput` when no model was named and the server has not exactly one."""
    try:
        models = await client.get("/models", _models)
    except (InfraError, Refusal) as error:
        flaw = error.__cause__ if isinstance(error, InfraError) else error
        if config.model is None or not isinstance(flaw, Refusal) or flaw.status in (401, 403):
            raise
        models = []  # not every server lists its models
    names = [model["id"] for model in models]
    if config.model is None and len(names) != 1:
        raise BadInput(f"set engine.model to one of those the server has: {', '.join(map(str, names)) or 'none'}")
    name = names[0] if config.model is None else config.model
    entry = next((model for model in models if model["id"] == name), {})
    sizes = [entry[field] for field in _CONTEXT_FIELDS if isinstance(entry.get(field), int)]
    return Served(str(name), config.max_context or (sizes[0] if sizes else None))


def _models(payload: Any) -> list[dict[str, Any]]:
    return [model for model in payload["data"] if "id" in model]


async def probe(client: Client, config: EndpointConfig, model: str, prompt: IntArray | None) -> Dialect:
    """Find the dialect. `prompt` is `HELLO` in tokens, for the completions API.

    Raises `BadInput` when the server refuses even a plain request.
    """
    wanted = Level(config.ask)
    fields = {} if wanted is Level.TEXT else dict(_TOKEN_FIELDS[config.api])
    if wanted is not Level.TOKENS:
        fields.pop("return_token_ids", None)
    fixed = {**_OFF, **fields, **config.extra_body, **({"stream": True} if config.stream else {})}
    dialect = Dialect(model, config.api, wanted, fixed, send_reasoning=config.send_reasoning)
    while True:
        body = build(HELLO, dialect, prompt)
        try:
            payload = await client.post(dialect.path, body, _answer)
            break
        except Refusal as refusal:
            adapted = adapt(dialect, refusal, body, keep=config.extra_body.keys())
            if adapted is None:
                raise BadInput(f"{client.base_url}{dialect.path} refuses a plain request: {refusal}") from refusal
            dialect = adapted
    dialect = _at_level(dialect, _level(payload, dialect, prompt))
    if config.api == "completions" and prompt is not None:
        dialect = dataclasses.replace(dialect, choices=await _gives_choices(client, model, prompt))
    log.info("%s: level %s, without %s", client.base_url, dialect.level, sorted(dialect.dropped) or "nothing")
    return dialect


def adapt(dialect: Dialect, refusal: Refusal, body: dict[str, Any], *, keep: Collection[str] = ()) -> Dialect | None:
    """The dialect after this refusal; None when it names nothing that can be left out. `keep` is what the user asked
    for in so many words."""
    if dialect.length_field == "max_tokens" and "max_completion_tokens" in refusal.text:
        return dataclasses.replace(dialect, length_field="max_completion_tokens")
    if "tools" in body and "tool_choice" not in body and re.search(r"tool[_ -]choice", refusal.text):
        # vLLM without a tool parser: the tools are still shown to the model, and the driver reads the calls.
        return dataclasses.replace(dialect, fixed={**dialect.fixed, "tool_choice": "none"})
    optional = {*_OFF, *_ABOUT_LOGPROBS, "seed", "temperature", "top_p"} - set(keep) - dialect.dropped
    name = refused_parameter(refusal, optional & body.keys())
    if name is None:
        return None
    gone = set(_ABOUT_LOGPROBS) if name == "logprobs" else {name}
    fixed = {field: value for field, value in dialect.fixed.items() if field not in gone}
    return dataclasses.replace(dialect, fixed=fixed, dropped=dialect.dropped | gone)


def _answer(payload: Any) -> Any:
    choices_of(payload, 1)
    return payload


def _level(payload: Any, dialect: Dialect, prompt: IntArray | None) -> Level:
    """The highest level at which this answer can be read."""
    levels = list(Level)
    for level in levels[levels.index(dialect.level) :]:
        candidate = dataclasses.replace(dialect, level=level)
        try:
            checked(partial(read, dialect=candidate, request=HELLO, prompt=prompt), payload)
        except Flaw as flaw:
            problem = flaw
        else:
            return level
    raise BadInput(f"the server's answer cannot be read: {problem}")


def _at_level(dialect: Dialect, level: Level) -> Dialect:
    """Without the fields that bring nothing at this level."""
    useless = {Level.TOKENS: (), Level.LOGPROBS: ("return_token_ids",), Level.TEXT: _ABOUT_LOGPROBS}[level]
    fixed = {name: value for name, value in dialect.fixed.items() if name not in useless}
    return dataclasses.replace(dialect, level=level, fixed=fixed)


async def _gives_choices(client: Client, model: str, prompt: IntArray) -> bool:
    """Whether the server gives log-probs of a prompt."""
    answers = [prompt[-1:].tolist(), prompt[:1].tolist()]
    try:
        payload = await client.post("/completions", choice_body(prompt, answers, model), _answer)
        checked(lambda answer: read_choices(answer, len(prompt), answers), payload)
    except (Refusal, Flaw, InfraError):  # the question is whether it works; it does not
        return False
    return True
