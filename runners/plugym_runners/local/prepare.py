"""`python -m plugym_runners.local.prepare [smollm2] [tiny]`: put the built-in models into the cache (all by default).

What the cache already holds is left as it is. Progress goes to stderr. Exit codes: 0 done, 2 bad input.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from plugym.errors import PlugymError
from plugym_runners.local.models import BUILT_IN, ensure, resolve_model


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m plugym_runners.local.prepare", description=__doc__)
    parser.add_argument("models", nargs="*", help="default: all of smollm2, tiny")
    names = parser.parse_args(arguments).models or BUILT_IN
    try:
        for name in names:
            started = time.perf_counter()
            path = ensure(resolve_model(name))
            print(f"{name}: {path} ({time.perf_counter() - started:.1f} s)", file=sys.stderr)
    except PlugymError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
