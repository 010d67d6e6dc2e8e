"""Searches in params.yaml: what a trial's study becomes, and what is refused."""

import json
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from made_up import ROOT
from ruamel.yaml import YAML

from pipeline.config.params import Params, check_params
from pipeline.config.study import Study
from pipeline.config.tuning import Domain, check_space
from pipeline.errors import InputError

GOOD = {
    "study": "digits",
    "space": {
        "learning_rates": {"log_uniform": [1e-3, 1.0]},
        "batch_sizes": {"choices": [64, 128]},
        "recipe.optimizer": {"choices": [{"name": "lamb"}, {"name": "sgd", "momentum": 0.5}]},
        "recipe.schedule.warmup.steps": {"integers": [0, 10]},
        "recipe.label_smoothing": {"uniform": [0, 0.2]},
    },
    "sampler": {"name": "tpe", "startup_trials": 4},
    "places": 4,
    "trials": 8,
    "epochs": 4,
    "rule": {"name": "lead", "kind": "absolute"},
}


def _params(**changes: Any) -> Params:
    tree = YAML(typ="safe").load(ROOT / "tests" / "params.yaml")
    search = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    return check_params({**tree, "tuning": {"mine": search}}, source="params.yaml")


def _check_space(**space: Any) -> None:
    params = _params(space=space, sampler={"name": "random"})
    check_space("tuning.mine", params.tuning["mine"], params.studies["digits"], params.train)


@pytest.mark.parametrize(
    "space",
    [
        GOOD["space"],
        # Of LAMB alone and of the other choice alone; the digits study has SGD.
        {
            "recipe.optimizer": {"choices": [{"name": "lamb"}, {"name": "sgd"}]},
            "recipe.optimizer.beta1": {"uniform": [0.8, 0.95]},
            "recipe.optimizer.momentum": {"uniform": [0.1, 0.9]},
        },
        {"learning_rates": {"uniform": [1, 3]}, "batch_sizes": {"integers": [16, 64]}},
    ],
)
def test_values_that_some_trial_can_have_fit(space: dict[str, Any]) -> None:
    _check_space(**space)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (
            {"learning_rates": {"choices": [0.1, -0.1]}},
            "tuning.mine.space.learning_rates: -0.1 does not fit: learning_rates.0: -0.1 is not allowed",
        ),
        (
            {"recipe.momentum": {"uniform": [0, 0.9]}},
            "tuning.mine.space.recipe.momentum: 0.0 does not fit: recipe.momentum: unknown key",
        ),
        # The study has SGD, but no trial has.
        (
            {"recipe.optimizer": {"choices": [{"name": "lamb"}]}, "recipe.optimizer.momentum": {"choices": [0.9]}},
            "tuning.mine.space.recipe.optimizer.momentum: 0.9 does not fit: recipe.optimizer.momentum: unknown key",
        ),
        (
            {"batch_sizes": {"uniform": [16, 64]}},
            "space.batch_sizes: 40.5 does not fit: batch_sizes.0: 40.5 is ",
        ),
        ({"batch_sizes": {"log_uniform": [16, 17]}}, "batch_sizes: 16.5 does not fit: batch_sizes.0: 16.5 "),
        ({"recipe.simulated_workers": {"uniform": [1, 2]}}, "a valid integer; give integers in place of the range"),
    ],
)
def test_values_that_no_trial_can_have_do_not(space: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        _check_space(**space)
    assert said in str(refused.value)


@given(ends=st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)).map(sorted))
def test_the_inner_point_of_a_range_is_between_its_ends_and_not_whole(ends: list[float]) -> None:
    low, high = ends
    assume(high - low > 1e-3)
    (inner,) = Domain(uniform=(low, high)).inner
    assert low < inner < high
    assert not inner.is_integer()


