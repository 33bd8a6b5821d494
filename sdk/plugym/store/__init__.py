"""What a run leaves on disk: the records of episodes and the run directory.

`record` holds the written forms (pydantic, schema 1), `groups` the files of them, `rundir` the directory with its
metrics and checkpoints, `resume` where an interrupted run goes on, `atomic` how files are written so that no reader
ever sees half of one, `sealed` how damage to a checkpoint is found.
"""

from plugym.store.groups import GroupLog, GroupWriter, read_groups
from plugym.store.record import GroupRecord, TrajectoryRecord
from plugym.store.resume import ResumePoint, find_resume_point, rewind
from plugym.store.rundir import MetricsLog, RunDir

__all__ = [
    "GroupLog",
    "GroupRecord",
    "GroupWriter",
    "MetricsLog",
    "ResumePoint",
    "RunDir",
    "TrajectoryRecord",
    "find_resume_point",
    "read_groups",
    "rewind",
]
