"""Read the runs of committed ledgers by arm: for the figures of docs/."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pipeline.config.params import Params
from pipeline.errors import InputError
from pipeline.runs.grid import expand_grid
from pipeline.runs.ledger import Ledger
from pipeline.training.settings import DatasetInfo, recorded_settings

Masks = Callable[[int], Mapping[str, NDArray[np.bool_]]]
"""From a seed to the images of each arm, (N,) by its name."""


@dataclass(frozen=True)
class FinishedRun:
    """The accuracy of a finished run.

    Attributes:
        learning_rate: of the study, before it is scaled to the batch size.
        top1: accuracy on the test images, in percent.
    """

    batch_size: int
    learning_rate: float
    arm: str
    seed: int
    top1: float


def unpack_ledger(archive: Path, folder: Path) -> Ledger:
    """Unpack the recorded runs of an archive to a folder, and return them."""
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    return Ledger(folder / ".work" / "cells")


def save_figure(file: Path, archive: Path, draw: Callable[[Ledger], Figure]) -> int:
    """Draw a figure of the runs of an archive; return 2 with one line for runs that it refuses, else 0."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            figure = draw(unpack_ledger(archive, Path(folder)))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    figure.savefig(file, dpi=110, metadata={"Software": None})
    return 0


def recorded_runs(
    ledger: Ledger, params: Params, studies: Iterable[str], masks: Masks, *, n_classes: int
) -> Iterator[FinishedRun]:
    """Yield the runs of some studies by one process, in the order of the ledger; all others are left out.

    Args:
        studies: of `params`.
        masks: images of each arm.

    Raises:
        InputError: a run has images of no arm, or a second one has its batch size, rate, arm and seed.
    """
    expected = _expected_settings(params, studies, masks, n_classes)
    digests: dict[int, dict[str, str]] = {}
    seen: set[tuple[int, float, str, int]] = set()
    for key in ledger.run_keys():
        settings = key.job["settings"]
        result = ledger.get(key.fingerprint)
        rate = expected.get(_text(settings))
        # A run of two processes has the settings of one.
        if rate is None or result.workers != 1:
            continue
        size, seed = settings["batch_size"], settings["seed"]
        run = f"run {key.fingerprint}, batch {size}, seed {seed}"
        if seed not in digests:
            digests[seed] = {_digest(mask): arm for arm, mask in masks(seed).items()}
        arm = digests[seed].get(str(key.job["members"]))
        if arm is None:
            arms = ", ".join(masks(seed))
            raise InputError(f"{run}: its images are those of none of {arms}; remove it from the ledger")
        if (size, rate, arm, seed) in seen:
            raise InputError(f"{run}: is the second one of arm {arm}; remove one of them from the ledger")
        seen.add((size, rate, arm, seed))
        if result.top1 is not None:
            yield FinishedRun(size, rate, arm, seed, 100 * result.top1)


def _digest(mask: NDArray[np.bool_]) -> str:
    """Return the digest of the images of an arm, as a run's key has it."""
    return hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()


def _expected_settings(params: Params, studies: Iterable[str], masks: Masks, n_classes: int) -> dict[str, float]:
    """Return the settings of the studies' runs, as texts, with the learning rate of the study."""
    arms = masks(0)
    n_train, n_kept = len(arms["full"]), int(arms["filtered"].sum())
    info = DatasetInfo(n_classes=n_classes, image_size=params.prepare.image_size, mean=(), std=())
    return {
        _text(json.loads(json.dumps(recorded_settings(spec.settings)))): spec.learning_rate
        for study in (params.studies[name] for name in studies)
        for network in [study.filter_network]
        for spec in expand_grid(study, params.train, info, n_train, {network: n_kept})
    }


def _text(settings: Mapping[str, Any]) -> str:
    """Return settings without the mean and standard deviation of the images, which no table here has."""
    image_format = {name: value for name, value in settings["format"].items() if name not in ("mean", "std")}
    return json.dumps({**settings, "format": image_format}, sort_keys=True)
