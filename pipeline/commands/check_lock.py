"""`python -m pipeline check-lock`: say whether stages gave other results than those committed, from equal inputs.

It compares dvc.lock with that of the last commit. Where a stage has the same command, parameters, code and data and
other outputs, the difference is rounding: of another kind of processor or GPU, or of other versions of libraries. What
was changed on purpose, and what follows from it, is not mentioned.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.commands import command_parser
from pipeline.commands.checks.dvc_files import committed_lock, is_readable_lock
from pipeline.errors import InputError

# It has no results of its own, and shows what `landscape` measured, which is no dependency.
_REPORT_STAGE = "report"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    return command_parser("check-lock", __doc__)


def main(argv: Sequence[str]) -> int:
    """Print one line where results differ for no reason in the repository.

    Returns:
        0.

    Raises:
        InputError: a dvc.lock is cut short, here or in the last commit.
    """
    make_parser().parse_args(argv)
    lock = Path("dvc.lock")
    committed = committed_lock(Path.cwd())
    current = lock.read_bytes() if lock.exists() else None
    if committed is None or current is None or current == committed:
        return 0
    # Cut short at the end of a line it is sound YAML of other results.
    if not is_readable_lock(lock):
        raise InputError(f"{lock}: cut short; run `python -m pipeline repair`")
    reader = YAML(typ="safe")
    try:
        before = reader.load(committed)
    except YAMLError:
        raise InputError(f"{lock} of the last commit: cut short; run `dvc repro` and commit it") from None
    stages = stages_that_differ(before or {}, reader.load(current) or {})
    if stages:
        print(
            f"results differ from the last commit by rounding, first in {', '.join(stages)}: the inputs are equal, "
            "the processor, GPU or a library is another. To keep the results: git commit dvc.lock. "
            "To discard the change: git checkout HEAD dvc.lock"
        )
    return 0


def stages_that_differ(committed: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Stages that have equal inputs and other outputs in two contents of dvc.lock; not those that follow from them."""
    before, now = committed.get("stages", {}), current.get("stages", {})
    return [
        name
        for name, entry in now.items()
        if name != _REPORT_STAGE
        and name in before
        and _inputs(entry) == _inputs(before[name])
        and entry != before[name]
    ]


def _inputs(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Command, dependencies with their hashes, and parameters."""
    return {key: value for key, value in entry.items() if key != "outs"}
