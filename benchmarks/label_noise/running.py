"""Phase (a): the project's own stages on the folder of every case.

A stage that has finished is not run again, and training goes on from the stage's own checkpoints.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.label_noise.cases import Case, Images, cases_of, labels_of, load_images_and_truth
from benchmarks.label_noise.folders import case_params, is_made, make_folder
from benchmarks.label_noise.planning import Plan, make_plan
from pipeline.artifacts.arrays import open_array
from pipeline.artifacts.prepared import load_prepared
from pipeline.commands.recursion.first_round import STAGES
from pipeline.commands.recursion.processes import StageProcesses
from pipeline.config.params import Params, check_params, load_params
from pipeline.paths import DataPaths, WorkPaths

_REFERENCE = Case(kind="reference")


def run_cases(arguments: argparse.Namespace) -> list[Case]:
    """Everything that scorers read of each case, in its folder in `--work`.

    Raises:
        InputError: arguments, parameters or files that do not go together.
        StageFailedError: a stage did, and has said why.
    """
    params = load_params(arguments.params)
    images = load_images_and_truth(
        arguments, load_prepared(DataPaths(root=arguments.data), folder=params.prepare.folder)
    )
    cases = list(cases_of(arguments, images))
    for case in cases:
        # Before anything is trained: a fitted head suits fewer parameters than a network does.
        weights = None if case.variant == "scratch" else arguments.weights
        check_params(case_params(params, case, steps=1, weights=weights), source=f"--params for {case.name}")
    plan = make_plan(arguments, params, images, cases)
    for case in cases:
        probabilities = _reference(arguments, params, plan, images) if case.kind == "instance" else None
        labels = labels_of(case, images, seed=arguments.seed, probabilities=probabilities)
        steps = plan.steps(case.folds) if case.has_budget else None
        weights = None if case.variant == "scratch" else arguments.weights
        _run_case(arguments.work, params, plan, images, case, labels=labels, steps=steps, weights=weights)
    return cases


def _reference(arguments: argparse.Namespace, params: Params, plan: Plan, images: Images) -> NDArray[np.float32]:
    """(N, K) of a network trained on the true labels for a fifth of the steps; noise by instance follows it."""
    steps = math.ceil(plan.steps(1) / 5)
    _run_case(
        arguments.work,
        params,
        plan,
        images,
        _REFERENCE,
        labels=images.truth,
        steps=steps,
        weights=None,
        stages=("finetune", "extract"),
    )
    file = DataPaths(root=arguments.work / _REFERENCE.name / "data").probabilities(params.networks[0])
    return open_array(file, dtype=np.float32, ndim=2, rows=len(images.truth))


def _run_case(
    work: Path,
    params: Params,
    plan: Plan,
    images: Images,
    case: Case,
    *,
    labels: NDArray[np.int64],
    steps: int | None,
    weights: Path | None,
    stages: Sequence[str] = STAGES,
) -> None:
    """Make the folder of a case unless it is there, and run what is not finished of `stages` in it."""
    folder, own = work / case.name, case_params(params, case, steps=steps, weights=weights)
    if not is_made(folder, case, own, weights):
        make_folder(
            folder,
            case,
            plan.base,
            labels=labels,
            truth=images.truth,
            class_names=images.class_names,
            params=own,
            weights=weights,
        )
    data, network = DataPaths(root=folder / "data"), params.networks[0]
    processes = StageProcesses(network)
    with processes.heeding_signals():
        for stage in stages:
            # A stage writes its provenance last.
            if not data.provenance(stage, network).exists():
                print(f"{case.name}: {stage}", flush=True)
                processes.run(stage, folder / "params.yaml", data, WorkPaths(root=folder / "work"))
