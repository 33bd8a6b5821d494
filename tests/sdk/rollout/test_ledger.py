"""Tokens are exact: what the streams hold is what the engine saw and sampled, each sampled token exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from puppets import DiaryEngine, InlinePuppet, driver, play, task

from plugym.engine import Completion
from plugym.env import AgentEnv, Info, Observation, StepResult
from plugym.message import Action, Message
from plugym.rollout.ledger import Ledger
from plugym.task import Task, Taskset
from plugym.testing import CharTokenizer
from plugym.trajectory import Trajectory

words = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["<think>hm</think>7", " 7 \n", "<think>", "<|im_end|>", "<tool_call>{</tool_call>", ""]
)
turns = st.lists(st.tuples(words, words, st.booleans()), min_size=1, max_size=5)


class Replay(AgentEnv):
    """Answers with prepared texts; where the flag is set, the answer replaces the whole prompt."""

    isolation = "inline"

    def tasks(self, split: str) -> Taskset:
        return Taskset([Task("t")])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.plan, self.at = self.pick_task(options).data["plan"], 0
        return (Message("system", "s"), Message("user", "start")), {}

    def step(self, action: Action) -> StepResult:
        _, reply, replace = self.plan[self.at]
        self.at += 1
        message = Message("user", reply)
        info = {"context": (Message("user", "window"), message)} if replace else {}
        return (message,), 0.0, self.at == len(self.plan), False, info


def check_tokens(trajectory: Trajectory, engine: DiaryEngine) -> None:
    """Every turn's stream holds, up to the end of its span, the prompt the engine got and the ids it sampled."""
    requests = [request for request in engine.requests if request.session == trajectory.id]
    completions = engine.completions[trajectory.id]
    for number, (turn, request, completion) in enumerate(zip(trajectory.turns, requests, completions, strict=True)):
        start, end = turn.span
        stream = trajectory.streams[turn.stream]
        assert np.array_equal(stream.ids[:start], request.prompt_ids)
        assert np.array_equal(stream.ids[start:end], completion.token_ids)
        assert np.array_equal(stream.logprobs[start:end], completion.logprobs)
        assert set(stream.turn_ids[start:end]) <= {number}
        assert stream.loss_mask[start:end].all()
    assert trajectory.trained_tokens == sum(len(completion.token_ids) for completion in completions)


@settings(deadline=None, max_examples=40)
@given(turns, st.sampled_from(["append", "template"]), st.booleans(), st.booleans(), st.integers(1, 9))
def test_streams_are_what_the_engine_saw(
    plan: list[tuple[str, str, bool]], history: str, strip: bool, tools: bool, cut: int
) -> None:
    engine = DiaryEngine(
        lambda request, turn: plan[turn][0], tokenizer=CharTokenizer(strip_thinking=strip, tools=tools)
    )
    source = driver(Replay, engine, history=history, max_turn_tokens=cut)
    (group,) = play(source, [Task("t", data={"plan": plan})])
    (trajectory,) = group.trajectories
    check_tokens(trajectory, engine)
    replaced = sum(replace for _, _, replace in plan[:-1])
    if history == "append":
        assert len(trajectory.streams) == 1 + replaced == 1 + trajectory.counts["stream_breaks"]
    assert trajectory.response_tokens(observations=False) == trajectory.trained_tokens


def test_append_keeps_thinking_that_the_template_would_strip() -> None:
    plan = [("<think>a</think>x", "more", False), ("<think>b</think>y", "end", False)]
    engine = DiaryEngine(lambda request, turn: plan[turn][0], tokenizer=CharTokenizer(strip_thinking=True))
    (group,) = play(driver(Replay, engine), [Task("t", data={"plan": plan})])
    (stream,) = group.trajectories[0].streams
    assert engine.tokenizer is not None
    assert engine.tokenizer.decode(stream.ids) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nstart<|im_end|>\n"
        "<|im_start|>assistant\n<think>a</think>x<|im_end|>\n"
        "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n<think>b</think>y<|im_end|>"
    )


def test_a_cut_turn_is_closed_by_an_observed_marker() -> None:
    engine = DiaryEngine(lambda request, turn: "abcdef")
    (group,) = play(driver(InlinePuppet, engine, max_turn_tokens=3), [task("a", turns=2)])
    (stream,) = group.trajectories[0].streams
    first = group.trajectories[0].turns[0].span[1]
    end = CharTokenizer().eos_ids[0]
    assert stream.ids[first] == end
    assert not stream.loss_mask[first], "the model did not sample it"


def test_a_server_that_tokenised_the_prompt_itself_is_believed() -> None:
    ledger = Ledger(CharTokenizer(), (), "append")
    messages = [Message("user", "hi")]
    ledger.prompt(messages, messages, None)
    its_own = np.array([5, 6, 7])
    sampled = Completion("a", prompt_ids=its_own, token_ids=np.array([9]), logprobs=np.array([-0.5], np.float32))
    assert ledger.record(sampled, 0) == (0, (3, 4))
    assert ledger.streams()[0].ids.tolist() == [5, 6, 7, 9]


def test_text_only_completions_make_a_stream_nobody_trains_on() -> None:
    ledger = Ledger(None, (), "append")
    messages = [Message("user", "hi")]
    assert ledger.prompt(messages, messages, None) is None
    assert ledger.record(Completion("a"), 0) == (0, (0, 0))
    (stream,) = ledger.streams()
    assert (len(stream), stream.trainable) == (0, False)


def test_drift_counts_what_tokenising_again_would_change() -> None:
    class Merges(CharTokenizer):
        """Reads "ab" as one token, but can sample it as two."""

        def encode(self, text: str) -> list[int]:
            ids = super().encode(text.replace("ab", "\uabab"))
            return ids

        def decode(self, ids: Any) -> str:
            return super().decode(ids).replace("\uabab", "ab")

    ledger = Ledger(Merges(), (), "append")
    messages = [Message("user", "hi")]
    ledger.prompt(messages, messages, None)
    ids = CharTokenizer().encode("xab")
    ledger.record(Completion("xab", token_ids=np.array(ids), logprobs=np.zeros(3, np.float32)), 0)
    assert ledger.drift_tokens == 2
    assert ledger.streams()[0].ids[-3:].tolist() == ids, "what was sampled stays"


def test_the_scripted_engine_counts_turns_by_session() -> None:
    from plugym.engine import GenerateRequest
    from plugym.rollout.scripted import ScriptedConfig, ScriptedEngine

    async def main() -> list[str]:
        engine = ScriptedEngine(ScriptedConfig(lines=["one", "two"]))
        said = []
        for session in ("a", "a", "b", "a"):
            said.append((await engine.generate(GenerateRequest(messages=(), session=session))).text)
        engine.end_session("a")
        engine.end_session("never seen")
        said.append((await engine.generate(GenerateRequest(messages=(), session="a"))).text)
        return said

    assert asyncio.run(main()) == ["one", "two", "one", "two", "one"]


def test_the_scripted_engine_cuts_at_max_tokens() -> None:
    from plugym.engine import GenerateRequest, Sampling
    from plugym.rollout.scripted import ScriptedEngine

    engine = ScriptedEngine(script=lambda request, turn: "abc", tokenizer=CharTokenizer())
    for n, text, finish in [(2, "ab", "length"), (3, "abc", "length"), (4, "abc", "stop")]:
        request = GenerateRequest(prompt_ids=np.array([1]), sampling=Sampling(max_tokens=n), session=str(n))
        completion = asyncio.run(engine.generate(request))
        assert (completion.text, completion.finish) == (text, finish)
        assert completion.token_ids is not None
        assert len(completion.token_ids) == n
