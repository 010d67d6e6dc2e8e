"""`python -m viz`: look at the maps in a browser on this machine, or export them."""

import sys
from collections.abc import Callable, Sequence

from pipeline.errors import InputError, mend_of

_Main = Callable[[Sequence[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; without a name, serve until interrupted.

    Returns:
        The exit code: 2 with one line for bad input, 130 when interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = _COMMANDS.get(arguments[0]) if arguments else None
    try:
        return command()(arguments[1:]) if command else _serve()(arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if not (line := mend_of(error)):
            raise
        print(f"error: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


# Each is imported when called: an export needs no server.
def _serve() -> _Main:
    from viz.commands.serve import main

    return main


def _export() -> _Main:
    from viz.commands.export import main

    return main


def _figure() -> _Main:
    from viz.commands.figure import main

    return main


_COMMANDS: dict[str, Callable[[], _Main]] = {"export": _export, "figure": _figure}


if __name__ == "__main__":
    sys.exit(main())
