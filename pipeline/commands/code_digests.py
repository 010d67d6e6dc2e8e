"""`python -m pipeline code-digests`: write a digest of each stage's code, on which stages outside a clone depend.

A digest covers the modules that the stage can import, without docstrings and comments. It does not cover libraries.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.artifacts.files import write_text
from pipeline.artifacts.provenance import code_digest
from pipeline.commands import command_parser
from pipeline.commands.init.project import CODE_FOLDER, STAGES


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("code-digests", __doc__)
    parser.add_argument("--out", type=Path, default=Path(CODE_FOLDER), help=f"folder (default: {CODE_FOLDER})")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write a file for each stage.

    Returns:
        0.
    """
    out: Path = make_parser().parse_args(argv).out
    for stage in STAGES:
        write_text(out / stage, f"{code_digest(f'pipeline.stages.{stage}')}\n")
    return 0
