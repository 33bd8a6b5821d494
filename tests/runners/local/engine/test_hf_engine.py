"""The engine against the plain forward pass: exact tokens, exact log-probs, whatever is batched, cached or cut."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from plugym.engine import Completion, GenerateRequest, Level, Sampling
from plugym.errors import BadInput
from plugym.message import ImagePart, Message
from plugym_runners.local.hf_engine import HFEngine, HFEngineConfig
from plugym_runners.local.models import LoadedModel
from plugym_runners.local.tiny import build_tokenizer

from .conftest import CONTEXT, Play, llama, loaded_of, prompts, reference, requests, together

TOLERANCE = 1e-4


def assert_exact(model: Any, completions: list[Completion], temperature: float = 1.0) -> None:
    for completion in completions:
        assert completion.prompt_ids is not None
        assert completion.token_ids is not None
        assert completion.logprobs is not None
        expected = reference(model, completion.prompt_ids, completion.token_ids, temperature)
        np.testing.assert_allclose(completion.logprobs, expected, atol=TOLERANCE, rtol=0)


def tokens_of(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids.tolist() for completion in completions if completion.token_ids is not None]


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.6}, {"temperature": 0.0}, {"top_k": 7, "top_p": 0.9, "temperature": 1.3}],
    ids=["plain", "cool", "greedy", "cut"],
)
def test_logprobs_are_those_of_a_full_forward_pass(play: Play, sampling: dict[str, Any]) -> None:
    model = llama()
    many = requests(prompts(3, 40, 17, 1, 17, 90), max_tokens=20, **sampling)
    completions = play(lambda engine: together(engine, many), model)
    assert_exact(model, completions, sampling.get("temperature") or 1.0)
    for request, completion in zip(many, completions, strict=True):
        assert completion.prompt_ids is not None
        assert completion.prompt_ids.tolist() == request.prompt_ids.tolist()
        assert completion.finish == "length"
        assert len(completion.token_ids) == 20


def test_greedy_is_the_argmax_and_top_k_of_one_too(play: Play) -> None:
    model = llama()
    many = prompts(5, 9)
    greedy = play(lambda engine: together(engine, requests(many, temperature=0.0, max_tokens=8)), model)
    narrow = play(lambda engine: together(engine, requests(many, top_k=1, max_tokens=8)), model)
    assert tokens_of(greedy) == tokens_of(narrow)
    ids = torch.from_numpy(np.concatenate([greedy[0].prompt_ids, greedy[0].token_ids]))
    with torch.no_grad():
        best = model(input_ids=ids[None]).logits[0].argmax(dim=-1)
    assert best[4:-1].tolist() == greedy[0].token_ids.tolist()


def test_a_batch_changes_nothing_but_the_last_digits(play: Play) -> None:
    model = llama()
    many = requests(prompts(30, 4, 61, 4, 12), max_tokens=24)
    batched = play(lambda engine: together(engine, many), model)

    async def one_by_one(engine: HFEngine) -> list[Completion]:
        return [await engine.generate(request) for request in many]

    alone = play(one_by_one, model)
    assert tokens_of(batched) == tokens_of(alone)
    for a, b in zip(batched, alone, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=TOLERANCE, rtol=0)


def test_order_of_arrival_does_not_change_a_bit(play: Play) -> None:
    model = llama()
    lengths = [5, 30, 5, 12, 12, 7, 30, 19]

    async def episodes(engine: HFEngine, seed: int) -> list[Completion]:
        rng = random.Random(seed)
        order = list(range(len(lengths)))
        rng.shuffle(order)
        engine.announce([f"s{i}" for i in order])

        async def episode(i: int) -> list[Completion]:
            prompt, turns = prompts(*lengths)[i], []
            for turn in range(1 + i % 3):
                await asyncio.sleep(rng.random() * 0.01)
                sampling = Sampling(max_tokens=3 + i)
                request = GenerateRequest(prompt_ids=prompt, sampling=sampling, seed=10 * i + turn, session=f"s{i}")
                turns.append(await engine.generate(request))
                prompt = np.concatenate([prompt, turns[-1].token_ids, prompts(4, seed=i)[0]])
            engine.end_session(f"s{i}")
            return turns

        tasks = {i: asyncio.create_task(episode(i)) for i in order}
        return [completion for i in range(len(lengths)) for completion in await tasks[i]]

    runs = [play(lambda engine, seed=seed: episodes(engine, seed), model, max_batch=3) for seed in range(3)]
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            assert a.token_ids.tobytes() == b.token_ids.tobytes()
            assert a.logprobs.tobytes() == b.logprobs.tobytes()
    assert_exact(model, runs[0])


async def three_turns(engine: HFEngine) -> list[Completion]:
    """Rows of different past and new lengths in one batch; the last turn of one session breaks with its past."""
    done: list[Completion] = []
    current = prompts(6, 33, 15)
    for turn in range(3):
        many = [
            GenerateRequest(prompt_ids=p, sampling=Sampling(max_tokens=5 + i), seed=turn, session=f"s{i}")
            for i, p in enumerate(current)
        ]
        completions = await asyncio.gather(*(engine.generate(request) for request in many))
        done.extend(completions)
        for i, completion in enumerate(completions):
            observed = prompts(1 + 7 * i, seed=turn)[0]
            current[i] = np.concatenate([current[i], completion.token_ids, observed])
        current[2][3] = (current[2][3] + turn) % 50
    return done


def test_turns_continue_from_the_cache_with_the_same_tokens(play: Play) -> None:
    model = llama()

    async def counted(engine: HFEngine) -> tuple[list[Completion], dict[str, int]]:
        return await three_turns(engine), engine.counts

    cached, counts = play(counted, model)
    recomputed, none = play(counted, model, cache_tokens=0)
    assert tokens_of(cached) == tokens_of(recomputed)
    assert_exact(model, cached)
    assert none["cached"] == 0
    assert none["evicted"] == 9
    # 6 + 33 + 15 tokens of turn 1; later only what is new, the sampled token never fed included.
    assert counts["evicted"] == 0
    assert counts["prefilled"] == counts["prompt"] - counts["cached"]
    assert counts["cached"] == (6 + 4) + (6 + 5 + 1 + 4) + (33 + 5) + (33 + 6 + 8 + 5) + (15 + 6) + 3


def test_a_small_cache_evicts_and_counts(play: Play) -> None:
    model = llama()

    async def counted(engine: HFEngine) -> tuple[list[Completion], dict[str, int]]:
        return await three_turns(engine), engine.counts

    completions, counts = play(counted, model, cache_tokens=60)
    assert_exact(model, completions)
    assert counts["evicted"] > 0
    assert counts["cached"] > 0


def test_an_ended_session_leaves_nothing_behind(play: Play) -> None:
    first = prompts(20)[0]

    async def scene(engine: HFEngine) -> dict[str, int]:
        request = GenerateRequest(prompt_ids=first, sampling=Sampling(max_tokens=2), session="s")
        await engine.generate(request)
        engine.end_session("s")
        await engine.generate(request)
        await engine.update_weights(3)
        assert (await engine.generate(request)).policy_version == 3
        return engine.counts

    assert play(scene)["cached"] == 0


def test_the_padding_id_may_be_sampled_like_any_other(play: Play) -> None:
    pad = loaded_of(None).tokenizer.pad_token_id
    model = llama(pad_token_id=pad)
    model.lm_head.weight.data[pad] *= 3  # likely in some contexts
    many = [np.concatenate([[pad], prompt, [pad, pad]]) for prompt in prompts(4, 11, 2, 7)]
    completions = play(lambda engine: together(engine, requests(many, max_tokens=60)), model)
    assert sum(tokens.count(pad) for tokens in tokens_of(completions)) > 3
    assert_exact(model, completions)


def forwards(model: Any) -> list[tuple[int, int]]:
    """The shape of the ids of every forward pass from now on."""
    shapes: list[tuple[int, int]] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def test_finished_rows_cost_nothing_and_equal_prompts_are_read_once(play: Play) -> None:
    model = llama()
    shapes = forwards(model)
    one, other = prompts(12, 25)
    many = [
        GenerateRequest(prompt_ids=p, sampling=Sampling(max_tokens=n), seed=n, session=f"s{n}")
        for n, p in enumerate([one] * 6 + [other] * 4, start=1)
    ]
    completions = play(lambda engine: together(engine, many), model)
    assert [len(tokens) for tokens in tokens_of(completions)] == list(range(1, 11))
    assert shapes[0] == (2, 25)
    # The last token of a row is never fed, so n tokens need n - 1 passes of that row.
    assert [rows for rows, _ in shapes[1:]] == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert_exact(model, completions)


def test_a_long_common_beginning_is_read_once(play: Play) -> None:
    model = llama()
    shapes = forwards(model)
    beginning = prompts(50)[0]
    many = [np.concatenate([beginning, tail]) for tail in prompts(3, 9, 4, 6, seed=1)]
    completions = play(lambda engine: together(engine, requests(many, max_tokens=6)), model)
    assert shapes[:2] == [(1, 50), (4, 9)]
    assert_exact(model, completions)


def test_long_prompts_are_read_in_pieces(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugym_runners.local.decoding.PREFILL_TOKENS", 40)
    model = llama()
    shapes = forwards(model)
    completions = play(lambda engine: together(engine, requests(prompts(70, 31, 30), max_tokens=4)), model)
    assert all(rows * columns <= 40 for rows, columns in shapes)
    assert_exact(model, completions)


def test_an_end_token_stops_and_is_part_of_the_tokens(play: Play) -> None:
    model = llama()
    request = requests(prompts(8), temperature=0.0, max_tokens=6)
    (free,) = play(lambda engine: together(engine, request), model)
    eos = int(free.token_ids[3])
    first = free.token_ids.tolist().index(eos)
    (cut,) = play(lambda engine: together(engine, request), model, eos_ids=[eos])
    assert cut.finish == "stop"
    assert cut.token_ids.tolist() == free.token_ids[: first + 1].tolist()
    assert cut.text == loaded_of(model).tokenizer.decode(free.token_ids[:first])


def test_a_stop_string_stops_and_keeps_its_tokens(play: Play) -> None:
    model = llama()
    (free,) = play(lambda engine: together(engine, requests(prompts(8), max_tokens=30)), model)
    stop = free.text[5:8]
    end = free.text.index(stop) + len(stop)
    asked = requests(prompts(8, 8), max_tokens=30, stop=("never written by it", stop))
    cut, _ = play(lambda engine: together(engine, asked), model)
    assert cut.finish == "stop"
    assert cut.text == free.text[:end]
    assert cut.token_ids.tolist() == free.token_ids[: len(cut.token_ids)].tolist()


def test_the_context_is_never_exceeded(play: Play) -> None:
    model = llama()
    many = requests(prompts(CONTEXT - 4, CONTEXT, 10), max_tokens=30)
    completions = play(lambda engine: together(engine, many), model)
    assert [len(tokens) for tokens in tokens_of(completions)] == [4, 0, 30]
    assert [completion.finish for completion in completions] == ["length"] * 3
    assert completions[1].text == ""


def test_choices_get_the_summed_logprob_of_their_tokens(play: Play) -> None:
    model = llama()
    answers = ("yes", "no", "x", "certainly not")
    many = [
        GenerateRequest(prompt_ids=p, choices=answers, sampling=Sampling(temperature=t), session=f"s{i}")
        for i, (p, t) in enumerate(zip(prompts(9, 30, 9), (1.0, 2.0, 0.0), strict=True))
    ]
    many.append(GenerateRequest(prompt_ids=many[0].prompt_ids, choices=("y",), session="s3"))
    mixed = [*many, *requests(prompts(7), max_tokens=5)]
    completions = play(lambda engine: together(engine, mixed), model)
    tokenizer = loaded_of(model).tokenizer
    for request, completion in zip(many, completions, strict=False):
        assert completion.finish == "choices"
        assert completion.token_ids is None
        expected = [
            reference(
                model, request.prompt_ids, np.array(tokenizer.encode(text)), request.sampling.temperature or 1.0
            ).sum()
            for text in request.choices
        ]
        np.testing.assert_allclose(completion.choice_logprobs, expected, atol=TOLERANCE, rtol=0)
    assert_exact(model, completions[-1:])


def test_messages_are_rendered_by_the_engine(play: Play) -> None:
    async def scene(engine: HFEngine) -> Completion:
        request = GenerateRequest(messages=(Message("user", "hi"),), sampling=Sampling(max_tokens=1))
        return await engine.generate(request)

    completion = play(scene)
    assert (
        loaded_of(None).tokenizer.decode(completion.prompt_ids)
        == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_cancelled_request_wedges_nothing(play: Play) -> None:
    model = llama()

    async def scene(engine: HFEngine) -> list[Completion]:
        many = requests(prompts(5, 6, 7), max_tokens=100)
        engine.announce([request.session for request in many])
        tasks = [asyncio.create_task(engine.generate(request)) for request in many]
        await asyncio.sleep(0.02)  # in the middle of the batch
        tasks[0].cancel()
        rest = await asyncio.gather(*tasks[1:])
        again = [asyncio.create_task(engine.generate(request)) for request in many[1:]]
        await asyncio.sleep(0)
        again[0].cancel()  # before or while its batch runs: the other must get through without it
        rest.append(await again[1])
        rest.append(await engine.generate(many[0]))
        return rest

    completions = play(scene, model)
    assert_exact(model, completions)


def test_an_abandoned_row_leaves_the_batch(play: Play) -> None:
    model = llama()

    async def scene(engine: HFEngine) -> dict[str, int]:
        (request,) = requests(prompts(5), max_tokens=CONTEXT)
        started = asyncio.Event()
        loop = asyncio.get_running_loop()
        model.register_forward_hook(lambda *_: loop.call_soon_threadsafe(started.set))
        task = asyncio.create_task(engine.generate(request))
        await started.wait()
        task.cancel()
        await engine.update_weights(1)  # queued behind the batch
        return engine.counts

    assert play(scene, model)["sampled"] == 0


def test_errors_inside_reach_all_callers_and_the_engine_lives_on(play: Play) -> None:
    model = llama()
    good = model.model.norm.weight.detach().clone()

    async def scene(engine: HFEngine) -> tuple[list[Any], list[Completion]]:
        many = requests(prompts(5, 9), max_tokens=4)
        engine.announce([request.session for request in many])
        model.model.norm.weight.data.fill_(float("nan"))
        failed = await asyncio.gather(*(engine.generate(request) for request in many), return_exceptions=True)
        model.model.norm.weight.data.copy_(good)
        return failed, await together(engine, many)

    failed, completions = play(scene, model)
    assert [type(error) for error in failed] == [FloatingPointError] * 2
    assert_exact(model, completions)


def test_a_shared_model_comes_back_as_it_was(play: Play) -> None:
    model = llama(attention_dropout=0.5)
    model.train()
    model.lm_head.eval()
    many = requests(prompts(5, 9), max_tokens=6)
    completions = play(lambda engine: together(engine, many), model)
    assert model.training
    assert not model.lm_head.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert_exact(model.eval(), completions)


def test_a_wide_output_matrix_is_turned_only_while_generating(play: Play) -> None:
    model = llama(hidden_size=8, num_attention_heads=2, num_key_value_heads=1)
    turned: list[bool] = []
    model.register_forward_pre_hook(lambda module, _: turned.append("forward" in vars(module.lm_head)))
    completions = play(lambda engine: together(engine, requests(prompts(5, 9), max_tokens=6)), model)
    assert all(turned)
    assert "forward" not in vars(model.lm_head)
    assert_exact(model, completions)


@pytest.mark.parametrize("kind", ["gemma", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"])
def test_other_models_are_exact_too(play: Play, kind: str) -> None:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.2, "sliding_window": None, "pad_token_id": 0,
        "vocab_size": len(build_tokenizer()), "max_position_embeddings": CONTEXT,
    }  # fmt: skip
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    completions = play(three_turns, model)
    assert_exact(model, completions)


def test_bfloat16_stays_close_to_its_forward_pass(play: Play) -> None:
    model = llama(initializer_range=0.1).to(torch.bfloat16)
    for completion in play(three_turns, model):
        expected = reference(model, completion.prompt_ids, completion.token_ids)
        np.testing.assert_allclose(completion.logprobs, expected, atol=0.1, rtol=0)


def test_updates_are_seen_and_stamped(play: Play) -> None:
    model, other = llama(), llama(seed=1)

    async def scene(engine: HFEngine) -> list[Completion]:
        (request,) = requests(prompts(9), max_tokens=5)
        first = await engine.generate(request)
        model.load_state_dict(other.state_dict())
        await engine.update_weights(1)
        second = await engine.generate(request)
        await engine.update_weights(2, llama())
        return [first, second, await engine.generate(request)]

    first, second, third = play(scene, model)
    assert [c.policy_version for c in (first, second, third)] == [0, 1, 2]
    assert_exact(other, [second])
    assert_exact(llama(), [first, third])


def test_weights_may_come_from_a_path(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    other = llama(seed=1)
    asked: list[str] = []

    def load(spec: str, *, dtype: str, device: str) -> LoadedModel:
        asked.append(f"{spec} {dtype} {device}")
        return loaded_of(other)

    monkeypatch.setattr("plugym_runners.local.models.load_model", load)

    async def scene(engine: HFEngine) -> list[Completion]:
        await engine.update_weights(1, "checkpoint")
        return await together(engine, requests(prompts(9), max_tokens=5))

    assert_exact(other, play(scene))

    async def alone() -> list[Completion]:
        engine = HFEngine(HFEngineConfig(model="named"))
        await engine.open()
        try:
            return await together(engine, requests(prompts(9), max_tokens=5))
        finally:
            await engine.close()

    assert_exact(other, asyncio.run(alone()))
    assert asked == ["checkpoint float32 cpu", "named float32 cpu"]


def test_capabilities_and_what_is_refused(play: Play) -> None:
    async def scene(engine: HFEngine) -> None:
        assert engine.capabilities.level is Level.TOKENS
        assert engine.capabilities.max_context == CONTEXT
        assert engine.capabilities.choices
        prompt = prompts(4)[0]
        for request, error, words in [
            (GenerateRequest(prompt_ids=prompt, adapter="judge"), BadInput, "adapter"),
            (GenerateRequest(prompt_ids=prompt, media=(ImagePart(b""),)), BadInput, "text only"),
            (GenerateRequest(prompt_ids=prompt[:0]), ValueError, "at least one token"),
            (GenerateRequest(prompt_ids=prompt + 1000), ValueError, "each within"),
            (GenerateRequest(prompt_ids=prompt, choices=("a", "")), ValueError, "every choice"),
            (GenerateRequest(prompt_ids=prompt, sampling=Sampling(temperature=-1)), ValueError, "negative"),
        ]:
            with pytest.raises(error, match=words):
                await engine.generate(request)

    play(scene)


def test_without_a_model_it_says_what_to_do() -> None:
    engine = HFEngine(HFEngineConfig())
    with pytest.raises(RuntimeError, match="await open"):
        _ = engine.capabilities
    with pytest.raises(BadInput, match=r"set engine\.model"):
        asyncio.run(engine.open())


def test_settings_can_be_read_without_torch() -> None:
    import subprocess
    import sys

    code = "import sys, plugym_runners.local.hf_engine as m; m.HFEngineConfig(); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
