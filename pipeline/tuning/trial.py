"""Make the run of a trial from its values."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.base import Duration
from pipeline.config.params import Params, check_params
from pipeline.config.recipe import Recipe
from pipeline.config.search_checks import process_requirement
from pipeline.config.study import TrainConfig
from pipeline.config.tuning import apply_values
from pipeline.durations import to_steps
from pipeline.errors import InputError
from pipeline.runs.grid import grid_points
from pipeline.training.effective_settings import effective_settings
from pipeline.training.settings import DatasetInfo, TrainSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainValRows:
    """The training images of a search.

    Attributes:
        train: (N,) bool, those to train on.
        val: (N,) bool, those flagged `val`, on which trials are evaluated with the labels as given.
        labels: (N,) int64, to train on.
    """

    train: NDArray[np.bool_]
    val: NDArray[np.bool_]
    labels: NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialRun:
    """The run of one trial.

    Attributes:
        settings: of the full run, to the last epoch.
        recipe: how the run is executed.
        epoch_ends: (epochs,) optimizer steps done at the end of each epoch, ascending.
        processes: number of processes on one machine that share its work.
        seeds: of the trial; the settings have the first.
    """

    settings: TrainSettings
    recipe: TrainConfig
    epoch_ends: tuple[int, ...]
    processes: int
    seeds: tuple[int, ...]

    @property
    def threads(self) -> int:
        """CPU threads, independent of the machine, since the bits of a result depend on their number."""
        threads = self.recipe.threads_per_worker
        return 1 if threads == "auto" else threads


def trial_run(
    params: Params, search: str, values: Mapping[str, Any], data: DatasetInfo, rows: TrainValRows
) -> TrialRun:
    """Return the run of a trial of the search `search` with these values.

    Args:
        params: with the search.
        search: name of the search.
        values: key -> value of the trial.
        rows: training and validation images.

    Raises:
        InputError: the values do not fit together, or do not fit the data or the rest of the study. They must allow
            the full study, with all its lists and its budget.
    """
    tuning = params.tuning[search]
    tree = params.model_dump(mode="json", exclude={"tuning"})
    of_trial = tuning.trial_study(params.studies[tuning.study], values)
    checked = check_params({**tree, "studies": {**tree["studies"], tuning.study: of_trial}}, source="trial")
    # The values of the best trial go into the full study: check now that they fit it. Searches are left out of this
    # check: the command checks a search when it runs one.
    apply_values(tree["studies"][tuning.study], values)
    check_params(tree, source="tuned.yaml")
    study = checked.studies[tuning.study]
    recipe = study.effective_recipe(checked.train)
    (point,), n_train = grid_points(study), int(rows.train.sum())
    if point.batch_size > n_train:
        raise InputError(
            f"batch_sizes: {point.batch_size} is larger than the {n_train} images to train on; use a smaller one"
        )
    if problem := process_requirement(recipe):
        raise InputError(problem)
    settings = effective_settings(
        recipe,
        data,
        point,
        n_epoch=n_train,
        budget=Duration(epochs=tuning.epochs),
    )
    epoch_ends = tuple(
        to_steps(epochs=epoch, n_train=n_train, batch_sizes=settings.batch_sizes)
        for epoch in range(1, tuning.epochs + 1)
    )
    assert epoch_ends[-1] == settings.steps, (epoch_ends, settings.steps)
    return TrialRun(
        settings=settings,
        recipe=recipe,
        epoch_ends=epoch_ends,
        processes=trial_processes(recipe),
        seeds=params.studies[tuning.study].seeds[: tuning.seeds],
    )


def trial_processes(recipe: Recipe) -> int:
    """Return the number of processes of a trial: `workers`, where `auto` is one for all simulated workers."""
    return 1 if recipe.workers == "auto" else recipe.workers
