"""What a trajectory says of itself: ends and their status, lengths of the response, who counts in a group."""

from __future__ import annotations

import numpy as np
import pytest
from builders import failed, group, trajectory
from hypothesis import given
from hypothesis import strategies as st

from plugym.message import Action, Message, ToolCall
from plugym.reward import Score
from plugym.trajectory import STATUS_OF, ScoredGroup, Status, StopReason, TokenStream, Trajectory, Turn, stream_of


def test_every_stop_reason_has_exactly_one_status() -> None:
    assert set(STATUS_OF) == set(StopReason)
    assert [reason for reason, status in STATUS_OF.items() if status is Status.INFRA_FAILED] == [StopReason.INFRA]
    assert set(STATUS_OF.values()) == set(Status)


def test_arrays_of_a_stream_have_one_length() -> None:
    ints = np.zeros(2, np.int64)
    with pytest.raises(ValueError, match=r"differ in length: \[2, 3\]"):
        TokenStream(np.zeros(3, np.int64), np.zeros(2, np.bool_), np.zeros(2, np.float32), ints, ints)


lengths = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=5)


@given(lengths)
def test_a_stream_is_built_from_its_turns(turns: list[tuple[int, int]]) -> None:
    stream = stream_of([([1] * p, [2] * s, [-0.5] * s) for p, s in turns], version=3)
    assert len(stream) == sum(p + s for p, s in turns)
    assert (stream.ids[stream.positions] == 2).all()
    assert np.array_equal(stream.policy_versions == 3, stream.loss_mask)
    assert (stream.logprobs[~stream.loss_mask] == 0).all()
    assert np.bincount(stream.turn_ids, minlength=len(turns)).tolist() == [p + s for p, s in turns]
    assert {a.dtype for a in (stream.ids, stream.turn_ids, stream.policy_versions)} == {np.dtype(np.int64)}
    assert (stream.logprobs.dtype, stream.loss_mask.dtype) == (np.float32, np.bool_)


def test_the_response_is_what_comes_after_the_first_prompt() -> None:
    two_streams = trajectory(
        "t",
        streams=(
            stream_of([([1, 1, 1], [2, 2], [0, 0]), ([1], [2], [0]), ([1, 1], [], [])]),
            stream_of([([1] * 9, [2, 2], [0, 0])]),
        ),
    )
    assert two_streams.response_tokens(observations=False) == two_streams.trained_tokens == 5
    assert two_streams.response_tokens(observations=True) == 4 + 2
    assert Trajectory("t", None, "g").response_tokens(observations=True) == 0


def test_messages_in_order_with_the_closing_ones() -> None:
    calls = (ToolCall("c", "f"),)
    turns = (
        Turn((Message("user", "q"),), Action("", tool_calls=calls), executed_calls=1),
        Turn((Message("tool", "r", tool_call_id="c"),), Action.of("a"), executed_calls=2),
    )
    episode = Trajectory("t", None, "g", turns, closing=(Message("user", "bye"),))
    assert [m.role for m in episode.messages()] == ["user", "assistant", "tool", "assistant", "user"]
    assert (episode.final_text, episode.executed_calls) == ("a", 3)
    assert Trajectory("t", None, "g").final_text == ""


def test_one_score_per_trajectory() -> None:
    with pytest.raises(ValueError, match="1 scores for 2 trajectories"):
        ScoredGroup(group(trajectory("a"), trajectory("b")), (Score(1.0),))


def test_who_counts() -> None:
    members = (trajectory("a"), failed("b"), trajectory("c"), trajectory("d"))
    scored = ScoredGroup(group(*members), (Score(1.0), Score(0.5), Score.unscored("?"), Score(0.0)))
    assert [(i, t.id, value) for i, t, value in scored.counted()] == [(0, "a", 1.0), (3, "d", 0.0)]
    assert scored.values().tolist() == [1.0, 0.0]
    assert scored.values().dtype == np.float64
