"""Check that the values which a hyperparameter search may try fit its study."""

import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pipeline.config.base import describe_validation_error
from pipeline.config.recipe import Recipe
from pipeline.config.study import Study, TrainConfig
from pipeline.config.tuning import Tuning
from pipeline.errors import InputError

_MAX_CHECKED = 20_000  # a check takes about a millisecond


def check_space(key: str, tuning: Tuning, study: Study, train: TrainConfig) -> None:
    """Check that every searched value fits at least one trial.

    A search is checked when it runs, not with the rest of the file: a file whose study has changed its optimizer since,
    such as tuned.yaml, still trains.

    Args:
        key: key path of the search, for messages.
        study: the study that `tuning.study` names.

    Raises:
        InputError: with the key, the value and the fix.
    """
    _check_recipe(key, tuning, study, train)
    if tuning.seeds > len(study.seeds):
        raise InputError(
            f"{key}.seeds: {tuning.seeds} is more than the {len(study.seeds)} seeds of study {tuning.study}; give at "
            "most as many, or add seeds to the study"
        )
    n_checked = 0
    for name, domain in tuning.space.items():
        # If its section is searched too, a key has to fit one of the section's choices.
        sections = [other for other in tuning.space if name.startswith(f"{other}.") and tuning.space[other].choices]
        choices = [tuning.space[section].choices or () for section in sections]
        values = (*domain.extremes, *domain.inner)
        n_checked += len(values) * math.prod(map(len, choices))
        if n_checked > _MAX_CHECKED:
            raise InputError(
                f"{key}.space.{name}: more than {_MAX_CHECKED:,} combinations of choices, with those of the sections "
                "that it is in; give fewer choices"
            )
        variants = [dict(zip(sections, chosen, strict=True)) for chosen in itertools.product(*choices)]
        for value in values:
            misfits = [_misfit(tuning, study, train, {**variant, name: value}) for variant in variants]
            if all(misfits):
                fix = "; give int_uniform in place of the range" if value in domain.inner else ""
                raise InputError(f"{key}.space.{name}: {json.dumps(value)} does not fit: {misfits[0]}{fix}")


def _check_recipe(key: str, tuning: Tuning, study: Study, train: TrainConfig) -> None:
    """Check that trials can run the study's recipe, unless a searched key replaces the part in question."""
    if any(name.startswith(("recipe.post_local_sgd", "recipe.communication")) for name in tuning.space):
        return
    if problem := process_requirement(study.effective_recipe(train)):
        raise InputError(f"{key}.study: {tuning.study} cannot be searched: {problem}")


def _misfit(tuning: Tuning, study: Study, train: TrainConfig, values: Mapping[str, Any]) -> str:
    """Return why a trial cannot have `values`; empty if it can."""
    tree = tuning.trial_study(study, values)
    try:
        candidate = Study.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        return describe_validation_error(error, tree, Study)
    try:
        recipe = candidate.effective_recipe(train)
    except ValidationError as error:
        return f"recipe.{describe_validation_error(error, candidate.recipe, TrainConfig)}"
    return process_requirement(recipe)


def process_requirement(recipe: Recipe) -> str:
    """Return the key that needs processes which a trial does not have, with the fix; empty without one."""
    if recipe.post_local_sgd is not None:
        return (
            "post_local_sgd: a trial is saved after every epoch, and workers with different weights can be saved "
            "only after an average; remove the key"
        )
    communication = recipe.communication
    if communication.hierarchical and recipe.workers not in ("auto", 1):
        return "communication.hierarchical: true, but the processes of a trial are on one machine; remove the key"
    if communication.compression != "none" and recipe.workers != recipe.simulated_workers:
        return (
            f"communication.compression: {communication.compression}, but each worker compresses a separate "
            f"gradient; set workers: {recipe.simulated_workers} in the study's recipe, one process for each"
        )
    return ""
