"""The runs that `equivalent_batch` adds to a grid."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pipeline.config.study import Study, TrainConfig
from pipeline.errors import InputError
from pipeline.runs.grid import RunSpec, expand_grid
from pipeline.training.settings import DatasetInfo
from tests.fixtures.projects import NETWORK
from tests.fixtures.training import TINY_STUDY

_DATA = DatasetInfo(n_classes=4, image_size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
_KEPT = {NETWORK: 80, f"{NETWORK}-r1": 50}
_RECIPE = {"lr_scaling": {"rule": "sqrt", "reference_batch_size": 10}, "simulated_workers": 1}
_SIZES: dict[str, Any] = {"batch_sizes": [16, 40], "seeds": [0, 1]}


def _specs(train: Any = None, **study: Any) -> list[RunSpec]:
    grid = Study.model_validate_json(json.dumps({**TINY_STUDY, **_SIZES, **study}))
    return expand_grid(grid, TrainConfig.model_validate_json(json.dumps(train or _RECIPE)), _DATA, 100, _KEPT)


def test_they_follow_the_unchanged_grid_in_the_filtered_arm() -> None:
    before, after = _specs(), _specs(equivalent_batch={"gradient_scale": 0.5})
    assert after[: len(before)] == before
    added = after[len(before) :]
    assert [(run.arm, run.settings.batch_size, run.settings.seed) for run in added] == [
        ("filtered", 4, 0), ("filtered", 4, 1), ("filtered", 10, 0), ("filtered", 10, 1),
    ]  # fmt: skip
    assert {run.n_train for run in added} == {80}


@pytest.mark.parametrize("budget", [{"examples": 2000}, {"epochs": 20}, {"steps": 50}], ids=str)
def test_a_run_differs_from_the_full_arm_in_batch_and_rate_alone(budget: dict[str, Any]) -> None:
    """Whatever the units of budget, warm-up and milestones, both take the same steps by the same schedule."""
    recipe: dict[str, Any] = {
        **_RECIPE,
        "schedule": {"name": "step", "warmup": {"epochs": 1.5}, "milestones": [{"epochs": 10}], "factor": 0.1},
    }
    specs = _specs(recipe, budget=budget, accuracy_every={"epochs": 5}, equivalent_batch={"gradient_scale": 0.5})
    full = {(run.settings.batch_size, run.settings.seed): run for run in specs if run.arm == "full"}
    for run in specs[-4:]:
        partner = full[4 * run.settings.batch_size, run.settings.seed].settings
        # With sqrt scaling the rate is s times that of the full arm.
        rate = partner.learning_rate / 2
        assert run.settings.learning_rate == pytest.approx(rate)
        as_large = replace(run.settings, batch_size=partner.batch_size, learning_rate=partner.learning_rate)
        assert as_large == partner


def test_each_replicate_of_the_filter_has_its_runs() -> None:
    specs = _specs(filter_replicates=2, seeds=[0], equivalent_batch={"gradient_scale": 0.5, "batch_sizes": [40]})
    added = [(run.filter_network, run.n_train) for run in specs if run.settings.batch_size == 10]
    assert added == [(NETWORK, 80), (f"{NETWORK}-r1", 50)]


def test_a_run_of_the_grid_is_not_added_and_a_like_one_is_refused() -> None:
    scale = {"gradient_scale": 0.5, "batch_sizes": [40]}
    sizes = {"batch_sizes": [10, 40], "equivalent_batch": scale}
    same = _specs(budget={"steps": 50}, **sizes)
    assert len(same) == len(_specs(budget={"steps": 50}, batch_sizes=[10, 40]))
    with pytest.raises(InputError, match=r"filtered at batch 10, against full at 40, takes 50 steps, .* has 200"):
        _specs(budget={"examples": 2000}, **sizes)


def test_it_is_skipped_with_the_full_arm() -> None:
    specs = _specs(batch_sizes=[40, 90], seeds=[0], equivalent_batch={"gradient_scale": 0.5})
    reasons = {run.settings.batch_size: run.skip_reason for run in specs if run.settings.batch_size in (10, 22)}
    assert reasons[10] == ""
    assert reasons[22].startswith("batch 90 is larger")
