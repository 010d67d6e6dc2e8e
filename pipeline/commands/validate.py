"""`python -m pipeline validate`: check the whole of a parameter file before anything runs."""

import argparse
from collections.abc import Sequence
from math import prod
from pathlib import Path

from pipeline.config.params import load_params
from pipeline.config.study import Study


def main(argv: Sequence[str]) -> int:
    """Raises InputError naming the first problem."""
    parser = argparse.ArgumentParser(prog="python -m pipeline validate", description=__doc__)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file")
    path: Path = parser.parse_args(argv).params
    params = load_params(path)
    networks, studies = len(params.networks), len(params.studies)
    cells = sum(map(count_cells, params.studies.values()))
    print(f"{path}: valid; networks: {networks}, studies: {studies}, cells: {cells}")
    return 0


def count_cells(study: Study) -> int:
    """Training runs of a study's grid, those too large for the data included."""
    axes = (study.models, study.arms, study.batch_sizes, study.learning_rates, study.weight_decays, study.seeds)
    return prod(map(len, axes))
