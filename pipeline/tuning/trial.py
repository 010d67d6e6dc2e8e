"""From the values of a trial to the settings of its run."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.base import Duration
from pipeline.config.params import Params, check_params
from pipeline.config.recipe import Recipe
from pipeline.config.study import TrainConfig
from pipeline.config.tuning import apply_values, process_requirement
from pipeline.durations import to_steps
from pipeline.errors import InputError
from pipeline.training.grid import DatasetInfo
from pipeline.training.settings import TrainSettings, effective_settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainValRows:
    """Training images by row, bool (N,): those to train on, and those flagged `val`, on which trials are judged."""

    trained: NDArray[np.bool_]
    judged: NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialRun:
    """One trial.

    Attributes:
        settings: of the whole run, to the last epoch.
        recipe: says how the run is done.
        ends: (epochs,) optimizer steps done at the end of each epoch, ascending.
        processes: that share its work, on one machine.
    """

    settings: TrainSettings
    recipe: TrainConfig
    ends: tuple[int, ...]
    processes: int

    @property
    def threads(self) -> int:
        """CPU threads; the bits of a result depend on them, so the machine does not decide."""
        chosen = self.recipe.threads_per_worker
        return 1 if chosen == "auto" else chosen


def trial_run(
    params: Params, search: str, values: Mapping[str, Any], data: DatasetInfo, rows: TrainValRows
) -> TrialRun:
    """What trial of the search `search` has the given values.

    Raises:
        InputError: they do not fit together, not the data, or not what the trial leaves alone: with them the study as
            a whole, all its lists and its own budget, could not be trained.
    """
    tuning = params.tuning[search]
    tree = params.model_dump(mode="json", exclude={"tuning"})
    of_trial = tuning.applied(params.studies[tuning.study], values)
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
        raise InputError(f"batch_sizes: {batch_size} is larger than the {n_train} images to train on; give less")
    if said := process_requirement(recipe):
        raise InputError(said)
    settings = effective_settings(
        recipe,
        network=model,
        n_epoch=n_train,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        budget=Duration(epochs=tuning.epochs),
        seed=seed,
        **dataclasses.asdict(data),
    )
    ends = tuple(
        to_steps(epochs=epoch, n_train=n_train, batch_sizes=settings.batch_sizes)
        for epoch in range(1, tuning.epochs + 1)
    )
    assert ends[-1] == settings.steps, (ends, settings.steps)
    return TrialRun(settings=settings, recipe=recipe, ends=ends, processes=trial_processes(recipe))


def trial_processes(recipe: Recipe) -> int:
    """For a trial: `workers`, of which `auto` is one process that stands in for all simulated workers."""
    return 1 if recipe.workers == "auto" else recipe.workers
