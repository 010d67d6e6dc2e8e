"""Make the run of a trial from its values."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.base import Duration
from pipeline.config.params import Params, check_params
from pipeline.config.recipe import Recipe
from pipeline.config.study import TrainConfig
from pipeline.config.tuning import apply_values
from pipeline.config.tuning_checks import process_requirement
from pipeline.durations import to_steps
from pipeline.errors import InputError
from pipeline.training.settings import DatasetInfo, GridPoint, TrainSettings, effective_settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainValRows:
    """Training images by row, bool (N,): those to train on, and those flagged `val`, on which trials are evaluated."""

    train: NDArray[np.bool_]
    val: NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialRun:
    """The run of one trial.

    Attributes:
        settings: of the full run, to the last epoch.
        recipe: how the run is executed.
        epoch_ends: (epochs,) optimizer steps done at the end of each epoch, ascending.
        processes: number of processes on one machine that share its work.
    """

    settings: TrainSettings
    recipe: TrainConfig
    epoch_ends: tuple[int, ...]
    processes: int

    @property
    def threads(self) -> int:
        """CPU threads. They are independent of the machine, since the bits of a result depend on them."""
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
        data: of the data set.
        rows: training and validation images.

    Raises:
        InputError: the values do not fit together, or the data, or the rest of the study: with them the full study,
            all its lists and its budget, could not be trained.
    """
    tuning = params.tuning[search]
    tree = params.model_dump(mode="json", exclude={"tuning"})
    of_trial = tuning.trial_study(params.studies[tuning.study], values)
    checked = check_params({**tree, "studies": {**tree["studies"], tuning.study: of_trial}}, source="trial")
    # If it wins, its values stand in the whole study; the search is not to find out at its end that they cannot. No
    # search has to fit the study then: that is looked at where one is run.
    apply_values(tree["studies"][tuning.study], values)
    check_params(tree, source="tuned.yaml")
    study = checked.studies[tuning.study]
    recipe = study.effective_recipe(checked.train)
    (model,), (batch_size,), n_train = study.models, study.batch_sizes, int(rows.train.sum())
    (learning_rate,), (weight_decay,), (seed,) = study.learning_rates, study.weight_decays, study.seeds
    if batch_size > n_train:
        raise InputError(
            f"batch_sizes: {batch_size} is larger than the {n_train} images to train on; use a smaller one"
        )
    if problem := process_requirement(recipe):
        raise InputError(problem)
    settings = effective_settings(
        recipe,
        data,
        GridPoint(
            network=model,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            seed=seed,
        ),
        n_epoch=n_train,
        budget=Duration(epochs=tuning.epochs),
    )
    epoch_ends = tuple(
        to_steps(epochs=epoch, n_train=n_train, batch_sizes=settings.batch_sizes)
        for epoch in range(1, tuning.epochs + 1)
    )
    assert epoch_ends[-1] == settings.steps, (epoch_ends, settings.steps)
    return TrialRun(settings=settings, recipe=recipe, epoch_ends=epoch_ends, processes=trial_processes(recipe))


def trial_processes(recipe: Recipe) -> int:
    """Return the number of processes of a trial: `workers`, where `auto` is one for all simulated workers."""
    return 1 if recipe.workers == "auto" else recipe.workers
