"""Keys that must fit each other: studies over `train`, workers and batches, weights, heads and scorers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.filter import NEEDS_TRAINING, needs_training
from pipeline.config.params import check_params
from pipeline.config.study import TrainConfig
from pipeline.errors import InputError
from pipeline.scoring.registry import SCORERS
from tests.fixtures.params import digits_tree, digits_with
from tests.fixtures.printed_errors import key_within


def test_a_duration_in_another_unit_replaces_that_of_train() -> None:
    tree = digits_with("studies.digits.recipe", {"schedule": {"warmup": {"epochs": 0.5}}})
    assert tree["train"]["schedule"]["warmup"] == {"steps": 5}
    params = check_params(tree, source="p")
    schedule = params.studies["digits"].effective_recipe(params.train).schedule
    assert schedule.name == "cosine"
    assert (schedule.warmup.epochs, schedule.warmup.steps) == (0.5, None)


def test_study_recipe_lies_over_train_key_by_key() -> None:
    recipe = {"label_smoothing": 0.1, "schedule": {"name": "step", "milestones": [{"epochs": 2}]}}
    params = check_params(digits_with("studies.digits.recipe", recipe), source="p")
    effective = params.studies["digits"].effective_recipe(params.train)
    changed = {key for key in TrainConfig.model_fields if getattr(effective, key) != getattr(params.train, key)}
    assert changed == {"label_smoothing", "schedule"}
    assert effective.schedule.name == "step"


def test_concurrent_runs_are_those_of_train_unless_the_study_says() -> None:
    tree = digits_with("train.concurrent_runs", 3)
    params = check_params(tree, source="p")
    assert params.studies["digits"].effective_recipe(params.train).concurrent_runs == 3
    tree["studies"]["digits"]["recipe"] = {"concurrent_runs": "auto"}
    params = check_params(tree, source="p")
    assert params.studies["digits"].effective_recipe(params.train).concurrent_runs == "auto"


@pytest.mark.parametrize(
    ("at_once", "workers", "simulated", "accepted"),
    [
        (1, "auto", 4, True),
        (2, 1, 4, False),  # two runs would share the memory that one fills
        ("auto", "auto", 4, False),  # found on all GPUs, and trained on one
        ("auto", 2, 4, False),
        ("auto", 1, 4, True),
        ("auto", "auto", 1, True),
    ],
)
def test_the_largest_batch_has_the_memory_to_itself(
    at_once: int | str, workers: int | str, simulated: int, accepted: bool
) -> None:
    tree = digits_with("train.workers", workers)
    tree["train"] |= {"simulated_workers": simulated, "concurrent_runs": at_once}
    tree["studies"]["digits"]["batch_sizes"] = [32, "largest"]
    if accepted:
        assert "largest" in check_params(tree, source="p").studies["digits"].batch_sizes
    else:
        with pytest.raises(InputError) as raised:
            check_params(tree, source="p")
        assert key_within(raised.value, "p") == "studies.digits.batch_sizes"
        assert "concurrent_runs" in str(raised.value)
        tree["studies"]["digits"]["recipe"] = {"concurrent_runs": 1}
        check_params(tree, source="p")
    tree["studies"]["digits"] |= {"batch_sizes": [32], "recipe": {}}
    check_params(tree, source="p")


@given(workers=st.integers(1, 64), simulated=st.integers(1, 64))
def test_workers_are_accepted_exactly_if_they_divide(workers: int, simulated: int) -> None:
    tree = digits_with("train.workers", workers)
    tree["train"]["simulated_workers"] = simulated
    tree["studies"]["digits"]["batch_sizes"] = [2 * simulated]
    if simulated % workers:
        with pytest.raises(InputError) as raised:
            check_params(tree, source="p")
        assert key_within(raised.value, "p") == "train.workers"
    else:
        assert check_params(tree, source="p").train.workers == workers


@given(batch=st.integers(2, 200), simulated=st.integers(1, 20))
def test_batches_are_accepted_if_every_worker_gets_two_images(batch: int, simulated: int) -> None:
    tree = digits_with("train.simulated_workers", simulated)
    tree["studies"]["digits"]["batch_sizes"] = [batch]
    if batch % simulated == 0 and batch >= 2 * simulated:
        assert check_params(tree, source="p").studies["digits"].batch_sizes == (batch,)
    else:
        with pytest.raises(InputError) as raised:
            check_params(tree, source="p")
        assert key_within(raised.value, "p") == "studies.digits.batch_sizes"


def test_a_study_changes_single_keys_of_a_section() -> None:
    """Laying `flip` over an augmentation keeps its padding; another schedule replaces the old one whole."""
    tree = digits_tree()
    tree["train"]["augmentation"] = {"crop_padding": 3}
    tree["train"]["schedule"] = {"name": "step", "milestones": [{"steps": 3}]}
    tree["studies"]["digits"]["recipe"] = {"augmentation": {"flip": True}, "schedule": {"name": "constant"}}
    params = check_params(tree, source="params.yaml")
    recipe = params.studies["digits"].effective_recipe(params.train)
    assert (recipe.augmentation.crop_padding, recipe.augmentation.flip) == (3, True)
    assert recipe.schedule.name == "constant"


def test_imagenet_weights_need_their_stem() -> None:
    tree = digits_tree()
    tree["finetune"] |= {"weights": "imagenet", "stem": "cifar"}
    with pytest.raises(InputError) as raised:
        check_params(tree, source="params.yaml")
    assert key_within(raised.value, "params.yaml: finetune") == "weights"


def test_a_frozen_backbone_needs_weights() -> None:
    tree = digits_tree()
    tree["finetune"] |= {"weights": "none", "trainable": "head"}
    with pytest.raises(InputError) as raised:
        check_params(tree, source="params.yaml")
    assert key_within(raised.value, "params.yaml: finetune") == "trainable"
    tree["finetune"]["weights"] = "own.pth"
    assert check_params(tree, source="params.yaml").finetune.trainable == "head"


def test_fine_tuning_takes_no_samples_of_the_noise_scale() -> None:
    """It has no place to report them."""
    tree = digits_tree()
    tree["finetune"] |= {"simulated_workers": 2, "noise_scale_steps": 5}
    with pytest.raises(InputError) as raised:
        check_params(tree, source="params.yaml")
    assert key_within(raised.value, "params.yaml: finetune") == "noise_scale_steps"
    tree["train"] |= {"simulated_workers": 2, "noise_scale_steps": tree["finetune"].pop("noise_scale_steps")}
    assert check_params(tree, source="params.yaml").train.noise_scale_steps == 5


@pytest.mark.parametrize(
    "scorer",
    [{}, {"name": "mean_confidence"}, {"name": "aum"}, {"name": "ensemble", "scorers": [{"name": "label_odds"}]}],
)
def test_a_fitted_head_has_no_training_to_read(scorer: dict[str, Any]) -> None:
    tree = digits_tree()
    tree["finetune"] |= {"weights": "own.pth", "trainable": "head"}
    tree["filter"].pop("scorer")
    tree["filter"] |= {"scorer": scorer} if scorer else {}
    with pytest.raises(InputError) as raised:
        check_params(tree, source="params.yaml")
    assert key_within(raised.value, "params.yaml") == "filter.scorer"


def test_with_folds_a_fitted_head_has_all_that_label_odds_reads() -> None:
    """Its probabilities are those of heads that were not fitted to the image."""
    tree = digits_tree()
    tree["finetune"] |= {"weights": "own.pth", "trainable": "head", "folds": 5}
    for scorer in ({"name": "label_odds"}, {"name": "ccs", "scorer": {"name": "label_odds"}}):
        tree["filter"]["scorer"] = scorer
        assert check_params(tree, source="params.yaml").finetune.folds == 5
    tree["filter"]["scorer"] = {"name": "ensemble", "scorers": [{"name": "label_odds"}, {"name": "mean_confidence"}]}
    with pytest.raises(InputError, match="mean_confidence needs a record of the training"):
        check_params(tree, source="params.yaml")


@pytest.mark.parametrize("folds", [1, 5])
def test_scorers_that_read_the_training_are_those_that_say_so(folds: int) -> None:
    read = {
        name: scorer.needs | (scorer.needs_without_folds if folds == 1 else set()) for name, scorer in SCORERS.items()
    }
    assert {name for name in SCORERS if needs_training(name, folds=folds)} == {
        name for name, needs in read.items() if any(need.startswith("training_") for need in needs)
    }
    assert folds > 1 or set(NEEDS_TRAINING) == {name for name in SCORERS if needs_training(name, folds=1)}


def test_a_warm_up_is_compared_only_with_equal_batches_and_data() -> None:
    tree = digits_tree()
    study = tree["studies"]["digits"]
    study["budget"] = {"epochs": 2}
    study["recipe"] = {"schedule": {"name": "constant", "warmup": {"steps": 10_000}}}
    check_params(tree, source="p")
    growing = {"name": "constant", "warmup": {"epochs": 3}}  # at 64 and less it fits
    study["recipe"] = {"schedule": growing, "lr_scaling": {"rule": "legw", "reference_batch_size": 128}}
    check_params(tree, source="p")
    study["recipe"]["lr_scaling"]["rule"] = "linear"
    with pytest.raises(InputError) as raised:
        check_params(tree, source="p")
    assert key_within(raised.value, "p") == "studies.digits.recipe.schedule.warmup"
