"""From a recipe in the units of params.yaml to steps and the peak rate."""

import math
from typing import Any

import pytest

from pipeline.config.base import Duration
from pipeline.config.study import TrainConfig
from pipeline.durations import BatchStage
from pipeline.errors import InputError
from pipeline.schedules import apply_warmup, cosine
from pipeline.training.effective_settings import effective_settings
from pipeline.training.settings import DatasetInfo, GridPoint, TrainSettings


def _settings(
    *, budget: Duration | None = None, batch_size: int = 10, accuracy_every: Duration | None = None, **recipe: Any
) -> TrainSettings:
    return effective_settings(
        TrainConfig.model_validate(recipe),
        DatasetInfo(n_classes=4, image_size=16, mean=(0.5,) * 3, std=(0.25,) * 3),
        GridPoint(network="resnet18", batch_size=batch_size, learning_rate=0.1, weight_decay=0.01, seed=0),
        n_epoch=100,
        budget=budget or Duration(epochs=4),
        accuracy_every=accuracy_every,
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
    rates = [settings.lr_at(step) for step in (0, 3, 4, 19, 20, 30, 31, 39)]
    assert rates == pytest.approx([0.02, 0.08, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_a_warm_up_beyond_the_budget_is_refused() -> None:
    schedule = {"name": "constant", "warmup": {"epochs": 1}}
    assert _settings(schedule=schedule, budget=Duration(steps=10)).warmup_steps == 10
    with pytest.raises(InputError) as raised:
        _settings(schedule=schedule, budget=Duration(steps=9))
    assert raised.value.key == "schedule.warmup"


def test_local_steps_begin_within_the_budget() -> None:
    local = {"start": {"epochs": 2}, "period": 4}
    assert _settings(post_local_sgd=local, budget=Duration(steps=21)).local_from_step == 20
    with pytest.raises(InputError) as raised:
        _settings(post_local_sgd=local, budget=Duration(steps=20))
    assert raised.value.key == "post_local_sgd.start"


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
    assert [settings.lr_at(step) for step in range(4)] == pytest.approx([0.05, 0.0853553, 0.05, 0.0146447], rel=1e-5)


def test_the_crop_is_the_image_unless_given() -> None:
    assert _settings().format.crop_size == 16
    assert _settings(augmentation={"crop_size": 12}).format.crop_size == 12


def test_a_crop_larger_than_the_prepared_images_is_refused() -> None:
    with pytest.raises(InputError) as raised:
        _settings(augmentation={"crop_size": 20})
    assert raised.value.key == "augmentation.crop_size"


# Where a warm-up starts


def _warm(batch_size: int, start: Any, rule: str = "linear") -> TrainSettings:
    return _settings(
        batch_size=batch_size,
        budget=Duration(steps=8),
        schedule={"name": "constant", "warmup": {"steps": 4}, "warmup_start_factor": start},
        lr_scaling={"rule": rule, "reference_batch_size": 10},
    )


@pytest.mark.parametrize(("rule", "peak"), [("linear", 0.4), ("sqrt", 0.2)])
def test_a_warm_up_may_start_from_the_rate_as_written(rule: str, peak: float) -> None:
    """Goyal et al. 2017, section 2.2: from that of the reference batch, by equal amounts, to the scaled one."""
    rates = [_warm(40, "reference", rule).lr_at(step) for step in range(6)]
    assert rates == pytest.approx([0.1 + (peak - 0.1) * step / 4 for step in range(4)] + [peak, peak])


def test_a_warm_up_may_start_from_a_share() -> None:
    assert [_warm(40, 0.25).lr_at(step) for step in (0, 2, 4)] == pytest.approx([0.1, 0.25, 0.4])


@pytest.mark.parametrize("batch_size", [5, 10])
def test_a_batch_no_larger_than_the_reference_starts_at_its_peak(batch_size: int) -> None:
    settings = _warm(batch_size, "reference")
    assert {settings.lr_at(step) for step in range(8)} == {settings.learning_rate}


# Batches that grow


def _growing(
    *stages: tuple[float, dict[str, Any]], lr_scaling: str | None = None, **options: Any
) -> TrainSettings:  # fmt: skip
    batch_stages = tuple({"share": share, "until": until} for share, until in stages)
    return _settings(batch_schedule={"stages": batch_stages, "lr_scaling": lr_scaling}, **options)


def test_stages_end_where_their_images_are_done() -> None:
    """Of 100 images an epoch: 5 steps of 10, 3 of 20 (up to image 110), then batches of 40."""
    settings = _growing((0.25, {"epochs": 0.5}), (0.5, {"examples": 101}), batch_size=40, budget=Duration(epochs=3))
    assert settings.batch_stages == (BatchStage(batch_size=10, until_step=5), BatchStage(batch_size=20, until_step=8))
    assert settings.steps == 8 + 5  # 190 of 300 images are left
    assert [settings.batch_sizes.size_at(step) for step in (0, 4, 5, 7, 8, 12)] == [10, 10, 20, 20, 40, 40]
    by_steps = _growing((0.25, {"steps": 2}), (0.5, {"steps": 5}), batch_size=40, budget=Duration(steps=9))
    assert [(stage.batch_size, stage.until_step) for stage in by_steps.batch_stages] == [(10, 2), (20, 5)]
    assert by_steps.steps == 9


@pytest.mark.parametrize(
    ("rule", "rates"), [(None, [0.1] * 3), ("linear", [0.025, 0.05, 0.1]), ("sqrt", [0.05, 0.0707107, 0.1])]
)
def test_the_rate_follows_the_batch_or_not(rule: str | None, rates: list[float]) -> None:
    settings = _growing((0.25, {"steps": 1}), (0.5, {"steps": 2}), lr_scaling=rule, batch_size=40)
    assert [settings.lr_at(step) for step in range(3)] == pytest.approx(rates, rel=1e-5)


def test_rates_go_by_images() -> None:
    """Half of a cosine is done when half of the images are, and of a warm-up too; milestones are where they were."""
    growing = ((0.25, {"epochs": 1}),)  # 10 steps of 10 images, then of 40
    cosine = _growing(*growing, batch_size=40, budget=Duration(epochs=5), schedule={"name": "cosine"})
    assert cosine.steps == 20
    assert cosine.lr_at(10) == pytest.approx(0.1 * (1 + math.cos(math.pi * 100 / 500)) / 2)
    assert cosine.lr_at(5) == pytest.approx(0.1 * (1 + math.cos(math.pi * 50 / 500)) / 2)
    warm = _growing(
        *growing, batch_size=40, budget=Duration(epochs=5), schedule={"name": "constant", "warmup": {"epochs": 1.8}}
    )
    assert warm.warmup_steps == 12
    assert [warm.lr_at(step) for step in (0, 9, 10, 11, 12)] == pytest.approx(
        [0.1 * done / 180 for done in (10, 100, 140, 180, 180)]
    )
    falling = _growing(
        *growing, batch_size=40, budget=Duration(epochs=5),
        schedule={"name": "step", "milestones": ({"epochs": 0.5}, {"steps": 11}, {"epochs": 3.0})},
    )  # fmt: skip
    assert [falling.lr_at(step) for step in (4, 5, 10, 11, 14, 15)] == pytest.approx(
        [0.1, 0.01, 0.01, 0.001, 0.001, 0.0001]
    )


def test_without_stages_rates_keep_their_bits() -> None:
    """What the schedules give for whole steps is what a run of equal batches has."""
    settings = _settings(batch_size=7, schedule={"name": "cosine", "warmup": {"steps": 13}})
    expected = [
        settings.learning_rate * apply_warmup(cosine(step, settings.steps), step, 13) for step in range(settings.steps)
    ]
    assert [settings.lr_at(step) for step in range(settings.steps)] == expected


def test_the_accuracy_is_measured_after_equally_many_images() -> None:
    growing = ((0.25, {"epochs": 1}),)
    settings = _growing(*growing, batch_size=40, budget=Duration(epochs=5), accuracy_every=Duration(epochs=1))
    steps = [step for step in range(1, settings.steps + 1) if settings.evaluates_after(step)]
    assert [settings.batch_sizes.examples(step) for step in steps] == [100, 220, 300, 420]
    counted = _growing(*growing, batch_size=40, budget=Duration(epochs=5), accuracy_every=Duration(steps=8))
    assert [step for step in range(1, counted.steps + 1) if counted.evaluates_after(step)] == [8, 16]


@pytest.mark.parametrize(
    ("stages", "key"),
    [
        ([(0.5, {"steps": 8})], "batch_schedule"),
        ([(0.25, {"steps": 4}), (0.5, {"epochs": 0.4})], "batch_schedule.stages.1.until"),
    ],
)
def test_stages_that_do_not_fit_the_data_are_refused(stages: list[Any], key: str) -> None:
    with pytest.raises(InputError) as refused:
        _growing(*stages, batch_size=40, budget=Duration(steps=8))
    assert refused.value.key == key
