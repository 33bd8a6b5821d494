"""The training curve of a run as an SVG picture: `python docs/plot_run.py runs/demo docs/assets/demo-curve.svg`.

Reads metrics.jsonl and evals.jsonl and nothing else; the picture in the README is made with it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 260, 46, 34, 16, 40


def rows(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def svg(run: Path) -> str:
    metrics, evals = rows(run / "metrics.jsonl"), rows(run / "evals.jsonl")
    last = max(row["step"] for row in metrics)

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value)

    def text(at: tuple[float, float], words: str, anchor: str = "middle") -> str:
        return f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}">{words}</text>'

    grid = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>'
        + text((LEFT - 6, y(v) + 4), f"{v:g}", "end")
        for v in (0, 0.25, 0.5, 0.75, 1)
    ]
    ticks = [text((x(s), HEIGHT - BOTTOM + 18), f"{s}") for s in range(0, last + 1, max(1, last // 10))]
    line = " ".join(f"{x(row['step']):.1f},{y(row['reward/mean']):.1f}" for row in metrics)
    dots = [
        f'<circle cx="{x(row["step"]):.1f}" cy="{y(row["eval/avg@k"]):.1f}" r="5" fill="#d9480f"/>'
        + text((x(row["step"]) + (10 if row["step"] < last else -10), y(row["eval/avg@k"]) + 4),
               f"{row['eval/avg@k']:.2f}", "start" if row["step"] < last else "end")
        for row in evals
    ]  # fmt: skip
    legend = (
        f'<text x="{LEFT}" y="20"><tspan fill="#1864ab">— right answers in training, per step</tspan>'
        '<tspan dx="18" fill="#d9480f">● held-out problems, greedy</tspan></text>'
    )
    body = [
        *grid,
        *ticks,
        f'<polyline points="{line}" fill="none" stroke="#1864ab" stroke-width="2"/>',
        *dots,
        legend,
        text(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6), "training step"),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>{"".join(body)}</svg>\n'
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python docs/plot_run.py RUN_DIR OUT.svg")
    Path(sys.argv[2]).write_text(svg(Path(sys.argv[1])))
