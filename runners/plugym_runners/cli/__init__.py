"""The `runner` command.

`root` decides what a command line means and turns errors into one line and an exit code; each verb has a module of its
own; `options` reads settings, `settings` describes them, `output` writes answers. Nothing here imports torch, and a
verb imports what it needs when it runs: `runner list` has to be quick.
"""

from plugym_runners.cli.root import main

__all__ = ["main"]
