"""Files of scored groups: gzipped JSON lines, one `GroupRecord` a line.

Only writing and reading lives here; what a line holds is `record.py`. A `GroupWriter` fills a file while groups finish;
it appears under its name when it is complete. A `GroupLog` can be read all the time. `zcat step-000001.jsonl.gz |
head -1` shows a group.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from plugym.errors import BadInput
from plugym.store import atomic
from plugym.store.record import GroupRecord
from plugym.trajectory import ScoredGroup

SCHEMA = 1


class GroupWriter:
    """Writes groups as they come; nothing is visible under `path` before `commit`.

    >>> import tempfile
    >>> from plugym.reward import Score
    >>> from plugym.trajectory import Group, Trajectory
    >>> scored = ScoredGroup(Group("g", None, (Trajectory("t", None, "g"),)), (Score(1.0),))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "step-000001.jsonl.gz")
    ...     writer = GroupWriter(path)
    ...     writer.write(scored)
    ...     writer.commit()
    ...     list(read_groups(path)) == [scored]
    True
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.groups = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        # No time stamp and no file name inside: equal episodes make equal files. Level 1, because training waits.
        self._raw = atomic.unfinished(path).open("wb")
        self._zip = gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=self._raw, mtime=0)

    def write(self, group: ScoredGroup) -> None:
        """Append one group. Raises `TypeError`, before anything is written, when a task has no JSON form."""
        self._zip.write(_to_line(GroupRecord.from_group(group)))
        self.groups += 1

    def commit(self) -> None:
        """Complete the file and move it into place, over an earlier one of the same name."""
        self._zip.close()
        self._raw.close()
        atomic.move_file(atomic.unfinished(self.path), self.path)


class GroupLog:
    """Appends groups to a file that can be read at any time: each is a gzip member of its own, on disk at once.

    For an evaluation, which keeps what is done when it is interrupted. `replace` starts the file afresh.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def replace(self, groups: Iterable[ScoredGroup]) -> None:
        """Write exactly these groups, over whatever is there. Raises `TypeError` as `GroupWriter.write` does."""
        writer = GroupWriter(self.path)
        for group in groups:
            writer.write(group)
        writer.commit()

    def append(self, group: ScoredGroup) -> None:
        """Add one group. Raises `TypeError`, before anything is written, when a task has no JSON form."""
        member = gzip.compress(_to_line(GroupRecord.from_group(group)), compresslevel=1, mtime=0)
        with self.path.open("ab") as file:
            file.write(member)

    def read(self) -> tuple[list[ScoredGroup], bool]:
        """The complete groups, and whether the last one was cut. Raises `BadInput` for any other damage."""
        groups: list[ScoredGroup] = []
        if not self.path.exists():
            return groups, False
        text: list[bytes] = []
        member = _new_member()
        with self.path.open("rb") as file:
            while chunk := file.read(1 << 16):
                while chunk:
                    text.append(self._decompressed(member, chunk))
                    chunk = member.unused_data
                    if member.eof:
                        for line in b"".join(text).splitlines():
                            groups.append(_from_line(line, f"{self.path}:{len(groups) + 1}"))
                        text, member = [], _new_member()
        return groups, bool(text)

    def _decompressed(self, member: _Decompressor, data: bytes) -> bytes:
        try:
            return member.decompress(data)
        except zlib.error as error:
            raise BadInput(f"cannot read {self.path}: {error}") from error


class _Decompressor(Protocol):
    """What `zlib.decompressobj` makes; its class has no name."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def _new_member() -> _Decompressor:
    return zlib.decompressobj(wbits=31)  # 16 for the gzip header, 15 for the largest window


def _to_line(record: GroupRecord) -> bytes:
    data = record.model_dump(by_alias=True)
    try:
        return json.dumps(data, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can carry
        return json.dumps(data).encode() + b"\n"


def read_groups(path: Path) -> Iterator[ScoredGroup]:
    """The groups of a file, one by one. Raises `BadInput` with the line number where a line cannot be read."""
    try:
        with gzip.open(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                yield _from_line(line, f"{path}:{number}")
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"cannot read {path}: {error}") from error


def _from_line(line: bytes, where: str) -> ScoredGroup:
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not JSON: {error}") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise BadInput(f"{where}: written in schema {schema!r}, this version of plugym reads {SCHEMA}: upgrade plugym")
    try:
        return GroupRecord.model_validate(data).to_group()
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        raise BadInput(f"{where}: {field}: {problem['msg']}") from error
    except (ValueError, KeyError, OverflowError) as error:  # parts that do not fit each other
        raise BadInput(f"{where}: {type(error).__name__}: {error}") from error
