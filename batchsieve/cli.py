"""The command `batchsieve`: all commands of the pipeline and the visualizer under one name, imported when called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import viz.__main__
from pipeline.__main__ import COMMANDS, module_of
from pipeline.command_line import run_command
from pipeline.environment import is_clone
from pipeline.errors import InputError

GROUPS = {
    "Pipeline": [
        "init",
        "plan",
        "validate",
        "preset",
        "schema",
        "doctor",
        "repair",
        "check-lock",
        "canonical-runs",
        "code-digests",
    ],
    "Images": ["look", "find-issues", "filter-features", "calibrate", "iterate"],
    "Runs": [
        "compare",
        "main-effects",
        "same",
        "runs",
        "verify",
        "tune",
        "diagnose",
        "simulate",
        "landscape",
        "noise-scale",
        "critical-batch",
    ],
    "View": ["viz", "export", "figure"],
    "Shell": ["completion"],
}
"""Every command once, in the order of the help."""

_OWN = {
    "look": ("batchsieve.look_command", "find wrong labels in a folder of images, as one page"),
    "find-issues": ("batchsieve.find_issues_command", "rank suspect labels of arrays in files"),
    "viz": (viz.__main__.SERVE, "explore the embedding in a browser"),
    "export": ("batchsieve.export_command", "write kept and dropped images for other tools, or the visualizer's page"),
    "figure": (viz.__main__.COMMANDS["figure"], "write the embedding as PNG, SVG or PDF"),
    "completion": ("batchsieve.completion", "print a completion script for your shell"),
}


class _Version(argparse.Action):
    """Prints the version of the installed package, which is looked up only for `--version`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"batchsieve {version('batchsieve')}")
        except PackageNotFoundError:
            raise InputError("batchsieve: is not installed here, so its version is unknown; run `make setup`") from None
        parser.exit()


def commands() -> Iterator[tuple[str, str, str]]:
    """Yield name, module and one line of help of every command, in the order of the help."""
    for names in GROUPS.values():
        for name in names:
            yield (name, *_OWN[name]) if name in _OWN else (name, module_of(name), COMMANDS[name])


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `batchsieve`; the command parses the arguments after its name."""
    purposes = {name: purpose for name, _, purpose in commands()}
    groups = [
        f"{title}:\n" + "\n".join(f"  {name:15} {purposes[name]}" for name in names) for title, names in GROUPS.items()
    ]
    runs = "make repro runs" if is_clone(Path()) else "dvc repro runs"
    parser = argparse.ArgumentParser(
        prog="batchsieve",
        usage="batchsieve [-h] [--version] COMMAND ...",
        description="Choose training images by their features, and train on them at any batch size.",
        epilog="\n\n".join([*groups, f"batchsieve COMMAND --help lists the options of a command; {runs} the stages."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", nargs=0, action=_Version, help="print the version and exit")
    parser.add_argument("command", choices=list(purposes), metavar="COMMAND", help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="options of the command")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; exit codes as `run_command`."""
    try:
        chosen = make_parser().parse_args(argv)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    modules = {name: module for name, module, _ in commands()}
    return run_command(modules[chosen.command], chosen.arguments)


def parser_of(module: str) -> argparse.ArgumentParser:
    """Return the parser of a command, by the name of its module."""
    parser: argparse.ArgumentParser = import_module(module).make_parser()
    return parser
