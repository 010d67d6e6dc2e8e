"""`python -m viz`: look at the maps in a browser on this machine, or export them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from pipeline.environment import too_old, why_missing
from pipeline.errors import InputError, mend_of

# Each has `main(argv) -> exit code` and is imported when called: an export needs no server.
_COMMANDS = {"export": "viz.commands.export", "figure": "viz.commands.figure"}
_WITHOUT_A_NAME = "viz.commands.serve"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; without a name, serve until interrupted.

    Returns:
        The exit code: 2 with one line for bad input or a Python that lacks a requirement, 130 when interrupted.
    """
    if line := too_old():
        print(f"error: {line}", file=sys.stderr)
        return 2
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = _COMMANDS.get(arguments[0]) if arguments else None
    try:
        code: int = import_module(command or _WITHOUT_A_NAME).main(arguments[1:] if command else arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if not (line := why_missing(error.name)):
            raise
        print(f"error: {line}", file=sys.stderr)
        return 2
    except Exception as error:
        if not (line := mend_of(error)):
            raise
        print(f"error: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
