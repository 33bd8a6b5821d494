"""The page itself: template, style and script from `page/`, with the document embedded as inert JSON.

Model text is hostile. It enters the page only inside the JSON block, where no character can end a script element, and
the script puts it on the screen with `textContent`. The policy in the page allows this one script by its hash and no
request to anywhere, so that a mistake would still run nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from plugym.store import RunDir, atomic
from plugym_runners.report.collect import BUDGET, collect

SCRIPTS = ("dom.js", "charts.js", "episodes.js", "compare.js", "main.js")
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def write_report(run: RunDir, budget: int = BUDGET) -> Path:
    """Write `report.html` into the run directory, replacing an earlier one; returns its path."""
    path = run.path / "report.html"
    atomic.write_text(path, render(collect(run, budget)))
    return path


def render(document: Mapping[str, Any]) -> str:
    """The page of a document (see `collect`)."""
    page = files("plugym_runners.report") / "page"
    script = "\n".join((page / name).read_text(encoding="utf-8") for name in SCRIPTS)
    style = (page / "style.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'"
    return Template((page / "template.html").read_text(encoding="utf-8")).substitute(
        policy=policy, title=html.escape(document["run"]), style=style, script=script, data=inert_json(document)
    )


def inert_json(document: Mapping[str, Any]) -> str:
    """JSON that means the same inside a script element and cannot end it.

    >>> inert_json({"text": "</script>"})
    '{"text": "\\\\u003c/script\\\\u003e"}'
    """
    return json.dumps(document, allow_nan=False).translate(_ESCAPES)


def _hash(source: str) -> str:
    """The name of an inline script or style in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"
