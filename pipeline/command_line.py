"""Run a command: exit codes, user errors as one line, and whether its folder is a clone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from pipeline.environment import missing_module_hint, unsupported_python_hint
from pipeline.errors import InputError, fix_hint


def run_command(module: str, argv: Sequence[str]) -> int:
    """Import a command and run it.

    Args:
        module: name of a module with `main(argv) -> exit code`. It is imported here, since doctor must start on a
            broken installation.
        argv: arguments of the command.

    Returns:
        The command's exit code; 2 with one line for bad input or a Python that lacks a requirement; 130 after SIGINT.
    """
    if line := unsupported_python_hint():
        return _print_error(line)
    from pipeline.processes import freeze_imported_objects  # which an older Python cannot read

    try:
        command = import_module(module)
        freeze_imported_objects()
        code: int = command.main(argv)
    except InputError as error:
        return _print_error(str(error))
    except ModuleNotFoundError as error:
        if not (line := missing_module_hint(error.name)):
            raise
        return _print_error(line)
    except Exception as error:
        # Errors of memory and files have many classes; `fix_hint` recognizes them, and all others are raised again.
        if not (line := fix_hint(error)):
            raise
        return _print_error(line)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return code


def is_clone(folder: Path) -> bool:
    """Return whether the folder has the code of the repository, as a project outside a clone does not."""
    return (folder / "pyproject.toml").is_file() and (folder / "pipeline" / "stages").is_dir()


def _print_error(line: str) -> int:
    print(f"error: {line}", file=sys.stderr)
    return 2
