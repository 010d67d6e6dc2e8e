"""Check that this Python can run the project; if not, print one line with the fix.

Every entry point imports this module first. It needs only the standard library and parses on Python 3.8.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

# Equal to requires-python in pyproject.toml, which an older Python has no module to read.
MINIMUM_PYTHON = (3, 11)

# The modules of [project] dependencies in pyproject.toml; a test keeps the two equal.
REQUIRED_MODULES = (
    "huggingface_hub",
    "numpy",
    "packaging",
    "PIL",
    "pyarrow",
    "pydantic",
    "pynvml",
    "ruamel.yaml",
    "safetensors",
    "scipy",
    "sklearn",
    "timm",
    "torch",
    "torchvision",
    "tqdm",
)
# What these stages import in addition when they start, of the extra `stages`.
STAGE_MODULES = {
    "filter": ("faiss",),
    "reduce": ("openTSNE", "faiss"),
    "report": ("jinja2", "matplotlib", "plotly"),
}
_OWN = ("batchsieve", "pipeline", "viz", "benchmarks")


def exit_if_unsupported(stage: str = "") -> None:
    """Exit with code 2 and one line if this Python is too old or lacks a requirement.

    Args:
        stage: name of the stage that starts, whose additional requirements count too.
    """
    modules = (*REQUIRED_MODULES, *STAGE_MODULES.get(stage, ()))
    line = unsupported_python_hint() or next(
        (missing_module_hint(name) for name in modules if not _is_installed(name)), None
    )
    if line:
        print(f"error: {line}", file=sys.stderr)
        sys.exit(2)


def unsupported_python_hint() -> str | None:
    """Return one line with the fix for a Python below the minimum; None otherwise."""
    if sys.version_info >= MINIMUM_PYTHON:
        return None
    running, minimum = (".".join(map(str, version)) for version in (sys.version_info[:3], MINIMUM_PYTHON))
    return f"{sys.executable} is Python {running}, and {minimum} or newer is needed; {_fix()}"


def missing_module_hint(module: str | None) -> str | None:
    """Return one line with the fix for a library that is not installed; None for modules of the project or of Python.

    Args:
        module: `name` of a ModuleNotFoundError.
    """
    library = (module or "").split(".")[0]
    if not library or library in _OWN or library in sys.stdlib_module_names:
        return None
    return f"{sys.executable} has no module {module}; {_fix()}"


def is_clone(folder: Path) -> bool:
    """Return whether the folder has the code of the repository, as a project outside a clone does not."""
    return (folder / "pyproject.toml").is_file() and (folder / "pipeline" / "stages").is_dir()


def install_hint(extras: str) -> str:
    """Return the command that installs extras of the package, such as `stages,viz`, from a clone or elsewhere."""
    return f"pip install -e '.[{extras}]'" if is_clone(Path.cwd()) else f"pip install 'batchsieve[{extras}]'"


def _fix() -> str:
    """Return the commands that lead to a Python with all requirements."""
    here = Path.cwd()
    venv = here / ".venv"
    # Compare prefixes: .venv/bin/python may be a link to the Python that runs.
    if (venv / "bin" / "activate").is_file() and Path(sys.prefix).resolve() != venv.resolve():
        fix = "activate the environment (. .venv/bin/activate) and run the command again"
    elif not is_clone(here):
        fix = f"install the requirements ({install_hint('stages,viz')}) and try again"
    else:
        fix = "install the requirements (make setup), activate the environment (. .venv/bin/activate) and try again"
    # DVC removes a stage's outputs before it starts the stage; they stay in its cache.
    return f"{fix}; `dvc checkout` restores the outputs that DVC has removed" if "DVC_ROOT" in os.environ else fix


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing
        return False
