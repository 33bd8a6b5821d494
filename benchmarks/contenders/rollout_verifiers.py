"""Contender of rollout_overhead.py: verifiers 0.1.14, the last release with the in-process loop."""

from __future__ import annotations

import logging
import os

import verifiers as vf
from datasets import Dataset
from meter import main, questions
from verifiers.types import ClientConfig


def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: first number
        b: second number
    """
    return str(a + b)


def correct(completion: list, answer: str, **_: object) -> float:
    content = completion[-1].content
    return float(f"\\boxed{{{answer}}}" in (content if isinstance(content, str) else str(content)))


async def play(url: str, tools: bool, episodes: int, concurrency: int) -> int:
    dataset = Dataset.from_list([{"question": q, "answer": a} for q, a in questions(episodes)])
    rubric = vf.Rubric(funcs=[correct])
    if tools:
        env = vf.ToolEnv(dataset=dataset, eval_dataset=dataset, tools=[add], rubric=rubric, max_turns=10)
    else:
        env = vf.SingleTurnEnv(dataset=dataset, eval_dataset=dataset, rubric=rubric)
    client = ClientConfig(api_base_url=url, api_key_var="FAKE_KEY")
    results = await env.evaluate(
        client, "fake", num_examples=episodes, rollouts_per_example=1, max_concurrent=concurrency, on_progress=[]
    )
    return int(sum(output["reward"] for output in results["outputs"]))


if __name__ == "__main__":
    os.environ["FAKE_KEY"] = "none"
    logging.disable(logging.CRITICAL)
    main(play)
