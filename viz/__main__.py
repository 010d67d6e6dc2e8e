"""`python -m viz`: show the embeddings in a browser, or export them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipeline.command_line import run_command

COMMANDS = {"export": "viz.commands.export", "figure": "viz.commands.figure"}
"""Command -> module, imported when called: an export needs no server."""

SERVE = "viz.commands.serve"
"""Module that runs without a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, or serve until interrupted if there is none. Return the exit code of `run_command`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = COMMANDS.get(arguments[0]) if arguments else None
    return run_command(command or SERVE, arguments[1:] if command else arguments)


if __name__ == "__main__":
    sys.exit(main())
