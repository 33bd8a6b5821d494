"""What an episode is about: `Task`, the `Check` that decides it, and the `Taskset` a run draws from.

Ids are stable: the same task has the same id in every process and version of a run, so that results can be compared,
resumed and counted by id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plugym.errors import BadInput


@dataclass(frozen=True, slots=True)
class Check:
    """How an answer is decided: the name of a checker (`math`, `choice`, `exact`, `outcome`, or a plugin's) and its
    settings, such as `{"extract": "boxed"}`."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `data` is what the environment needs to set it up, `answer` what the check compares with.

    `difficulty` is in [0, 1] where known. `parent` and `revision` tell an evolved task from its origin.

    >>> Task("math/sum/3+4", env="math", instruction="What is 3+4?", answer="7", check=Check("math")).split
    'train'
    """

    id: str
    env: str = ""
    split: str = "train"
    instruction: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    answer: str | None = None
    check: Check | None = None
    difficulty: float | None = None
    parent: str | None = None
    revision: int = 0


class Taskset:
    """A finite sequence of tasks, or an endless stream of them, with stable ids.

    A stream is given as a function `index -> Task`, so that any position can be reached again after a resume.

    >>> tasks = Taskset([Task("a"), Task("b"), Task("c")])
    >>> len(tasks), [t.id for t in tasks.shuffle(0).take(2)]
    (3, ['c', 'a'])
    >>> endless = Taskset.stream(lambda i: Task(f"n{i}"))
    >>> [t.id for t in endless.window(5, 2)]
    ['n5', 'n6']
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks: Sequence[Task] = tuple(tasks)
        self._make: Callable[[int], Task] | None = None
        if not self._tasks:
            raise BadInput("the task set is empty: check the split name and the data file")
        seen: set[str] = set()
        for task in self._tasks:
            if task.id in seen:
                raise BadInput(f"two tasks share the id {task.id!r}: ids must be unique within a split")
            seen.add(task.id)

    @classmethod
    def stream(cls, make: Callable[[int], Task]) -> Taskset:
        """An endless task set; `make(i)` must return the same task whenever it is called with the same `i`."""
        taskset = cls.__new__(cls)
        taskset._tasks = ()
        taskset._make = make
        return taskset

    @property
    def finite(self) -> bool:
        return self._make is None

    def __len__(self) -> int:
        if not self.finite:
            raise TypeError("an endless task set has no length: use take(n) or window(start, n)")
        return len(self._tasks)

    def __getitem__(self, index: int) -> Task:
        return self._tasks[index] if self._make is None else self._make(index)

    def __iter__(self) -> Iterator[Task]:
        if self._make is None:
            yield from self._tasks
        else:
            index = 0
            while True:
                yield self._make(index)
                index += 1

    def shuffle(self, seed: int) -> Taskset:
        """A shuffled copy; an endless stream is returned unchanged (its own order is already arbitrary)."""
        if not self.finite:
            return self
        order = np.random.Generator(np.random.Philox(seed)).permutation(len(self._tasks))
        return Taskset(self._tasks[i] for i in order)

    def take(self, n: int) -> Taskset:
        """The first `n` tasks (all of them when there are fewer)."""
        return Taskset(self[i] for i in range(min(n, len(self._tasks)) if self.finite else n))

    def window(self, start: int, n: int) -> list[Task]:
        """`n` tasks from position `start` on, wrapping round a finite set epoch after epoch."""
        if self.finite:
            return [self._tasks[(start + i) % len(self._tasks)] for i in range(n)]
        return [self[start + i] for i in range(n)]

    def fingerprint(self) -> str:
        """SHA-256 over the ids of a finite set; evaluations of different sets must not be compared."""
        digest = hashlib.sha256()
        for task in self._tasks:
            digest.update(task.id.encode() + b"\0" + str(task.revision).encode() + b"\0")
        return digest.hexdigest()
