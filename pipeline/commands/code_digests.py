"""`python -m pipeline code-digests`: write a digest of each stage's code, on which stages outside a clone depend.

A digest covers the modules that the stage can import, without docstrings and comments. It does not cover libraries.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from pipeline.artifacts.files import write_text
from pipeline.artifacts.provenance import code_digest
from pipeline.commands import command_parser

CODE_FOLDER = "data/code"
"""A digest of each stage's code, in a file of its name."""

STAGES = ("prepare", "finetune", "extract", "reduce", "filter", "train", "report")
"""All stages, in order."""

_HEAD = """\
# The pipeline of batchsieve. `dvc repro` runs a stage again after a change of its parameters, its inputs or its
# installed code.

stages:
  # Writes a digest of each stage's installed code; it takes a second or two, and DVC runs it every time.
  code:
    cmd: python -m pipeline code-digests
    always_changed: true
    outs:
"""


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


def project_dvc_yaml(text: str) -> str:
    """Return the dvc.yaml of a project, from that of the repository.

    Args:
        text: with the files of the code as dependencies.
    """
    _, _, stages = text.partition("stages:\n")
    assert stages, "dvc.yaml of the repository has its stages elsewhere"
    lines = [_HEAD.rstrip("\n"), *(f"      - {CODE_FOLDER}/{stage}" for stage in STAGES), ""]
    stage = ""
    for line in stages.splitlines():
        if match := re.fullmatch(r"  (\w+):", line):
            stage = match[1]
        if re.fullmatch(r" +- pipeline/\S+", line):
            continue
        lines.append(line)
        if match := re.fullmatch(r"( +)deps:", line):
            lines.append(f"{match[1]}  - {CODE_FOLDER}/{stage}")
    return "\n".join(lines) + "\n"