def test_a_trial_has_the_first_values_of_the_study_and_its_own_over_them() -> None:
    params = _params()
    values = {
        "learning_rates": 0.3,
        "recipe.optimizer": {"name": "lamb"},
        "recipe.optimizer.beta1": 0.8,
        "recipe.schedule.warmup.steps": 3,
    }
    study = Study.model_validate_json(json.dumps(params.tuning["mine"].applied(params.studies["digits"], values)))
    recipe = study.effective_recipe(params.train)
    assert (study.arms, study.batch_sizes, study.seeds) == (("full",), (32,), (0,))
    assert (study.learning_rates, study.budget.epochs) == ((0.3,), 4)
    assert recipe.optimizer.model_dump()["beta1"] == 0.8
    assert recipe.schedule.model_dump()["warmup"]["steps"] == 3
    assert recipe.augmentation.crop_padding == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"study": "cifar"}, "tuning.mine.study: cifar is not one of studies ['digits']; choose one of them"),
        ({"trials": None}, "trials: missing; say how many"),
        ({"space": {}}, "tuning.mine.space: {} is not allowed"),
        ({"space": {"seeds": {"choices": [1, 2]}}}, "space: seeds cannot be searched; use models, "),
        ({"space": {"learning_rates": {"uniform": [0.2, 0.1]}}}, "uniform: [0.2, 0.1] is no range; give [lowest,"),
        ({"space": {"learning_rates": {"log_uniform": [0, 0.1]}}}, "log_uniform: 0 has no logarithm; give bounds"),
        ({"space": {"learning_rates": {}}}, "give exactly one of choices, uniform, log_uniform or integers"),
        ({"space": {"weight_decays": {"choices": [0, 0]}}}, "choices names a value twice; remove one"),
        ({"sampler": {"name": "grid"}}, "space: learning_rates is a range, of which there is no grid; give choices"),
        (
            {"sampler": {"name": "grid"}, "space": {"batch_sizes": {"choices": [64, 128]}}},
            "trials: 8, but the grid has 2 points; give at most as many",
        ),
        (
            {"sampler": {"name": "grid"}, "trials": 8, "space": {"recipe.seed": {"integers": [2, 1_000_000_000]}}},
            "space: a grid of 1e+09 points is too large; give at most 100,000, or random",
        ),
        ({"places": None}, "sampler: tpe learns once 4 trials have ended, and when the last of 8 starts, 0 have; give"),
        ({"places": 9}, "when the last of 8 starts, 0 have; give fewer places or startup_trials, or take random"),
        ({"places": 5}, "when the last of 8 starts, 3 have"),
        ({"sampler": {"name": "tpe"}, "places": None, "way": "sequential"}, "once 10 trials have ended"),
        ({"rule": {"name": "successive_halving"}, "places": None}, "and successive_halving starts all at once; take"),
        ({"rule": {"name": "hyperband"}}, "trials: hyperband has a number of its own; remove the key"),
        ({"rule": {"name": "successive_halving"}, "way": "sequential", "places": None}, "successive_halving compares"),
        ({"rule": {"name": "successive_halving"}, "places": 2}, "places: rule successive_halving has its own number"),
        ({"way": "sequential", "places": 2}, "places: way sequential has its own number of trials in the race"),
        (
            {"rule": {"name": "successive_halving"}, "places": None, "epochs": 2, "sampler": {"name": "random"}},
            "epochs: 2 is less than rule.factor 3, so that successive_halving would drop no trial; give at least 3",
        ),
        (
            {"rule": {"name": "successive_halving"}, "places": None, "trials": 2, "sampler": {"name": "random"}},
            "trials: 2 is less than rule.factor 3, so that successive_halving would drop no trial; give at least 3",
        ),
        (
            {
                "rule": {"name": "successive_halving", "factor": 4}, "places": None, "trials": None,
                "sampler": {"name": "grid"}, "space": {"batch_sizes": {"integers": [62, 64]}},
            },
            "trials: 3 is less than rule.factor 4",
        ),
        (
            {"rule": {"name": "hyperband"}, "places": None, "trials": None, "epochs": 2},
            "epochs: 2 is less than rule.factor 3, so that hyperband would drop no trial; give at least 3",
        ),
        ({"rule": {"name": "lead"}}, "tuning.mine.rule.kind: missing; add it"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        _params(**changes)
    assert said in str(refused.value)


_LOCAL = {"start": {"steps": 1}, "period": 5}


@pytest.mark.parametrize(
    ("workers", "recipe", "said"),
    [
        (4, {"post_local_sgd": _LOCAL}, "post_local_sgd: a trial is laid down after every epoch"),
        (
            "auto",
            {"communication": {"compression": "bf16"}},
            "communication.compression: bf16, but each worker",
        ),
        (
            2,
            {"communication": {"hierarchical": True}},
            "communication.hierarchical: true, but the processes",
        ),
    ],
)
def test_a_study_that_no_trial_can_stand_for_is_refused_as_is_a_search_for_it(
    workers: int | str, recipe: dict[str, Any], said: str
) -> None:
    """Before anything is trained."""
    params = _params(space={"learning_rates": {"choices": [0.1]}}, sampler={"name": "random"})
    study = params.studies["digits"]
    four = {**study.recipe, "simulated_workers": 4, "workers": workers}
    asked = study.model_copy(update={"recipe": {**four, **recipe}})
    with pytest.raises(InputError) as refused:
        check_space("tuning.mine", params.tuning["mine"], asked, params.train)
    assert str(refused.value).startswith(f"tuning.mine.study: digits cannot be searched: {said}")
    ((key, value),) = recipe.items()
    space = {"recipe.simulated_workers": {"choices": [4]}, f"recipe.{key}": {"choices": [value]}}
    wanted = _params(space=space, sampler={"name": "random"})
    with pytest.raises(InputError) as refused:
        check_space(
            "tuning.mine", wanted.tuning["mine"], study.model_copy(update={"recipe": four}), wanted.train
        )  # fmt: skip
    assert str(refused.value).startswith(f"tuning.mine.space.recipe.{key}: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "key", ["workers", "timeout_seconds", "checkpoint", "checkpoint.steps", "communication.bucket_mib"]
)
def test_how_a_run_is_done_is_not_searched(key: str) -> None:
    said = rf"space: recipe\.{re.escape(key)} says how a run is done and decides no accuracy"
    with pytest.raises(InputError, match=said):
        _params(space={f"recipe.{key}": {"choices": [2, 4]}}, sampler={"name": "random"})
