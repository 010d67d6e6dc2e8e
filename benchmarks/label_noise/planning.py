"""Decide once how many steps every case trains, from the measured speed."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.label_noise.cases import Case, Images
from benchmarks.label_noise.folders import keeps_schedule, write_subset
from benchmarks.label_noise.own_process import in_own_process
from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.prepared import prepared_digest
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.config.params import Params
from pipeline.errors import InputError
from pipeline.paths import DataPaths

# Keys of `finetune` that each case sets. Cases train by one process, as the speed is measured.
_CASE_KEYS = {"budget", "schedule", "folds", "trainable", "weights", "workers"}


@dataclass(frozen=True, kw_only=True)
class CasePlan:
    """The plan that all cases share.

    Attributes:
        base: the prepared images that take part, with the prepared labels.
        seconds: training time of an extractor, all its networks together.
        step_seconds: seconds per step; None if no case is trained in steps.
    """

    base: DataPaths
    seconds: float
    step_seconds: float | None

    def steps(self, n_networks: int) -> int:
        """Return the number of steps of each of the networks that share the time."""
        assert self.step_seconds is not None
        return max(1, int(self.seconds / n_networks / self.step_seconds))


def make_plan(arguments: argparse.Namespace, params: Params, images: Images, cases: Sequence[Case]) -> CasePlan:
    """Measure the speed, or read it from plan.json in `--work`, which keeps it for all cases and runs.

    Raises:
        InputError: `--work` holds a plan of other data or arguments, or the images are too few.
    """
    file, config = arguments.work / "plan.json", params.finetune
    if config.workers not in ("auto", 1):
        raise InputError(f"finetune.workers: {config.workers}, but speed is measured with one process; set auto or 1")
    identity = _identity(arguments, params, images)
    step_seconds = _stored_speed(file, identity) if file.exists() else None
    all_images = DataPaths(root=arguments.data)
    base = all_images if images.mask.all() else DataPaths(root=arguments.work / "images")
    if not file.exists() and base is not all_images:
        write_subset(all_images, base, images.mask)
    trained = [case for case in cases if case.has_budget]
    given = arguments.seconds_per_step
    if given is not None and step_seconds not in (None, given):
        raise InputError(f"{file}: has a step of {step_seconds:g} s, not {given:g}; choose another --work, or omit "
                         "--seconds-per-step")  # fmt: skip
    step_seconds = given or step_seconds
    if trained and step_seconds is None:
        if config.batch_size > len(images.truth):
            raise InputError(
                f"finetune.batch_size: {config.batch_size} is more than the {len(images.truth)} images; "
                "give more --images"
            )
        # Imported here, since importing torch takes seconds. All other work with torch is in processes of the stages.
        from benchmarks.label_noise.speed import seconds_per_step

        step_seconds, _ = in_own_process(seconds_per_step, params, base.root, arguments.clock)
    write_json(file, {**identity, "seconds_per_step": step_seconds})
    plan = CasePlan(base=base, seconds=arguments.seconds, step_seconds=step_seconds)
    for folds, n_networks in sorted({(case.folds, case.n_networks) for case in trained}):
        n_images = len(images.truth) * (folds - 1) / folds if folds > 1 else len(images.truth)
        print(_format_plan(plan, n_networks, config.batch_size, n_images), flush=True)
    return plan


def _format_plan(plan: CasePlan, n_networks: int, batch_size: int, n_images: float) -> str:
    steps = plan.steps(n_networks)
    return (
        f"plan: {plan.step_seconds:.4f} s per step of {batch_size} images; {plan.seconds:g} s in {n_networks} "
        f"{'network' if n_networks == 1 else 'networks'} give {steps} steps each, "
        f"{steps * batch_size / n_images:.2f} epochs"
    )


def _identity(arguments: argparse.Namespace, params: Params, images: Images) -> dict[str, Any]:
    """Return what the folders of all cases share; their kinds, rates, variants and folds are in their names."""
    files: dict[str, Path | None] = {key: getattr(arguments, key) for key in ("labels", "truth")}
    excluded = _CASE_KEYS - ({"schedule"} if keeps_schedule(params) else set())
    identity = {
        "data": prepared_digest(DataPaths(root=arguments.data)),
        **{key: sha256_of_file(file) if file else None for key, file in files.items()},
        "images": int(np.count_nonzero(images.mask)),
        "seconds": arguments.seconds,
        "seed": arguments.seed,
        "network": params.networks[0],
        # Plans of earlier versions are of the default clock.
        **({"clock": arguments.clock} if arguments.clock != "wall" else {}),
        "finetune": params.finetune.model_dump(mode="json", exclude=excluded),
        **{section: getattr(params, section).model_dump(mode="json") for section in ("extract", "reduce", "filter")},
    }
    return dict(json.loads(json.dumps(identity)))


def _stored_speed(file: Path, identity: dict[str, Any]) -> float | None:
    plan = read_json(file)
    different = [key for key in identity if key not in plan or plan[key] != identity[key]]
    if different:
        raise InputError(f"{file}: is of another {different[0]}; choose another --work, or delete that folder")
    step_seconds: float | None = plan.get("seconds_per_step")
    return step_seconds
