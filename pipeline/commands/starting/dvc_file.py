"""dvc.yaml of a project outside a clone: stages depend on digests of the installed code, not on its files."""

import re

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
