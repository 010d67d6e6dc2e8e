"""Runs from a trial's values, and values that are rejected before an epoch is trained."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config.base import Duration
from pipeline.config.params import Params, load_params
from pipeline.errors import InputError
from pipeline.training.settings import DatasetInfo
from pipeline.tuning.trial import TrainValRows, TrialRun, trial_run
from tests.fixtures.printed_errors import key_within
from tests.fixtures.training import NAMES, SIZE
from tests.fixtures.tuning import NAME, write_search

SUMMARY = DatasetInfo(n_classes=len(NAMES), image_size=SIZE, mean=(0.44,) * 3, std=(0.27,) * 3)
ROWS = TrainValRows(train=np.arange(60) % 4 != 0, val=np.arange(60) % 4 == 0, labels=np.arange(60) % 4)

_LOCAL = {"start": {"steps": 1}, "period": 5}


def params_of(folder: Path, **study: Any) -> Params:
    """Of a tiny project, whose study has the given values."""
    write_search(folder)
    params = load_params(folder / "params.yaml")
    changed = params.studies["tiny"].model_copy(update=study)
    return params.model_copy(update={"studies": {"tiny": changed}})


def make_run(params: Params, **values: Any) -> TrialRun:
    return trial_run(params, NAME, values, SUMMARY, ROWS)


@pytest.mark.parametrize(
    ("study", "values", "key"),
    [
        ({"batch_sizes": (16, 20)}, {"recipe.simulated_workers": 8}, "batch_sizes"),
        ({"budget": Duration(epochs=2)}, {"recipe.schedule.warmup": {"epochs": 3}}, "recipe.schedule.warmup"),
    ],
)
def test_values_that_the_full_study_cannot_take_are_refused(
    study: dict[str, Any], values: dict[str, Any], key: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as refused:
        make_run(params_of(tmp_path, **study), **values)
    assert key_within(refused.value, "tuned.yaml") == f"studies.tiny.{key}"


def test_a_report_may_ask_for_accuracies_of_another_study(tmp_path: Path) -> None:
    params = params_of(tmp_path)
    watched = params.studies["tiny"].model_copy(update={"accuracy_every": Duration(epochs=1)})
    reported = params.report.model_copy(update={"target_top1": 0.5})
    both = params.model_copy(update={"studies": {**params.studies, "watched": watched}, "report": reported})
    assert make_run(both, learning_rates=0.1) == make_run(params, learning_rates=0.1)


@pytest.mark.parametrize(
    ("values", "processes"),
    [
        ({}, 1),
        ({"recipe.simulated_workers": 4}, 1),
        ({"recipe.simulated_workers": 4, "recipe.workers": 2}, 2),
        ({"recipe.simulated_workers": 4, "recipe.workers": 4, "recipe.communication.compression": "bf16"}, 4),
    ],
)
def test_a_trial_has_the_processes_of_its_recipe(values: dict[str, Any], processes: int, tmp_path: Path) -> None:
    assert make_run(params_of(tmp_path), **values).processes == processes


def test_compression_takes_a_process_for_every_worker(tmp_path: Path) -> None:
    values = {"recipe.simulated_workers": 4, "recipe.communication.compression": "bf16"}
    with pytest.raises(InputError) as raised:
        make_run(params_of(tmp_path), **values)
    assert re.findall(r"\bworkers: (\d+)", str(raised.value)) == ["4"]
    assert raised.value.key == "communication.compression"


@pytest.mark.parametrize("simulated_workers", [1, 4])
def test_post_local_sgd_is_refused_in_one_line(simulated_workers: int, tmp_path: Path) -> None:
    values = {"recipe.post_local_sgd": _LOCAL, "recipe.simulated_workers": simulated_workers}
    with pytest.raises(InputError) as raised:
        make_run(params_of(tmp_path), **values)
    assert raised.value.key == "post_local_sgd"


def test_epochs_of_a_growing_batch_end_where_their_images_do(tmp_path: Path) -> None:
    """45 images an epoch: 6 steps of 8 in the first, then steps of 16, of which 3 reach 90 images and 6 reach 135."""
    stages = {"stages": [{"share": 0.5, "until": {"epochs": 1}}]}
    run = make_run(params_of(tmp_path), **{"recipe.batch_schedule": stages})
    assert run.epoch_ends[:3] == (6, 9, 12)
    assert run.epoch_ends[-1] == run.settings.steps
