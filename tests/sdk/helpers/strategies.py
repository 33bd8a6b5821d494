"""Strategies of whole episodes: messages, turns, token streams, trajectories, scores and groups of any shape.

Used wherever a test must hold for every episode (the records of the store, the fuzz targets). No test is in here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st

from plugym.errors import Failure, InfraKind
from plugym.message import Action, ImagePart, Message, TextPart, ToolCall
from plugym.reward import Score
from plugym.task import Check, Task
from plugym.trajectory import Group, Purpose, ScoredGroup, StopReason, TokenStream, Trajectory, Turn

# Lone surrogates included: json.loads makes them of a model's "\ud800".
texts = st.text(st.characters(exclude_categories=()), max_size=8)
floats = st.floats(allow_nan=True, allow_infinity=True)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, json_values, max_size=3)
images = st.builds(ImagePart, st.binary(max_size=20), st.sampled_from(["image/png", "image/jpeg"]))
calls = st.builds(ToolCall, texts, texts, objects, st.none() | texts, texts)
call_tuples = st.lists(calls, max_size=2).map(tuple)
contents = texts | st.lists(st.builds(TextPart, texts) | images, max_size=3).map(tuple)
roles = st.sampled_from(["system", "user", "assistant", "tool"])
messages = st.lists(st.builds(Message, roles, contents, texts, call_tuples, st.none() | texts), max_size=3).map(tuple)
actions = st.builds(Action, texts, texts, call_tuples, texts)
counts = st.integers(0, 5)
turns = st.builds(
    Turn, messages, actions, floats, st.none() | texts, counts, st.tuples(counts, counts), counts, counts, floats
)
tasks = st.builds(
    Task,
    texts,
    texts,
    texts,
    texts,
    objects,
    st.none() | texts,
    st.none() | st.builds(Check, texts, objects),
    st.none() | floats,
    st.none() | texts,
    counts,
)
int64 = st.integers(-(2**63), 2**63 - 1)
float32 = st.floats(width=32, allow_nan=True, allow_infinity=True)


@st.composite
def streams(draw: st.DrawFn) -> TokenStream:
    n = draw(st.integers(0, 8))

    def column(values: st.SearchStrategy[Any], dtype: type) -> Any:
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), dtype=dtype)

    return TokenStream(
        ids=column(int64, np.int64),
        loss_mask=column(st.booleans(), np.bool_),
        logprobs=column(float32, np.float32),
        turn_ids=column(st.integers(0, 3), np.int64),
        policy_versions=column(int64, np.int64),
        media=draw(st.lists(images, max_size=2).map(tuple)),
        trainable=draw(st.booleans()),
    )


ends: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    id=texts,
    group_id=texts,
    outcome=st.none() | floats,
    stop_reason=st.sampled_from(StopReason),
    failure=st.none() | st.builds(Failure, st.sampled_from(InfraKind), texts, texts, st.booleans()),
    counts=st.dictionaries(texts, floats, max_size=2),
    level=st.sampled_from(["tokens", "logprobs", "text"]),
)
trajectories = st.builds(
    lambda end, **parts: Trajectory(**end, **parts),
    ends,
    task=st.none() | tasks,
    turns=st.lists(turns, max_size=1).map(tuple),
    streams=st.lists(streams(), max_size=1).map(tuple),
    closing=messages,
)
plain_scores = st.builds(
    Score,
    value=st.none() | floats,
    correct=st.none() | st.booleans(),
    parts=st.dictionaries(texts, floats, max_size=2),
    steps=st.none() | st.lists(floats, max_size=2).map(tuple),
    votes=st.none() | st.lists(st.lists(st.none() | floats, max_size=2).map(tuple), max_size=2).map(tuple),
    evidence=st.lists(trajectories, max_size=1).map(tuple),
    why=texts,
)
scores = st.builds(
    lambda score, sources: dataclasses.replace(score, sources=sources),
    plain_scores,
    st.dictionaries(texts, plain_scores, max_size=1),
)


@st.composite
def groups(draw: st.DrawFn) -> ScoredGroup:
    members = tuple(draw(st.lists(trajectories, max_size=2)))
    group = Group(draw(texts), draw(st.none() | tasks), members, draw(texts), draw(st.sampled_from(Purpose)))
    return ScoredGroup(group, tuple(draw(scores) for _ in members))
