"""Whether this Python can run the project, and one line that says what to do where it cannot.

Every entry point imports this module first. It needs the standard library alone and parses on Python 3.8.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

# As requires-python in pyproject.toml, which an older Python has no module to read.
MINIMUM_PYTHON = (3, 11)

# The modules of [project] dependencies in pyproject.toml; a test keeps the two equal.
REQUIRED_MODULES = (
    "numpy",
    "packaging",
    "PIL",
    "pyarrow",
    "pydantic",
    "pynvml",
    "ruamel.yaml",
    "scipy",
    "sklearn",
    "timm",
    "torch",
    "torchvision",
    "tqdm",
)
_OWN = ("batchsieve", "pipeline", "viz", "benchmarks")


def exit_if_unsupported() -> None:
    """Exit with code 2 and one line where this Python is too old or lacks a requirement."""
    line = unsupported_python_hint() or next(
        (missing_module_hint(name) for name in REQUIRED_MODULES if not _is_installed(name)), None
    )
    if line:
        print(f"error: {line}", file=sys.stderr)
        sys.exit(2)


def unsupported_python_hint() -> str | None:
    """One line for a Python below the minimum, or None."""
    if sys.version_info >= MINIMUM_PYTHON:
        return None
    found, wanted = (".".join(map(str, version)) for version in (sys.version_info[:3], MINIMUM_PYTHON))
    return f"{sys.executable} is Python {found}, and {wanted} or newer is needed; {_fix()}"


def missing_module_hint(module: str | None) -> str | None:
    """One line for a library that is not installed; None for the project's own modules and those of Python.

    Args:
        module: `name` of a ModuleNotFoundError.
    """
    library = (module or "").split(".")[0]
    if not library or library in _OWN or library in sys.stdlib_module_names:
        return None
    return f"{sys.executable} has no module {module}; {_fix()}"


def _fix() -> str:
    """The command that leads to a Python with all requirements."""
    ours = Path.cwd() / ".venv"
    # By prefix: .venv/bin/python may be a link to the Python that runs.
    if (ours / "bin" / "activate").is_file() and Path(sys.prefix).resolve() != ours.resolve():
        fix = "activate the environment (. .venv/bin/activate) and run the command again"
    else:
        fix = "install the requirements (make setup), activate the environment (. .venv/bin/activate) and try again"
    # DVC removes a stage's outputs before it starts the stage; they stay in its cache.
    return f"{fix}; `dvc checkout` restores the outputs that DVC has removed" if "DVC_ROOT" in os.environ else fix


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False
