"""The `runner` command, the runners that train, their engines, hooks and recipes."""
