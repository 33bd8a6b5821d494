"""Writing that a reader sees whole or not at all: beside the target first, flushed to disk, then moved into place.

Names of what is being written start with a dot and end with `.tmp`. A process that dies leaves them behind;
`discard_unfinished` removes them, and only whoever owns the directory may call it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def unfinished(target: Path) -> Path:
    """Where `target` is written before it is complete: in the same folder, because a move must not copy."""
    return target.with_name(f".{target.name}.tmp")


def write_text(target: Path, text: str) -> None:
    """Write a small file, replacing what was there."""
    write_bytes(target, text.encode())


def write_bytes(target: Path, data: bytes) -> None:
    """The same for bytes."""
    temporary = unfinished(target)
    temporary.write_bytes(data)
    move_file(temporary, target)


def move_file(temporary: Path, target: Path) -> None:
    """Move a finished file into place; after a power cut there is the old content or the new one, never neither."""
    _sync(temporary)
    os.replace(temporary, target)
    _sync(target.parent)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """An empty folder to write into. It appears as `target` when the body ends, and not at all when it raises.

    A folder that is there already is moved aside first and removed at the end.
    """
    temporary = unfinished(target)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for folder, _, files in os.walk(temporary):
            for name in (*files, "."):
                _sync(Path(folder, name))
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    aside = _move_aside(target) if target.exists() else None
    os.replace(temporary, target)
    _sync(target.parent)
    if aside is not None:
        shutil.rmtree(aside)


def remove_folder(target: Path) -> None:
    """Remove a folder so that a half-removed one is never taken for a complete one."""
    shutil.rmtree(_move_aside(target))


def _move_aside(target: Path) -> Path:
    aside = target.with_name(f".{target.name}.old.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(target, aside)
    return aside


def discard_unfinished(folder: Path) -> list[Path]:
    """Remove what earlier processes did not finish in `folder`; returns what it was."""
    found = sorted(folder.glob(".*.tmp"))
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return found


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
