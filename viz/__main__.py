"""`python -m viz`: look at the maps in a browser on this machine, or export them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipeline.command_line import run_command

COMMANDS = {"export": "viz.commands.export", "figure": "viz.commands.figure"}
"""Command -> module. They are imported when called: an export needs no server."""

SERVE = "viz.commands.serve"
"""What runs without a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; without a name, serve until interrupted. Exit codes as `run_command`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = COMMANDS.get(arguments[0]) if arguments else None
    return run_command(command or SERVE, arguments[1:] if command else arguments)


if __name__ == "__main__":
    sys.exit(main())
