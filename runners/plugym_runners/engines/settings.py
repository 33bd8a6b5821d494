"""Settings of an endpoint, and the two rules about secrets: keys are named, never written down, and never shown.

A resolved configuration is stored with every run. A key therefore stands in it as the name of an environment variable.
"""

from __future__ import annotations

import os
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field

from plugym.errors import BadInput

_SECRET_HEADERS = {"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"}


class EndpointConfig(BaseModel, extra="forbid"):
    """Settings that every HTTP engine has."""

    base_url: str | None = Field(None, description="up to and including /v1, such as http://127.0.0.1:8000/v1")
    model: str | None = Field(None, description="name of the model; none where the server has only one")
    api: Literal["chat", "completions"] = Field(
        "chat", description="chat: the server renders messages; completions: exact prompt ids in, needs a tokenizer"
    )
    tokenizer: str | None = Field(None, description="model whose tokenizer renders prompts (completions only)")
    api_key_env: str | None = Field(None, description="environment variable that holds the key")
    headers: dict[str, str] = Field(
        default_factory=dict, description="sent with each request; a value $NAME is read from the environment"
    )
    extra_body: dict[str, Any] = Field(default_factory=dict, description="further fields of each request, as they are")
    ask: Literal["tokens", "logprobs", "text"] = Field("tokens", description="ask for no more than this")
    logprobs: Literal["raw", "processed"] = Field(
        "raw", description="the server's log-probs: raw = before temperature, processed = after it and after top_p"
    )
    send_reasoning: bool = Field(False, description="send the reasoning of earlier turns back to the server")
    stream: bool = Field(False, description="ask for server-sent events; they are understood in any case")
    max_context: int | None = Field(None, ge=1, description="tokens; none = what the server says")
    max_concurrent: int = Field(256, ge=1, description="requests at the same time")
    requests_per_minute: float | None = Field(None, gt=0, description="rate limit kept on this side")
    retries: int = Field(5, ge=0, description="further tries of a request")
    backoff: float = Field(0.5, ge=0, description="seconds before the first retry, doubled each time")
    max_wait: float = Field(60.0, gt=0, description="longest wait before a retry, whatever the server asks for")
    connect_timeout: float = Field(10.0, gt=0, description="seconds to reach the server")
    read_timeout: float = Field(300.0, gt=0, description="seconds without a byte before a connection counts as dead")
    timeout: float = Field(600.0, gt=0, description="seconds for one try")


def api_key(config: EndpointConfig) -> str | None:
    """The key itself. Raises `BadInput` when its variable is not set."""
    return None if config.api_key_env is None else _variable(config.api_key_env, "engine.api_key_env")


def request_headers(config: EndpointConfig, key: str | None) -> dict[str, str]:
    """Headers of each request. Raises `BadInput` for a secret that is written down instead of named."""
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    for name, value in config.headers.items():
        if value.startswith("$"):
            value = _variable(value[1:].strip("{}"), f"engine.headers.{name}")
        elif name.lower() in _SECRET_HEADERS:
            raise BadInput(f"engine.headers.{name}: name an environment variable as $NAME instead of writing a secret")
        headers[name] = value
    return headers


def check_url(url: str) -> str:
    """`url` without a slash at its end. Raises `BadInput` when it is none, or holds a password.

    >>> check_url("http://127.0.0.1:8000/v1/")
    'http://127.0.0.1:8000/v1'
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        valid = False
    if not valid:
        raise BadInput(f"engine.base_url {url!r} is no address: use something like http://127.0.0.1:8000/v1")
    if parts.username is not None:
        raise BadInput("engine.base_url holds a user name or password: use engine.api_key_env or engine.headers")
    return url.rstrip("/")


def _variable(name: str, setting: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise BadInput(f"{setting}: the environment variable {name} is not set")
    return value
