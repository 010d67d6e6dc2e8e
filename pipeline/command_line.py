"""Run a command: exit codes, user errors as one line, and whether its folder is a clone."""

from __future__ import annotations

import argparse
import io
import os
import select
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from pipeline.environment import missing_module_hint, unsupported_python_hint
from pipeline.errors import InputError, fix_hint


def program_name(package: str) -> str:
    """Return how the user called the program: `batchsieve`, or `python -m` and the package."""
    return "batchsieve" if Path(sys.argv[0]).name == "batchsieve" else f"python -m {package}"


def command_parser(
    package: str, name: str, description: str | None, options: argparse.ArgumentParser, epilog: str | None = None
) -> argparse.ArgumentParser:
    """Return the parser of a command, to which the command adds options.

    Args:
        package: whose command it is; `python -m viz` without a name is the command `viz`.
        name: of the command.
        description: docstring of its module, shown with the name by which the command was called.
        options: parent parser.
        epilog: text after the options.
    """
    program = program_name(package)
    called = program if program.endswith(f" {name}") else f"{program} {name}"
    return argparse.ArgumentParser(
        prog=called,
        description=description and description.replace(f"python -m {package}", called if name == package else program),
        epilog=epilog,
        parents=[options],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run_command(module: str, argv: Sequence[str]) -> int:
    """Import a command and run it.

    Args:
        module: name of a module with `main(argv) -> exit code`. It is imported here, since doctor must start on a
            broken installation.
        argv: arguments of the command.

    Returns:
        The command's exit code; 2 with one line for bad input or a Python that lacks a requirement; 130 after SIGINT;
        141 if the reader of standard output has gone, such as `head`.
    """
    if line := unsupported_python_hint():
        return _print_error(line)
    from pipeline.processes import freeze_imported_objects  # which an older Python cannot read

    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path may have letters that the terminal has not, or bytes that are no text.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        command = import_module(module)
        freeze_imported_objects()
        code: int = command.main(argv)
        _flush()
    except InputError as error:
        return _print_error(str(error))
    except ModuleNotFoundError as error:
        if not (line := missing_module_hint(error.name)):
            raise
        return _print_error(line)
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        return 128 + signal.SIGPIPE
    except Exception as error:
        # Errors of memory and files have many classes; `fix_hint` recognizes them, and all others are raised again.
        if not (line := fix_hint(error)):
            raise
        return _print_error(line)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return code


def _print_error(line: str) -> int:
    print(f"error: {line}", file=sys.stderr)
    return 2


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _is_output_closed() -> bool:
    """Return whether nobody reads standard output any more, and discard what was to be written."""
    try:
        output = sys.stdout.fileno()
    except (AttributeError, OSError):  # there is none, or a library collects it
        return False
    poll = select.poll()
    poll.register(output, 0)
    if not poll.poll(0):
        return False
    # Python writes it again when it ends, and would report the pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True
