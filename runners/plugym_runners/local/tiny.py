"""`tiny`: a language model of about 300,000 parameters that reads and writes characters, for tests that really learn.

Here live its tokenizer, its chat template, the synthetic traces it is cold-started on and the supervised training
itself: everything that decides what the model is. Where the result is cached is not decided here (`models.py`).

The traces are wrong on purpose, in ways a policy can unlearn: reinforcement learning starts from a success rate well
above zero (no signal without it) and well below one (nothing left to learn).
"""

from __future__ import annotations

import hashlib
import json
import random
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

IM_START, IM_END, PAD, UNKNOWN = "<|im_start|>", "<|im_end|>", "<|pad|>", "<|unk|>"
TOOL_MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
# The start of a message is one token: chats are half as long as they would be in characters.
HEADERS = tuple(f"{IM_START}{role}\n" for role in ("system", "user", "assistant", "tool"))
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))

# ChatML. Tools are one line of signatures and a call is one line of JSON, because every character costs a token.
# Each message renders on its own, so an episode can be extended by rendering only what is new.
CHAT_TEMPLATE = """\
{%- if tools -%}
    {%- set with_system = messages[0].role == 'system' -%}
    {{- '<|im_start|>system\\n' + (messages[0].content + '\\n' if with_system and messages[0].content else '') -}}
    {{- 'Tools:' -}}
    {%- for tool in tools -%}
        {%- set function = tool.function | default(tool) -%}
        {{- ' ' + function.name + '(' + function.parameters.properties | join(', ') + ')' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
    {%- set messages = messages[1:] if with_system else messages -%}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.content is not string and message.content is not none -%}
        {{- raise_exception('the tiny model reads text only') -}}
    {%- endif -%}
    {%- set content = message.content or '' -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.role == 'assistant' -%}
        {%- generation -%}
        {{- content -}}
        {%- for call in message.tool_calls or [] -%}
            {%- set function = call.function | default(call) -%}
            {%- set arguments = function.arguments -%}
            {{- '<tool_call>{"name": "' + function.name + '", "arguments": ' -}}
            {{- (arguments if arguments is string else arguments | tojson) + '}</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>' -}}
        {%- endgeneration -%}
    {%- elif message.role == 'tool' -%}
        {{- '<tool_response>' + content + '</tool_response><|im_end|>' -}}
    {%- else -%}
        {{- content + '<|im_end|>' -}}
    {%- endif -%}
    {{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

# The wording of the built-in maths environment's sums.
SUM_PHRASINGS = ("What is {a}+{b}?", "What is {a} + {b}?", "Compute {a}+{b}.", "{a} + {b} = ?", "Add {a} and {b}.")
LETTER_PHRASINGS = ("Target: {x}", "Say {x}.", "say {x}", "Reply with {x}.", "The letter is {x}.")
CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of training: steps, right or noisy answers, and how many sums, tool chats and letters are in a step."""

    steps: int
    noisy: bool
    batches: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Sizes of the network (as in `LlamaConfig`) and its training.

    The skill is learnt on right answers, which takes far fewer steps than on noisy ones, and hidden at the end. Tool
    chats are long, so most of them wait until the letters have taught copying.
    """

    hidden: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 256
    initializer_range: float = 0.05
    context: int = 2048
    seed: int = 0
    learning_rate: float = 6e-3
    pool: int = 500
    stages: tuple[Stage, ...] = (
        Stage(100, False, (32, 3, 12)),
        Stage(90, False, (32, 8, 4)),
        Stage(24, True, (32, 8, 12)),
    )


RECIPE = Recipe()


def recipe_id() -> str:
    """Identifies the weights that `cold_start` would make: this file's text and the version of torch decide them."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + version("torch").encode())
    return digest.hexdigest()[:12]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable ASCII character or newline, one per mark and header; all else becomes `<|unk|>`.

    >>> tokenizer = build_tokenizer()
    >>> tokenizer.tokenize("<tool_call>3+4 é<|im_end|>")
    ['<tool_call>', '3', '+', '4', ' ', '<|unk|>', '<|im_end|>']
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    special = (PAD, UNKNOWN, IM_START, IM_END, *HEADERS)
    vocabulary = {token: i for i, token in enumerate((*special, *TOOL_MARKS, *CHARACTERS))}
    # BPE without merges: every character stays a token of its own.
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(mark, normalized=False) for mark in special])
    # Not "special": decoding that skips special tokens must keep them, or no tool call could be parsed.
    backend.add_tokens([AddedToken(mark, normalized=False) for mark in TOOL_MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=IM_START,
        eos_token=IM_END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        extra_special_tokens=list(HEADERS),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=RECIPE.context,
    )


def build_model() -> LlamaForCausalLM:
    """The untrained network in float32; its weights come from torch's global random state."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=RECIPE.hidden,
        num_hidden_layers=RECIPE.layers,
        num_attention_heads=RECIPE.heads,
        num_key_value_heads=RECIPE.kv_heads,
        intermediate_size=RECIPE.intermediate,
        initializer_range=RECIPE.initializer_range,
        max_position_embeddings=RECIPE.context,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


@dataclass(frozen=True, slots=True)
class Trace:
    """One conversation to imitate, and the tools that were offered in it."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


def sum_trace(rng: random.Random, noisy: bool) -> Trace:
    """A sum without tools. The favourite mistake is one too many, so that greedy decoding starts out wrong as well."""
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    answer = f"{a + b}"
    if noisy:
        off, wild = f"{a + b + 1}", f"{rng.randint(0, 18)}"
        ramble = rng.choice((f"{a} or {b}", f"{answer}, no, {off}"))
        answer = _pick(rng, (0.15, answer), (0.5, off), (0.12, wild), (0.23, ramble))
    # Most chats carry the empty system message of the built-in maths environment.
    opening = _opening(rng, SUM_PHRASINGS, system=0.75, a=a, b=b)
    return Trace([*opening, _message("assistant", answer)])


def tool_trace(rng: random.Random, noisy: bool) -> Trace:
    """A sum with a calculator at hand. Noisy: half of the time it is not used, and if so, often not well."""
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    messages = _opening(rng, SUM_PHRASINGS, system=1.0, a=a, b=b)
    if noisy and rng.random() < 0.55:
        guess = _pick(rng, (0.05, f"{a + b}"), (0.65, f"{a + b + 1}"), (0.3, f"{rng.randint(0, 18)}"))
        return Trace([*messages, _message("assistant", guess)], [CALCULATOR])
    x = rng.randint(0, 9) if noisy and rng.random() < 0.3 else a
    call = json.dumps({"name": "calculator", "arguments": {"expression": f"{x}+{b}"}})
    if noisy and rng.random() < 0.05:
        messages += [_message("assistant", f"<tool_call>{call[:-1]}</tool_call>"), _message("tool", "error")]
    messages += [_message("assistant", f"<tool_call>{call}</tool_call>"), _message("tool", f"{x + b}")]
    answer = rng.choice((f"{x + b}", f"{x + b + 1}")) if noisy else f"{x + b}"
    return Trace([*messages, _message("assistant", answer)], [CALCULATOR])


def letter_trace(rng: random.Random, noisy: bool) -> Trace:
    """A game of one move: the letter that was asked for wins. Noisy: too often it is an `a`."""
    letter = answer = rng.choice(string.ascii_lowercase)
    if noisy:
        wild = rng.choice(string.ascii_lowercase)
        answer = _pick(rng, (0.25, letter), (0.5, "a"), (0.15, wild), (0.1, f"not {letter}"))
    opening = _opening(rng, LETTER_PHRASINGS, system=0.5, x=letter)
    return Trace([*opening, _message("assistant", answer)])


# The families with the weights of their mean loss per token: most of a tool call is always the same text, in which the
# few tokens that matter would drown.
FAMILIES: tuple[tuple[Callable[[random.Random, bool], Trace], float], ...] = (
    (sum_trace, 1.0),
    (tool_trace, 4.0),
    (letter_trace, 1.0),
)


def _pick(rng: random.Random, *weighted: tuple[float, str]) -> str:
    return rng.choices([text for _, text in weighted], [weight for weight, _ in weighted])[0]


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _opening(rng: random.Random, phrasings: Sequence[str], *, system: float, **values: object) -> list[dict[str, Any]]:
    """The user's message, after an empty system message with probability `system`."""
    question = _message("user", rng.choice(phrasings).format(**values))
    return [_message("system", ""), question] if rng.random() < system else [question]


def cold_start(directory: Path) -> None:
    """Train from random weights and save model and tokenizer into `directory` (Hugging Face layout).

    One thread and a private seed: the same weights for the same version of torch on the same kind of CPU, and the
    caller's random state is left as it was.
    """
    import torch

    tokenizer = build_tokenizer()
    rng = random.Random(RECIPE.seed)
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(RECIPE.seed)
        model = build_model()
        _train(model, tokenizer, rng)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The order of a sum depends on the number of threads, and these matrices are too small to share anyway."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _train(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> None:
    import torch

    total = sum(stage.steps for stage in RECIPE.stages)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RECIPE.learning_rate, betas=(0.9, 0.95))
    # Linear warm-up over 20 steps, then a linear decay to a tenth.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * (1 - 0.9 * step / total)
    )
    pools = {
        noisy: [[_encode(tokenizer, family(rng, noisy)) for _ in range(RECIPE.pool)] for family, _ in FAMILIES]
        for noisy in (False, True)
    }
    model.train()
    for stage in RECIPE.stages:
        for _ in range(stage.steps):
            optimizer.zero_grad()
            # One family at a time, so that short traces are not padded to the longest.
            for pool, batch, (_, weight) in zip(pools[stage.noisy], stage.batches, FAMILIES, strict=True):
                (weight * _loss(model, rng.sample(pool, batch))).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    model.eval()


Encoded = tuple[list[int], list[int]]  # token ids, and 1 on each token that the assistant wrote (its end mark too)


def _encode(tokenizer: PreTrainedTokenizerFast, trace: Trace) -> Encoded:
    out: Any = tokenizer.apply_chat_template(
        trace.messages, tools=trace.tools, return_dict=True, return_assistant_tokens_mask=True
    )
    return out["input_ids"], out["assistant_masks"]


def _loss(model: LlamaForCausalLM, batch: Sequence[Encoded]) -> torch.Tensor:
    """Cross-entropy of what the assistant wrote, mean over its tokens."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    # Padding stands on the right, where a causal model cannot look back at it: no attention mask is needed.
    ids = pad_sequence([torch.tensor(row) for row, _ in batch], batch_first=True)
    mask = pad_sequence([torch.tensor(row) for _, row in batch], batch_first=True)[:, 1:].bool()
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[mask], ids[:, 1:][mask])
