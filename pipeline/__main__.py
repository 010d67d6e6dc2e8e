"""`python -m pipeline <command>`: run a command of the pipeline. `batchsieve` has the same commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.command_line import run_command

COMMANDS = {
    "calibrate": "find the DBSCAN settings that best detect planted label noise",
    "canonical-runs": "check that the training code computes what its listed versions compute",
    "check-lock": "compare results with the last commit and report rounding differences",
    "code-digests": "write digests of the stages' code, which dvc.yaml of a project outside a clone depends on",
    "compare": "compare two experiments with paired tests",
    "critical-batch": "measure the critical batch size by branched runs",
    "diagnose": "find the bottleneck of training steps: compute, communication, input or synchronization",
    "doctor": "check the installation, repair DVC's files, and print a fix for each mismatch",
    "export": "write kept and dropped images as Parquet, metadata.csv, indices and cleanlab's columns",
    "filter-features": "run the filter on features of any network",
    "init": "look at a folder of images and start a project for it",
    "iterate": "repeat: filter, retrain the extractor on the kept images, filter again",
    "landscape": "measure the curvature of the loss around trained weights",
    "main-effects": "estimate the effect of each choice from studies of a factorial experiment",
    "noise-scale": "compare the gradient noise of full and filtered images at equal weights",
    "plan": "preview stages, runs, time, memory and disk",
    "preset": "write params.yaml from presets/",
    "repair": "repair dvc.lock and DVC's lock file after DVC was killed",
    "runs": "import runs from another machine, or pack them for the report",
    "same": "tell whether two runs are equal in every bit, or at which step they first differ",
    "schema": "write the JSON schema of params.yaml for editors",
    "simulate": "predict the speedup of more GPUs by a model of data-parallel steps",
    "tune": "search for the settings of a study that train best",
    "validate": "check params.yaml and data/overrides.csv",
    "verify": "derive a report again from its ledger, and audit runs by training them again",
}
"""Command -> purpose. Each is a module of pipeline.commands, or `command` of a package, with `main(argv) -> code`."""


def module_of(command: str) -> str:
    """Return the name of a command's module: `plan.command` where `plan` is a package.

    Looks at files instead of importing `pipeline.commands`, which a Python older than 3.11 cannot import.
    """
    name = command.replace("-", "_")
    is_package = (Path(__file__).parent / "commands" / name / "command.py").is_file()
    return f"pipeline.commands.{name}.command" if is_package else f"pipeline.commands.{name}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns an exit code as `run_command`."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n" + "\n".join(f"  {name:15} {purpose}" for name, purpose in COMMANDS.items()),
    )
    parser.add_argument("command", choices=COMMANDS, metavar="command", help="one of the commands below")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the command; --help lists them"
    )
    arguments = parser.parse_args(argv)
    return run_command(module_of(arguments.command), arguments.arguments)


if __name__ == "__main__":
    sys.exit(main())
