"""`runner view`: who knows the URL reads the run, nobody reads anything else."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from plugym.store import RunDir
from plugym_runners.report.serve import HOST, Viewer

TOKEN = "a-token"


def ask(run: RunDir, path: str, host: str | None = None) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of one GET, the path sent exactly as it is written."""

    async def get() -> tuple[int, dict[str, str], str]:
        async with TestClient(TestServer(Viewer(run, TOKEN).app(), host=HOST)) as client:
            url = URL(str(client.make_url("/"))[:-1] + path, encoded=True)
            async with client.session.get(url, headers={"Host": host} if host else {}, allow_redirects=False) as answer:
                return answer.status, dict(answer.headers), await answer.text(errors="replace")

    return asyncio.run(get())


def test_the_report_is_written_and_served(run: RunDir) -> None:
    status, headers, body = ask(run, f"/{TOKEN}/")
    assert status == 200
    assert headers["Content-Type"] == "text/html"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert body == (run.path / "report.html").read_text(encoding="utf-8")


def test_the_report_follows_the_run(run: RunDir) -> None:
    ask(run, f"/{TOKEN}/")
    report = run.path / "report.html"
    os.utime(report, (1, 1))
    run.append_metrics(31, {"reward/mean": 0.123456789})
    assert "0.12346" in ask(run, f"/{TOKEN}/")[2]


def test_a_run_that_cannot_be_read_is_said(run: RunDir) -> None:
    run.metrics_path.write_text("not json\n")
    status, headers, body = ask(run, f"/{TOKEN}/")
    assert (status, headers["Content-Type"]) == (500, "text/plain; charset=utf-8")
    assert "metrics.jsonl:1: not a row of metrics" in body


def test_files_of_the_run_are_never_html(run: RunDir) -> None:
    (run.path / "evil.html").write_text("<script>alert(1)</script>")
    assert ask(run, f"/{TOKEN}/files/metrics.jsonl")[1]["Content-Type"].startswith("text/plain")
    assert ask(run, f"/{TOKEN}/files/evil.html")[1]["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/wrong/",
        "/%C3%BC/",
        f"/{TOKEN}x/",
        f"/{TOKEN}/files/",
        f"/{TOKEN}/files/../../secret",
        f"/{TOKEN}/files/%2e%2e/secret",
        f"/{TOKEN}/files/..%2fsecret",
        f"/{TOKEN}/files//etc/passwd",
        f"/{TOKEN}/files/%2fetc/passwd",
        f"/{TOKEN}/files/link",
        f"/{TOKEN}/files/folder/secret",
        f"/{TOKEN}/files/trajectories",
        f"/{TOKEN}/files/nul%00",
        f"/{TOKEN}/files/{'x' * 5000}",
    ],
)
def test_nothing_outside_is_served(run: RunDir, path: str) -> None:
    secret = run.path.parent / "secret"
    secret.write_text("secret")
    (run.path / "link").symlink_to(secret)
    (run.path / "folder").symlink_to(run.path.parent)
    status, _, body = ask(run, path)
    assert status == 404
    assert "secret" not in body


@pytest.mark.parametrize(("host", "status"), [("evil.example", 404), ("evil.example:80", 404), ("localhost:80", 200)])
def test_only_names_of_this_machine_are_answered(run: RunDir, host: str, status: int) -> None:
    assert ask(run, f"/{TOKEN}/files/config.toml", host)[0] == status


def start(directory: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "plugym_runners", "view", str(directory), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_verb_prints_its_url_and_ends_with_ctrl_c(run: RunDir) -> None:
    process = start(run.path)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url.startswith(f"http://{HOST}:")
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert b"<title>demo</title>" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url[:-5] + "/", timeout=20)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_port_in_use_is_one_line(run: RunDir) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        process = start(run.path, "--port", str(taken.getsockname()[1]))
        _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "choose another with --port" in err
