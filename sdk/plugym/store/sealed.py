"""Checkpoints that can be checked: a list of their files with sizes and SHA-256, written last and compared on resume.

A move into place keeps half-written folders away; what a disk, a copy or a person does to a folder afterwards is found
here, before anything is loaded from it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

LIST = "files.json"


def seal(folder: Path) -> None:
    """Write the list of all files in `folder`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    rows = {path.relative_to(folder).as_posix(): _identity(path) for path in files if path != folder / LIST}
    (folder / LIST).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def damage(folder: Path) -> str:
    """What is wrong with a sealed folder, '' when every file is as it was. Files that came later are not looked at.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     _ = (folder / "weights").write_text("1234")
    ...     seal(folder)
    ...     intact = damage(folder)
    ...     _ = (folder / "weights").write_text("12")
    ...     intact, damage(folder)
    ('', 'weights has 2 bytes instead of 4')
    """
    try:
        rows: dict[str, Any] = json.loads((folder / LIST).read_text(encoding="utf-8"))
        for name, (size, digest) in rows.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes instead of {size}"
            if _identity(path)[1] != digest:
                return f"{name} was changed"
    except FileNotFoundError:
        return f"it has no {LIST}"
    except (OSError, ValueError, AttributeError, TypeError) as error:
        return f"{LIST} cannot be read: {error}"
    return ""


def _identity(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
