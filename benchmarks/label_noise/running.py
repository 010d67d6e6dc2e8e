"""Phase (a): run the stages on the folder of every case.

A finished stage does not run again, and training resumes from the checkpoints of its stage.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.label_noise.cases import Case, Images, iter_cases, load_images_and_truth, make_labels
from benchmarks.label_noise.folders import case_params, is_complete, make_folder
from benchmarks.label_noise.planning import CasePlan, make_plan
from pipeline.artifacts.prepared import load_prepared
from pipeline.commands.iteration.processes import StageProcesses
from pipeline.commands.iteration.rounds import STAGES
from pipeline.config.params import Params, check_params, load_params
from pipeline.paths import DataPaths, WorkPaths


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
    for case in cases:
        # Check before training: a frozen extractor allows fewer parameters than a trained one.
        weights = None if case.variant == "scratch" else arguments.weights
        check_params(case_params(params, case, steps=1, weights=weights), source=f"--params for {case.name}")
    plan = make_plan(arguments, params, images, cases)
    for case in cases:
        labels = make_labels(case, images, seed=arguments.seed)
        steps = plan.steps(case.folds) if case.has_budget else None
        weights = None if case.variant == "scratch" else arguments.weights
        _run_case(arguments.work, params, plan, images, case, labels=labels, steps=steps, weights=weights)
    return cases


def _run_case(
    work: Path,
    params: Params,
    plan: CasePlan,
    images: Images,
    case: Case,
    *,
    labels: NDArray[np.int64],
    steps: int | None,
    weights: Path | None,
) -> None:
    """Make the folder of a case unless it exists, and run its unfinished stages."""
    folder, tree = work / case.name, case_params(params, case, steps=steps, weights=weights)
    if not is_complete(folder, case, tree, weights):
        make_folder(
            folder,
            case,
            plan.base,
            labels=labels,
            truth=images.truth,
            class_names=images.class_names,
            params=tree,
            weights=weights,
        )
    data, network = DataPaths(root=folder / "data"), params.networks[0]
    processes = StageProcesses(network)
    with processes.forwarding_signals():
        for stage in STAGES:
            # A stage writes its provenance last.
            if not data.provenance(stage, network).exists():
                print(f"{case.name}: {stage}", flush=True)
                processes.run(stage, folder / "params.yaml", data, WorkPaths(root=folder / "work"))
