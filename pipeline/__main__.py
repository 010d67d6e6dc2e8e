"""`python -m pipeline <command>`: what a person calls beside DVC."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from pipeline.environment import too_old, why_missing
from pipeline.errors import InputError, mend_of

# Each is a module of pipeline.commands with `main(argv) -> exit code`, imported when called:
# doctor must start on an installation where nothing else does.
_COMMANDS = {
    "calibrate": "find the map, space, min_samples and eps with which DBSCAN finds planted noise best",
    "canonical-runs": "say whether the training code computes what listed versions of it compute",
    "check-lock": "say whether results differ from the last commit by rounding",
    "compare": "say what one experiment changed against another, with paired tests",
    "diagnose": "say what bounds a study's training steps: compute, communication, input or synchronisation",
    "doctor": "name every mismatch of the installation, with its repair",
    "filter-features": "run the filter on features made elsewhere",
    "landscape": "measure how curved the loss is around the weights of a study's networks",
    "plan": "say which stages and cells would run, with time, memory and disk",
    "preset": "write params.yaml from presets/",
    "recurse": "filter, train the extractor again on what is left, filter again",
    "repair": "repair dvc.lock and DVC's lock file after DVC was killed",
    "runs": "bring in cells that were trained elsewhere",
    "schema": "write the JSON schema of params.yaml for editors",
    "simulate": "say what more GPUs would bring, by a model of data-parallel steps",
    "tune": "search for the settings of a study that train best",
    "validate": "check params.yaml",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        Its exit code; 2 with one line for bad input or a Python that lacks a requirement, 130 when interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="python -m pipeline",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n" + "\n".join(f"  {name:15} {purpose}" for name, purpose in _COMMANDS.items()),
    )
    parser.add_argument("command", choices=_COMMANDS, metavar="command", help="one of those below")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="the command's own; --help lists them"
    )
    if line := too_old():
        print(f"error: {line}", file=sys.stderr)
        return 2
    chosen = parser.parse_args(argv)
    try:
        code: int = import_module(f"pipeline.commands.{chosen.command.replace('-', '_')}").main(chosen.arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if not (line := why_missing(error.name)):
            raise
        print(f"error: {line}", file=sys.stderr)
        return 2
    except Exception as error:
        if not (line := mend_of(error)):
            raise
        print(f"error: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
