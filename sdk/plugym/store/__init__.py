"""What a run leaves on disk: the records of episodes and the run directory.

`record` holds the written forms (pydantic, schema 1), `groups` the files of them, `rundir` the directory with its
metrics and checkpoints, `atomic` how files are written so that no reader ever sees half of one.
"""

from plugym.store.groups import GroupWriter, read_groups
from plugym.store.record import GroupRecord, TrajectoryRecord
from plugym.store.rundir import MetricsLog, RunDir

__all__ = ["GroupRecord", "GroupWriter", "MetricsLog", "RunDir", "TrajectoryRecord", "read_groups"]
