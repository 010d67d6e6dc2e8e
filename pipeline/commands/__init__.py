"""Commands, one module or package each, with `make_parser()` and `main(argv) -> exit code`.

They share options, and the files of the repository that come with the package.
"""

import argparse
import math
from pathlib import Path

from pipeline import command_line
from pipeline.errors import InputError

_FOLDERS = {
    "params": ("params.yaml", "parameter file"),
    "data": ("data", "folder of the stages' outputs"),
    "work": (".work", "folder of logs, checkpoints and finished runs"),
}

# setup.py copies them into the wheel; in a checkout, and in an editable installation, they are at its root.
_IN_WHEEL = Path(__file__).with_name("project")
_CHECKOUT = Path(__file__).resolve().parents[2]


def command_parser(name: str, description: str | None, *folders: str) -> argparse.ArgumentParser:
    """Return the parser of a command, to which the command adds options.

    Args:
        name: of the command.
        description: docstring of its module, shown with the name by which the command was called.
        folders: names of the options to add: `params`, `data`, `work`.
    """
    return command_line.command_parser("pipeline", name, description, folder_options(*folders))


def folder_options(*names: str) -> argparse.ArgumentParser:
    """Return a parent parser with some of `--params`, `--data` and `--work`."""
    parent = argparse.ArgumentParser(add_help=False)
    for name in names:
        default, purpose = _FOLDERS[name]
        parent.add_argument(f"--{name}", type=Path, default=Path(default), help=f"{purpose} (default: {default})")
    return parent


def positive_float(text: str) -> float:
    """Parse a finite number above 0, as `type` of an option."""
    if not 0 < (value := float_or_nan(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def float_or_nan(text: str) -> float:
    """Parse a number; NaN, which no range has, for other text: on an error argparse prints the name of the parser."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_minimums(arguments: argparse.Namespace, **minimums: int) -> None:
    """Check that options which are given are not too small.

    Raises:
        InputError: one is.
    """
    for key, minimum in minimums.items():
        value = getattr(arguments, key)
        if value is not None and value < minimum:
            raise InputError(f"--{key.replace('_', '-')} {value}: too small; give {minimum} or more")


def packaged_path(name: str) -> Path:
    """Return the file or folder `name`, such as `presets` or `dvc.yaml`, of the installed package or the checkout."""
    return (_IN_WHEEL if _IN_WHEEL.is_dir() else _CHECKOUT) / name


def is_pipeline(folder: Path) -> bool:
    """Return whether the folder has a dvc.yaml with the stages of this pipeline: a clone, or after `init`."""
    path = folder / "dvc.yaml"
    return path.is_file() and "-m pipeline.stages.prepare" in path.read_text(encoding="utf-8", errors="replace")


def folder_here_or_packaged(name: str) -> Path:
    """Return the folder `name` of the working folder; where it has no YAML file, that of the package."""
    here = Path(name)
    return here if any(here.glob("*.yaml")) else packaged_path(name)
