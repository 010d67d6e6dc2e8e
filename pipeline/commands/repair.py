"""`python -m pipeline repair`: repair dvc.lock and .dvc/tmp/rwlock after DVC was killed while it wrote them.

Unfinished copies of outputs below data/ are removed. Prints a line for each file. No finished stage is lost.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.commands import command_parser
from pipeline.commands.doctor.dvc_files import repair_dvc_files
from pipeline.errors import InputError
from pipeline.paths import WorkPaths


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    return command_parser("repair", __doc__)


def main(argv: Sequence[str]) -> int:
    """Repair the damaged files.

    Returns:
        0.

    Raises:
        InputError: the working folder is not the project's, or a file is damaged and DVC still runs.
    """
    make_parser().parse_args(argv)
    project = Path.cwd()
    if not (project / "dvc.yaml").is_file():
        raise InputError(f"{project}: not the project's folder; cd to the one with dvc.yaml")
    for repair in repair_dvc_files(project, WorkPaths()):
        print(f"{repair.file}: {repair.done}")
    return 0
