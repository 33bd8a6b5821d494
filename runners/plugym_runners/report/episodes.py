"""Episodes in few bytes: what the page needs of a scored group as plain JSON values.

What repeats (prompts, instructions) is stored once in a table of texts; sampled tokens keep ids and log-probs, the
tokens between them become one run of text. Whatever is cut is counted where it was cut.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from plugym.functional import group_advantages
from plugym.message import Message, ToolCall
from plugym.reward import Score
from plugym.store.fields import to_runs
from plugym.trajectory import ScoredGroup, TokenStream, Trajectory
from plugym_runners.report.decode import Vocabulary

MAX_TEXT = 20_000
"""Characters of one text that are kept: its head and its tail."""
MAX_TOKENS = 4_000
"""Sampled tokens of one episode that are kept."""


@dataclass(slots=True)
class Packer:
    """Packs episodes and counts the bytes they add to the page."""

    vocabulary: Vocabulary
    texts: list[str] = field(default_factory=list)
    size: int = 0
    _index: dict[str, int] = field(default_factory=dict)

    def group(self, scored: ScoredGroup, source: int) -> list[dict[str, Any]]:
        """One JSON object per trajectory; `source` is the number of the file it comes from."""
        advantages = advantages_of(scored)
        rows = zip(scored.group.trajectories, scored.scores, strict=True)
        return [
            self._counted({"source": source, "number": i, **self._episode(t, score), "advantage": advantages.get(i)})
            for i, (t, score) in enumerate(rows)
        ]

    def _counted(self, episode: dict[str, Any]) -> dict[str, Any]:
        self.size += len(json.dumps(episode))
        return episode

    def _episode(self, trajectory: Trajectory, score: Score) -> dict[str, Any]:
        task = trajectory.task
        return {
            "id": trajectory.id,
            "group": trajectory.group_id,
            "task": task.id if task else trajectory.group_id,
            "answer": None if task is None or task.answer is None else self.text(task.answer),
            "reward": _rounded(score.value),
            "correct": score.correct,
            "why": self.text(score.why),
            "parts": {name: _rounded(value) for name, value in score.parts.items()},
            "stop": str(trajectory.stop_reason),
            "status": str(trajectory.status),
            "failure": self.text(f"{trajectory.failure.kind}: {trajectory.failure.message}")
            if trajectory.failure
            else None,
            "counts": {name: _rounded(value) for name, value in trajectory.counts.items() if value},
            "messages": [self._message(message) for message in trajectory.messages()],
            "final": self.text(trajectory.final_text),
            "sampled": trajectory.trained_tokens,
            **self._streams(trajectory.streams),
        }

    def _message(self, message: Message) -> dict[str, Any]:
        packed = {
            "role": message.role,
            "text": self.text(message.text),
            "reasoning": self.text(message.reasoning) if message.reasoning else None,
            "calls": [self._call(call) for call in message.tool_calls],
            "images": len(message.images),
            "answers": message.tool_call_id,
        }
        return {name: value for name, value in packed.items() if value not in (None, [], 0) or name == "text"}

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False, default=str)
        return {"id": call.id, "name": self.text(call.name), "arguments": self.text(arguments), "error": call.error}

    def _streams(self, streams: Sequence[TokenStream]) -> dict[str, Any]:
        left = MAX_TOKENS
        packed = []
        for stream in streams:
            packed.append({"trainable": stream.trainable, "runs": self._runs(stream, left)})
            left = max(0, left - int(stream.loss_mask.sum()))
        return {"streams": packed}

    def _runs(self, stream: TokenStream, left: int) -> list[dict[str, Any]]:
        """Runs of equal mask: context as text, sampled tokens one by one, at most `left` of these."""
        runs: list[dict[str, Any]] = []
        start = 0
        for sampled, length in to_runs(stream.loss_mask):
            ids = stream.ids[start : start + length].tolist()
            if sampled:
                kept = min(length, left)
                left -= kept
                self.vocabulary.note(ids[:kept])
                logprobs = [round(float(value), 3) for value in stream.logprobs[start : start + kept]]
                version = int(stream.policy_versions[start])
                runs.append({"ids": ids[:kept], "logprobs": logprobs, "version": version, "cut": length - kept})
            else:
                text = self.vocabulary.text(ids)
                runs.append({"n": length, "text": None if text is None else self.text(text)})
            start += length
        return runs

    def text(self, text: str) -> int:
        """The number of a text in the table; a long one loses its middle and says how much."""
        if len(text) > MAX_TEXT:
            half = MAX_TEXT // 2
            text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
        if text not in self._index:
            self._index[text] = len(self.texts)
            self.texts.append(text)
            self.size += len(json.dumps(text))
        return self._index[text]


def advantages_of(scored: ScoredGroup) -> dict[int, float]:
    """Group advantages by position, recomputed from the stored scores: (score - mean) / std, before any shaping.

    The advantages that trained are not stored; an algorithm that shapes rewards used others.
    """
    counted = scored.counted()
    if len(counted) < 2:
        return {}
    values = group_advantages(scored.values())
    return {i: round(float(advantage), 3) for (i, _, _), advantage in zip(counted, values, strict=True)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
