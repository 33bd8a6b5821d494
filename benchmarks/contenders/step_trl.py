"""Contender of grpo_step.py: TRL's GRPOTrainer with generation by transformers."""

from __future__ import annotations

import logging
from typing import Any

import torch
from datasets import Dataset
from stepping import GROUP_SIZE, LEARNING_RATE, Clock, reward, setup
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class ClockCallback(TrainerCallback):
    """Reads the clock after each update."""

    def __init__(self) -> None:
        self.clock = Clock()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.clock = Clock()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.clock.tick()

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        if "completions/mean_length" in logs:
            self.clock.lengths.append(logs["completions/mean_length"])


def hash_reward(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
    return [reward(messages[-1]["content"]) for messages in completions]


def main() -> None:
    work = setup()
    torch.set_num_threads(1)
    peft_config = None
    if work["method"] == "lora":
        from peft import LoraConfig

        peft_config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    config = GRPOConfig(
        output_dir=f"{work['folder']}/trl",
        per_device_train_batch_size=work["groups"] * GROUP_SIZE,
        gradient_accumulation_steps=1,
        num_generations=GROUP_SIZE,
        max_completion_length=work["tokens"],
        temperature=1.0,
        beta=0.0,
        learning_rate=LEARNING_RATE,
        max_steps=work["steps"],
        logging_steps=1,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        model_init_kwargs={"dtype": "float32"},
    )
    callback = ClockCallback()
    trainer = GRPOTrainer(
        model=work["path"],
        reward_funcs=hash_reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in work["prompts"]]),
        peft_config=peft_config,
        callbacks=[callback],
    )
    trainer.train()
    callback.clock.report()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main()
