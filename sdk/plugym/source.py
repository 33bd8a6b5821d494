"""Where groups come from. The rollout driver is one source; a gateway that records an agent's own calls is another.

Nothing downstream of a source may assume that an environment loop produced a group: its task may be None and its
scores may arrive later, by trajectory id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any

from plugym.trajectory import Group


class TrajectorySource(ABC):
    """A long-lived stream of groups. The runner pulls as many as it trains on.

    >>> class Recorded(TrajectorySource):
    ...     def __init__(self, groups):
    ...         self.recorded = groups
    ...
    ...     async def groups(self):
    ...         for group in self.recorded:
    ...             yield group
    """

    @abstractmethod
    def groups(self) -> AsyncIterator[Group]:
        """Finished groups, as they finish."""

    def set_version(self, version: int) -> None:
        """The policy is now at `version`; called after each update."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-able position in the data, kept with a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""

    async def close(self) -> None:
        """Stop producing; running episodes are cancelled. Idempotent."""
