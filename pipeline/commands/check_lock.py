"""`python -m pipeline check-lock`: report stages whose results differ from the committed ones, for equal inputs.

Compares dvc.lock with that of the last commit. A stage with equal command, parameters, code and data but other outputs
differs by rounding: of another kind of processor or GPU, or of other versions of libraries. Stages with changed inputs
are not reported.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipeline.commands import command_parser
from pipeline.commands.repair import committed_lock, is_readable_lock
from pipeline.errors import InputError

# The report computes no results. It shows those of `landscape`, which is not a dependency.
_REPORT_STAGE = "report"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    return command_parser("check-lock", __doc__)


def main(argv: Sequence[str]) -> int:
    """Print one line if results differ although the inputs are equal.

    Returns:
        0.

    Raises:
        InputError: dvc.lock is cut short, here or in the last commit.
    """
    make_parser().parse_args(argv)
    lock = Path("dvc.lock")
    committed = committed_lock(Path.cwd())
    current = lock.read_bytes() if lock.exists() else None
    if committed is None or current is None or current == committed:
        return 0
    # A file that is cut short at the end of a line is valid YAML with other results.
    if not is_readable_lock(lock):
        raise InputError(f"{lock}: cut short; run `python -m pipeline repair`")
    stages = stages_that_differ(
        parse_lock(committed, source=f"{lock} of the last commit"), parse_lock(current, source=str(lock))
    )
    if stages:
        print(
            f"results differ from the last commit by rounding, first in {', '.join(stages)}: the inputs are equal, "
            "the processor, GPU or a library differs. To keep the results: git commit dvc.lock. "
            "To discard the change: git checkout HEAD dvc.lock"
        )
    return 0


def parse_lock(content: bytes, *, source: str) -> Mapping[str, Any]:
    """Return the content of a dvc.lock; errors name `source`.

    Raises:
        InputError: it is damaged.
    """
    try:
        # Not `parse_yaml`: its limits are too low for a thousand stages.
        tree = YAML(typ="safe").load(content) or {}
        stages = tree.get("stages", {})
        entries = stages.values()
    except Exception as error:  # noqa: BLE001 - also errors of date(), of recursion, of a list in place of a mapping
        raise InputError(f"{source}: damaged ({type(error).__name__}); run `dvc repro` and commit it") from None
    if not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{source}: damaged (a stage without keys); run `dvc repro` and commit it")
    return dict(tree)


def stages_that_differ(committed: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return the stages that have equal inputs and other outputs in two contents of dvc.lock."""
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
    """Return command, parameters, and dependencies with their hashes."""
    return {key: value for key, value in entry.items() if key != "outs"}
