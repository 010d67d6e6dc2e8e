"""From a recipe in the units of params.yaml to steps and the peak rate."""

from typing import Any

import pytest

from pipeline.config.duration import Duration
from pipeline.config.study import TrainConfig
from pipeline.errors import InputError
from pipeline.training.settings import TrainSettings, effective_settings


def _settings(*, budget: Duration | None = None, batch_size: int = 10, **recipe: Any) -> TrainSettings:
    return effective_settings(
        TrainConfig.model_validate(recipe),
        network="resnet18",
        n_classes=4,
        n_epoch=100,
        image_size=16,
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        batch_size=batch_size,
        learning_rate=0.1,
        weight_decay=0.01,
        budget=budget or Duration(epochs=4),
        seed=0,
    )


def test_durations_become_steps() -> None:
    schedule = {
        "name": "step",
        "warmup": {"epochs": 0.5},
        "milestones": ({"epochs": 2.0}, {"steps": 31}),
        "factor": 0.1,
    }
    settings = _settings(schedule=schedule)
    assert settings.steps == 40
    assert settings.warmup_steps == 5
    assert settings.schedule_options == {"milestones": [20, 31], "factor": 0.1}
    rates = [settings.rate(step) for step in (0, 3, 4, 19, 20, 30, 31, 39)]
    assert rates == pytest.approx([0.02, 0.08, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_a_warm_up_beyond_the_budget_is_refused() -> None:
    schedule = {"name": "constant", "warmup": {"epochs": 1}}
    assert _settings(schedule=schedule, budget=Duration(steps=10)).warmup_steps == 10
    with pytest.raises(InputError, match=r"^schedule.warmup: 10 steps at batch 10, but the budget is 9 steps; "):
        _settings(schedule=schedule, budget=Duration(steps=9))


@pytest.mark.parametrize(
    ("budget", "steps"), [({"steps": 7}, 7), ({"examples": 71}, 8), ({"epochs": 0.25}, 3), ({"epochs": 0.001}, 1)]
)
def test_budgets(budget: dict[str, Any], steps: int) -> None:
    assert _settings(budget=Duration(**budget)).steps == steps


@pytest.mark.parametrize(("rule", "peak"), [("linear", 0.4), ("sqrt", 0.2), (None, 0.1)])
def test_the_peak_follows_the_batch(rule: str | None, peak: float) -> None:
    scaling = {"rule": rule, "reference_batch_size": 10} if rule else None
    assert _settings(batch_size=40, lr_scaling=scaling).learning_rate == pytest.approx(peak)


def test_rates_of_a_warm_cosine() -> None:
    settings = _settings(budget=Duration(steps=4), schedule={"name": "cosine", "warmup": {"steps": 2}})
    assert [settings.rate(step) for step in range(4)] == pytest.approx([0.05, 0.0853553, 0.05, 0.0146447], rel=1e-5)


def test_the_crop_is_the_image_unless_given() -> None:
    assert _settings().format.crop_size == 16
    assert _settings(augmentation={"crop_size": 12}).format.crop_size == 12


def test_a_crop_larger_than_the_prepared_images_is_refused() -> None:
    with pytest.raises(InputError, match=r"augmentation.crop_size: 20 .* 16 pixels"):
        _settings(augmentation={"crop_size": 20})
