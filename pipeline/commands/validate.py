"""`python -m pipeline validate`: check the files that users edit, before a run."""

import argparse
from collections.abc import Sequence
from math import prod
from pathlib import Path

from pipeline.artifacts.overrides import read_overrides
from pipeline.commands import command_parser
from pipeline.config.params import Params, load_params
from pipeline.config.study import Study, TrainConfig
from pipeline.errors import InputError
from pipeline.paths import DataPaths


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    return command_parser("validate", __doc__, "params", "data")


def main(argv: Sequence[str]) -> int:
    """Check the parameter file and the form of the overrides.

    `filter` checks that the images of the overrides exist. `plan` checks what depends on the number of images, such as
    a warm-up in epochs against a budget in steps.

    Returns:
        0.

    Raises:
        InputError: names the first problem.
    """
    arguments = make_parser().parse_args(argv)
    path: Path = arguments.params
    params = load_params(path)
    _check_needs(params, path)
    read_overrides(DataPaths(root=arguments.data).overrides)
    networks, studies = len(params.networks), len(params.studies)
    n_runs = sum(count_runs(study, params.train) for study in params.studies.values())
    print(f"{path}: valid; networks: {networks}, studies: {studies}, runs: {n_runs}")
    return 0


def _check_needs(params: Params, path: Path) -> None:
    """Report a study without `needs`, for which DVC's message would be unclear."""
    for name, study in params.studies.items():
        if study.needs is None:
            raise InputError(f"{path}: studies.{name}.needs: missing; add `needs: {study.possible_needs[0]}`")


def count_runs(study: Study, train: TrainConfig) -> int:
    """Return the number of runs of a study's grid, including those too large for the data."""
    axes = (study.models, study.learning_rates, study.weight_decays, study.seeds)
    smaller = set(study.equivalent_sizes(train).values()) - set(study.batch_sizes)
    return prod(map(len, axes)) * (len(study.arms) * len(study.batch_sizes) + len(smaller))
