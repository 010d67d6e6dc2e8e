"""How long every case trains: decided once, by the speed alone."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.label_noise.cases import Case, Images
from benchmarks.label_noise.folders import take_images
from benchmarks.label_noise.own_process import in_own_process
from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.prepared import prepared_digest
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.config.params import Params
from pipeline.errors import InputError
from pipeline.paths import DataPaths

# A case has these of its own, and by one process as its speed is measured.
_OF_CASES = {"budget", "schedule", "folds", "trainable", "weights", "workers"}


@dataclass(frozen=True, kw_only=True)
class CasePlan:
    """What all cases have in common.

    Attributes:
        base: the prepared images that take part, with the labels that they were prepared with.
        seconds: training time of an extractor, all its folds together.
        each: seconds a step; None where no case takes any.
    """

    base: DataPaths
    seconds: float
    each: float | None

    def steps(self, folds: int) -> int:
        """For each of so many networks."""
        assert self.each is not None
        return max(1, int(self.seconds / folds / self.each))


def make_plan(arguments: argparse.Namespace, params: Params, images: Images, cases: Sequence[Case]) -> CasePlan:
    """plan.json in `--work` keeps the speed for all cases and runs.

    Raises:
        InputError: `--work` holds a plan of other data or arguments, or the images are too few.
    """
    file, config = arguments.work / "plan.json", params.finetune
    if config.workers not in ("auto", 1):
        raise InputError(f"finetune.workers: {config.workers}, but speed is measured with one process; set auto or 1")
    identity = _identity(arguments, params, images)
    each = _known_speed(file, identity) if file.exists() else None
    everything = DataPaths(root=arguments.data)
    base = everything if images.taken.all() else DataPaths(root=arguments.work / "images")
    if not file.exists() and base is not everything:
        take_images(everything, base, images.taken)
    timed = [case for case in cases if case.has_budget]
    if timed and each is None:
        if config.batch_size > len(images.truth):
            raise InputError(
                f"finetune.batch_size: {config.batch_size} is more than the {len(images.truth)} images; "
                "give more --images"
            )
        # Imported here: torch takes seconds, and all else that needs it is in the stages' own processes.
        from benchmarks.label_noise.speed import seconds_per_step

        each, _ = in_own_process(seconds_per_step, params, base.root)
    write_json(file, {**identity, "seconds_per_step": each})
    plan = CasePlan(base=base, seconds=arguments.seconds, each=each)
    for folds in sorted({case.folds for case in timed}):
        print(_described(plan, folds, config.batch_size, len(images.truth)), flush=True)
    return plan


def _described(plan: CasePlan, folds: int, batch_size: int, n: int) -> str:
    steps, seen = plan.steps(folds), n if folds == 1 else n * (folds - 1) / folds
    return (
        f"plan: {plan.each:.4f} s for a step of {batch_size} images, so {plan.seconds:g} s in {folds} "
        f"{'network' if folds == 1 else 'networks'} make {steps} steps each, {steps * batch_size / seen:.2f} epochs"
    )


def _identity(arguments: argparse.Namespace, params: Params, images: Images) -> dict[str, Any]:
    """What the folders of all cases have in common; their kinds, rates, variants and folds are in their names."""
    files: dict[str, Path | None] = {key: getattr(arguments, key) for key in ("labels", "truth")}
    identity = {
        "data": prepared_digest(DataPaths(root=arguments.data)),
        **{key: sha256_of_file(file) if file else None for key, file in files.items()},
        "images": int(np.count_nonzero(images.taken)),
        "seconds": arguments.seconds,
        "seed": arguments.seed,
        "network": params.networks[0],
        "finetune": params.finetune.model_dump(mode="json", exclude=_OF_CASES),
        **{section: getattr(params, section).model_dump(mode="json") for section in ("extract", "reduce", "filter")},
    }
    return dict(json.loads(json.dumps(identity)))


def _known_speed(file: Path, identity: dict[str, Any]) -> float | None:
    plan = read_json(file)
    different = [key for key in identity if key not in plan or plan[key] != identity[key]]
    if different:
        raise InputError(f"{file}: is of another {different[0]}; choose another --work, or delete that folder")
    known: float | None = plan.get("seconds_per_step")
    return known
