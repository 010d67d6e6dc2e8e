"""`python -m pipeline validate`: check what people write by hand before anything runs."""

import argparse
from collections.abc import Sequence
from math import prod
from pathlib import Path

from pipeline.artifacts.overrides import read_overrides
from pipeline.commands import command_parser
from pipeline.config.params import Params, load_params
from pipeline.config.study import Study
from pipeline.errors import InputError
from pipeline.paths import DataPaths


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    return command_parser("validate", __doc__, "params", "data")


def main(argv: Sequence[str]) -> int:
    """Check the parameter file, and the form of the overrides; `filter` looks for their images.

    What depends on the number of images, such as a warm-up in epochs against a budget in steps, `plan` checks.

    Raises InputError naming the first problem.
    """
    arguments = make_parser().parse_args(argv)
    path: Path = arguments.params
    params = load_params(path)
    _check_needs(params, path)
    read_overrides(DataPaths(root=arguments.data).overrides)
    networks, studies = len(params.networks), len(params.studies)
    cells = sum(map(count_runs, params.studies.values()))
    print(f"{path}: valid; networks: {networks}, studies: {studies}, cells: {cells}")
    return 0


def _check_needs(params: Params, path: Path) -> None:
    """Report a study without `needs`, at which DVC would stop with another message."""
    for name, study in params.studies.items():
        if study.needs is None:
            raise InputError(f"{path}: studies.{name}.needs: missing; add `needs: {study.possible_needs[0]}`")


def count_runs(study: Study) -> int:
    """Training runs of a study's grid, those too large for the data included."""
    axes = (study.models, study.arms, study.batch_sizes, study.learning_rates, study.weight_decays, study.seeds)
    return prod(map(len, axes))
