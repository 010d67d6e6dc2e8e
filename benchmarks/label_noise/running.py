"""Phase (a): run the stages on each case. And both phases together."""

import argparse
from dataclasses import replace
from importlib import metadata
from typing import Any

from benchmarks.label_noise.case_folders import CaseFolders
from benchmarks.label_noise.case_images import make_case_images
from benchmarks.label_noise.cases import CLEAN, Case, iter_cases, load_images_and_truth
from benchmarks.label_noise.choices import check_names, select_scorers
from benchmarks.label_noise.planning import make_plan
from benchmarks.label_noise.scoring import score_case
from benchmarks.label_noise.two_networks import run_averaged, run_two_rounds
from pipeline.artifacts.prepared import load_prepared
from pipeline.commands.iterate.rounds import STAGES
from pipeline.config.params import load_params
from pipeline.paths import DataPaths

PREDICTING = STAGES[:2]
"""The stages that give probabilities and the record of training."""


def run_cases(arguments: argparse.Namespace) -> list[Case]:
    """Make the inputs of the scorers for each case, in its folder in `--work`.

    Raises:
        InputError: arguments, parameters or files contradict each other.
        StageFailedError: a stage failed; it has printed the reason.
    """
    params = load_params(arguments.params)
    images = load_images_and_truth(
        arguments, load_prepared(DataPaths(root=arguments.data), folder=params.prepare.folder)
    )
    cases = list(iter_cases(arguments, images))
    folders = CaseFolders(work=arguments.work, params=params, plan=None, weights=arguments.weights)
    for case in cases:
        folders.check(case)
    plan = make_plan(arguments, params, images, cases)
    folders = replace(folders, plan=plan)
    for case in cases:
        stages = PREDICTING if arguments.predictions_only or case.kind == CLEAN else STAGES
        given = make_case_images(arguments, case, images, plan.base)
        if case.variant == "two_rounds":
            run_two_rounds(folders, case, given, stages)
        elif case.variant == "averaged":
            run_averaged(folders, case, given, stages)
        else:
            folders.run(folders.make(case, given), stages)
    return cases


def run_and_score(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train and score all cases; returns what `score_case` does of each.

    Raises:
        InputError: arguments, parameters or files contradict each other.
        StageFailedError: a stage failed; it has printed the reason.
    """
    n_neighbors, frozen = load_params(arguments.params).reduce.n_neighbors, "frozen" in arguments.variants
    only = arguments.predictions_only
    names = select_scorers(arguments.scorers, frozen=frozen, predictions_only=only)
    check_names(names, arguments.default, n_neighbors=n_neighbors, frozen=frozen, predictions_only=only)
    results = []
    for case in run_cases(arguments):
        names = select_scorers(arguments.scorers, frozen=case.variant == "frozen", predictions_only=only)
        names = () if case.kind == CLEAN else names
        folder = arguments.work / case.name
        results.append(score_case(folder, names, default=arguments.default, resamples=arguments.resamples))
    return results


def versions() -> dict[str, Any]:
    """Return the versions of the packages that decide a result."""
    packages = ("numpy", "scikit-learn", "torch")
    return {package: metadata.version(package) for package in packages}
