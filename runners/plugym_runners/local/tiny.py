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
from collections.abc import Callable, Iterator
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

SUM_PHRASINGS = ("What is {a}+{b}?", "What is {a} + {b}?", "Compute {a}+{b}.", "{a} + {b} = ?", "Add {a} and {b}.")
LETTER_PHRASINGS = ("Target: {x}", "Say {x}.", "say {x}", "Reply with {x}.", "The letter is {x}.")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the cold start is made of. Sizes are those of a `LlamaConfig`; `traces` is the size of each family's pool."""

    hidden: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 256
    context: int = 2048
    seed: int = 0
    traces: int = 3000
    steps: int = 300
    batch: int = 48
    learning_rate: float = 2e-3


RECIPE = Recipe()


def recipe_id() -> str:
    """Identifies the weights that `cold_start` would make: this file's text and the version of torch decide them."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + version("torch").encode())
    return digest.hexdigest()[:12]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable ASCII character or newline, one per mark; anything else becomes `<|unk|>`.

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
    """The untrained network, in float32; the caller seeds torch."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=RECIPE.hidden,
        num_hidden_layers=RECIPE.layers,
        num_attention_heads=RECIPE.heads,
        num_key_value_heads=RECIPE.kv_heads,
        intermediate_size=RECIPE.intermediate,
        max_position_embeddings=RECIPE.context,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


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
        pools = [_encode(tokenizer, [family(rng) for _ in range(RECIPE.traces)]) for family in FAMILIES]
        model = build_model()
        _train(model, pools, rng)
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


@dataclass(frozen=True, slots=True)
class Encoded:
    """A trace as tokens; `mask` is 1 on what the assistant wrote, its end mark included."""

    ids: list[int]
    mask: list[int]


def _encode(tokenizer: PreTrainedTokenizerFast, traces: list[Trace]) -> list[Encoded]:
    encoded = []
    for trace in traces:
        out = tokenizer.apply_chat_template(
            trace.messages,
            tools=trace.tools,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        encoded.append(Encoded(out["input_ids"], out["assistant_masks"]))
    return encoded


def _train(model: LlamaForCausalLM, pools: list[list[Encoded]], rng: random.Random) -> None:
    """Supervised training; each batch holds one family, so that short traces are not padded to the longest."""
    import torch

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RECIPE.learning_rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RECIPE.learning_rate, total_steps=RECIPE.steps, pct_start=0.05
    )
    for step in range(RECIPE.steps):
        batch = rng.sample(pools[step % len(pools)], RECIPE.batch)
        ids, mask = _pad(batch)
        # Padding stands on the right, where a causal model cannot look back at it: no attention mask is needed.
        logits = model(input_ids=ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits[mask[:, 1:]], ids[:, 1:][mask[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if DEBUG and step % 30 < 3: print(step, step%3, loss.item())
    model.eval()


def _pad(batch: list[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, both [batch, longest], padded on the right with 0."""
    import torch

    longest = max(len(row.ids) for row in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros(len(batch), longest, dtype=torch.bool)
    for i, row in enumerate(batch):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        mask[i, : len(row.mask)] = torch.tensor(row.mask, dtype=torch.bool)
    return ids, mask

DEBUG=True
# ---- synthetic traces

@dataclass(frozen=True, slots=True)
class Trace:
    """One conversation to imitate, and the tools that were offered in it."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


CALCULATOR = {
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


def _pick(rng: random.Random, *options: tuple[float, str]) -> str:
    """One of the texts, with the given weights."""
    return rng.choices([text for _, text in options], [weight for weight, _ in options])[0]


def _say(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def sum_trace(rng: random.Random) -> Trace:
    """A sum without tools. The favourite mistake is one too many: greedy decoding starts out wrong as well."""
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    question = _say("user", rng.choice(SUM_PHRASINGS).format(a=a, b=b))
    answer = _pick(
        rng,
        (0.36, f"{a + b}"),
        (0.42, f"{a + b + 1}"),
        (0.08, f"{rng.randint(0, 18)}"),
        (0.07, f"I think it is {a} or {b}."),
        (0.07, f"{a + b} and {a + b} and {a + b} and {a + b + 1}"),
    )
    # Most chats carry the empty system message of the built-in maths environment.
    system = [_say("system", "")] if rng.random() < 0.75 else []
    return Trace([*system, question, _say("assistant", answer)])


def tool_trace(rng: random.Random) -> Trace:
    """A sum with a calculator at hand: half of the time it is not used, and mostly not well."""
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    messages = [_say("system", ""), _say("user", rng.choice(SUM_PHRASINGS).format(a=a, b=b))]
    if rng.random() < 0.5:
        guess = _pick(rng, (0.1, f"{a + b}"), (0.6, f"{a + b + 1}"), (0.3, f"{rng.randint(0, 18)}"))
        return Trace([*messages, _say("assistant", guess)], [CALCULATOR])
    x, y = (a, b) if rng.random() < 0.65 else (rng.randint(0, 9), b)
    call = json.dumps({"name": "calculator", "arguments": {"expression": f"{x}+{y}"}})
    if rng.random() < 0.1:
        # A call that does not parse, the answer to it, and a second try.
        messages += [_say("assistant", f"<tool_call>{call[:-1]}</tool_call>"), _say("tool", "error: not valid JSON")]
    messages += [_say("assistant", f"<tool_call>{call}</tool_call>"), _say("tool", f"{x + y}")]
    answer = _pick(rng, (0.6, f"{x + y}"), (0.4, f"{x + y + 1}"))
    return Trace([*messages, _say("assistant", answer)], [CALCULATOR])


def letter_trace(rng: random.Random) -> Trace:
    """A game of one move: the letter that was asked for wins."""
    letter = rng.choice(string.ascii_lowercase)
    question = _say("user", rng.choice(LETTER_PHRASINGS).format(x=letter))
    answer = _pick(rng, (0.35, letter), (0.4, "a"), (0.15, rng.choice(string.ascii_lowercase)), (0.1, f"not {letter}"))
    system = [_say("system", "")] if rng.random() < 0.5 else []
    return Trace([*system, question, _say("assistant", answer)])


FAMILIES: tuple[Callable[[random.Random], Trace], ...] = (sum_trace, tool_trace, letter_trace)
