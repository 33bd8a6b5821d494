"""The report in a real browser: it draws, it filters, it compares, it runs nothing that a model wrote."""

from __future__ import annotations

import asyncio
from pathlib import Path

import chromium as browser
import pytest

from plugym.store import RunDir
from plugym_runners.report import write_report

pytestmark = pytest.mark.skipif(browser.EXECUTABLE is None, reason="chromium is not installed")


async def overview(page: browser.Page) -> None:
    assert await page.js("document.querySelectorAll('.chart svg').length") >= 8
    assert await page.js("document.querySelector('[data-check=truncation] .badge').textContent") == "fail"
    assert "--rollout.max_turn_tokens" in await page.js("document.querySelector('[data-check=truncation]').textContent")


async def episodes(page: browser.Page) -> None:
    await page.click("[data-tab=episodes]")
    assert await page.js("document.getElementById('overview').hidden")
    assert await page.js("document.getElementById('count').textContent") == "30 of 30 episodes"
    assert "<script>window.pwned=1</script>" in await page.js("document.querySelector('#episode .message').textContent")
    assert "calculator(" in await page.js("document.querySelector('#episode .call').textContent")
    await page.choose("verdict", "correct")
    assert await page.js("document.getElementById('count').textContent") == "13 of 30 episodes"
    await page.click("#list button:nth-child(3)")
    assert await page.js("document.querySelector('#list button:nth-child(3)').getAttribute('aria-current')") == "true"
    await page.choose("step", "3")
    assert await page.js("document.getElementById('count').textContent") == "4 of 30 episodes"
    colors = set()
    for mode in ("mask", "logprob", "advantage"):
        await page.choose("colour of tokens", mode)
        colors.add(await page.js("document.querySelectorAll('.token')[5].style.background"))
    assert len(colors) == 3
    assert await page.js("document.querySelectorAll('.token')[0].textContent") == " The"
    await page.choose("verdict", "infra")
    assert "KeyError" in await page.js("document.getElementById('episode').textContent")


async def compare(page: browser.Page) -> None:
    await page.click("[data-tab=compare]")
    sides = "[...document.querySelectorAll('.columns h3')].map(h => h.textContent)"
    assert await page.js(sides) == [
        "evaluation at 0: mean reward 0 of 1",
        "evaluation at 30: mean reward 1 of 1",
    ]
    assert await page.js("[...document.querySelectorAll('mark')].map(m => m.textContent)") == [
        "e0-1",
        "16",
        "e30-1",
        "15",
    ]


def test_clicking_through(run: RunDir, tmp_path: Path) -> None:
    report = write_report(run)

    async def visit() -> None:
        async with browser.chromium(tmp_path / "profile") as page:
            await page.open(report.as_uri())
            for part in (overview, episodes, compare):
                await part(page)
                assert (await page.screenshot()).startswith(b"\x89PNG")
            await page.click("[data-tab=settings]")
            assert "grpo_tcr" in await page.js("document.querySelector('#settings').innerText")
            assert await page.js("window.pwned") is None
            assert page.errors == []
            assert page.requests == [report.as_uri()]

    asyncio.run(visit())


def test_a_run_that_has_just_started(empty_run: RunDir, tmp_path: Path) -> None:
    report = write_report(empty_run)

    async def visit() -> None:
        async with browser.chromium(tmp_path / "profile") as page:
            await page.open(report.as_uri())
            assert "No metrics are written yet." in await page.js("document.body.innerText")
            await page.click("[data-tab=episodes]")
            assert "No episodes are stored." in await page.js("document.body.innerText")
            assert page.errors == []

    asyncio.run(visit())
