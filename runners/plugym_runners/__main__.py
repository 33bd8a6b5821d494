"""`python -m plugym_runners`: the `runner` command."""

from plugym_runners.cli import main

main()
