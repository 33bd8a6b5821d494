"""The `local` runner: an embedded torch learner and engine in one process, on a CPU or one GPU."""
