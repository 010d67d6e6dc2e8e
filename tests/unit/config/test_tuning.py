"""Searches in params.yaml: what a trial's study becomes, and what is refused."""

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.config.params import Params, check_params
from pipeline.config.search_checks import check_space
from pipeline.config.study import Study
from pipeline.config.tuning import Domain, apply_values
from pipeline.errors import InputError
from tests.fixtures.golden import check_golden, setting
from tests.fixtures.params import digits_tree
from tests.fixtures.printed_errors import key_within

GOOD = {
    "study": "digits",
    "space": {
        "learning_rates": {"log_uniform": [1e-3, 1.0]},
        "batch_sizes": {"choices": [64, 128]},
        "recipe.optimizer": {"choices": [{"name": "lamb"}, {"name": "sgd", "momentum": 0.5}]},
        "recipe.schedule.warmup.steps": {"int_uniform": [0, 10]},
        "recipe.label_smoothing": {"uniform": [0, 0.2]},
    },
    "sampler": {"name": "tpe", "n_startup_trials": 4},
    "max_concurrent_trials": 4,
    "trials": 8,
    "epochs": 4,
    "pruner": {"name": "threshold", "kind": "absolute"},
}


def _params(**changes: Any) -> Params:
    tree = digits_tree()
    search = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    return check_params({**tree, "tuning": {"mine": search}}, source="params.yaml")


def _check_space(**space: Any) -> None:
    params = _params(space=space, sampler={"name": "random"})
    check_space("tuning.mine", params.tuning["mine"], params.studies["digits"], params.train)


def test_more_seeds_than_the_study_has_are_refused() -> None:
    params = _params(seeds=4)
    with pytest.raises(InputError, match=r"tuning.mine.seeds: 4 is more than the 3 seeds of study digits"):
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
        {"learning_rates": {"uniform": [1, 3]}, "batch_sizes": {"int_uniform": [16, 64]}},
    ],
)
def test_values_that_some_trial_can_have_fit(space: dict[str, Any]) -> None:
    _check_space(**space)


@pytest.mark.parametrize(
    ("space", "key", "inner"),
    [
        ({"learning_rates": {"choices": [0.1, -0.1]}}, "learning_rates", "learning_rates.0"),
        ({"recipe.momentum": {"uniform": [0, 0.9]}}, "recipe.momentum", "recipe.momentum"),
        # The study has SGD, but no trial has.
        (
            {"recipe.optimizer": {"choices": [{"name": "lamb"}]}, "recipe.optimizer.momentum": {"choices": [0.9]}},
            "recipe.optimizer.momentum",
            "recipe.optimizer.momentum",
        ),
        ({"batch_sizes": {"uniform": [16, 64]}}, "batch_sizes", "batch_sizes.0"),
        ({"batch_sizes": {"log_uniform": [16, 17]}}, "batch_sizes", "batch_sizes.0"),
        ({"recipe.simulated_workers": {"uniform": [1, 2]}}, "recipe.simulated_workers", "recipe.simulated_workers"),
    ],
)
def test_values_that_no_trial_can_have_do_not(space: dict[str, Any], key: str, inner: str) -> None:
    with pytest.raises(InputError) as refused:
        _check_space(**space)
    assert refused.value.key == f"tuning.mine.space.{key}"
    assert str(refused.value).split(": ")[2] == inner


@given(ends=st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)).map(sorted))
def test_the_inner_point_of_a_range_is_inside_and_not_whole(ends: list[float]) -> None:
    low, high = ends
    assume(high - low > 1e-3)
    (inner,) = Domain(uniform=(low, high)).inner
    assert low < inner < high
    assert not inner.is_integer()


def test_a_trial_overrides_the_first_values_of_the_study() -> None:
    params = _params()
    values = {
        "learning_rates": 0.3,
        "recipe.optimizer": {"name": "lamb"},
        "recipe.optimizer.beta1": 0.8,
        "recipe.schedule.warmup.steps": 3,
    }
    study = Study.model_validate_json(json.dumps(params.tuning["mine"].trial_study(params.studies["digits"], values)))
    recipe = study.effective_recipe(params.train)
    assert (study.arms, study.batch_sizes, study.seeds) == (("full",), (32,), (0,))
    assert (study.learning_rates, study.budget.epochs) == ((0.3,), 4)
    assert recipe.optimizer.model_dump()["beta1"] == 0.8
    assert recipe.schedule.model_dump()["warmup"]["steps"] == 3
    assert recipe.augmentation.crop_padding == 1


_HALVING = {"name": "successive_halving"}
_BAD: list[tuple[dict[str, Any], str]] = [
    ({"study": "cifar"}, "tuning.mine.study"),
    ({"trials": None}, "tuning.mine: trials"),
    ({"space": {}}, "tuning.mine.space"),
    ({"space": {"seeds": {"choices": [1, 2]}}}, "tuning.mine: space"),
    ({"space": {"learning_rates": {"uniform": [0.2, 0.1]}}}, "tuning.mine.space.learning_rates: uniform"),
    ({"space": {"learning_rates": {"log_uniform": [0, 0.1]}}}, "tuning.mine.space.learning_rates: log_uniform"),
    ({"space": {"learning_rates": {}}}, "tuning.mine.space.learning_rates"),
    ({"space": {"weight_decays": {"choices": [0, 0]}}}, "tuning.mine.space.weight_decays"),
    ({"sampler": {"name": "grid"}}, "tuning.mine: space"),
    ({"sampler": {"name": "grid"}, "space": {"batch_sizes": {"choices": [64, 128]}}}, "tuning.mine: trials"),
    (
        {"sampler": {"name": "grid"}, "trials": 8, "space": {"recipe.seed": {"int_uniform": [2, 1_000_000_000]}}},
        "tuning.mine: space",
    ),
    ({"max_concurrent_trials": None}, "tuning.mine: sampler"),
    ({"max_concurrent_trials": 9}, "tuning.mine: sampler"),
    ({"max_concurrent_trials": 5}, "tuning.mine: sampler"),  # with 4 it is accepted
    ({"sampler": {"name": "tpe"}, "max_concurrent_trials": None, "scheduler": "sequential"}, "tuning.mine: sampler"),
    ({"pruner": _HALVING, "max_concurrent_trials": None}, "tuning.mine: sampler"),
    ({"pruner": {"name": "hyperband"}}, "tuning.mine: trials"),
    (
        {"pruner": _HALVING, "scheduler": "sequential", "max_concurrent_trials": None},
        "tuning.mine: scheduler",
    ),
    ({"pruner": _HALVING, "max_concurrent_trials": 2}, "tuning.mine: max_concurrent_trials"),
    ({"scheduler": "sequential", "max_concurrent_trials": 2}, "tuning.mine: max_concurrent_trials"),
    (
        {"pruner": _HALVING, "max_concurrent_trials": None, "epochs": 2, "sampler": {"name": "random"}},
        "tuning.mine: epochs",
    ),
    (
        {"pruner": _HALVING, "max_concurrent_trials": None, "trials": 2, "sampler": {"name": "random"}},
        "tuning.mine: trials",
    ),
    (
        {
            "pruner": {"name": "successive_halving", "factor": 4}, "max_concurrent_trials": None, "trials": None,
            "sampler": {"name": "grid"}, "space": {"batch_sizes": {"int_uniform": [62, 64]}},
        },
        "tuning.mine: trials",
    ),
    (
        {"pruner": {"name": "hyperband"}, "max_concurrent_trials": None, "trials": None, "epochs": 2},
        "tuning.mine: epochs",
    ),
    ({"pruner": {"name": "threshold"}}, "tuning.mine.pruner.kind"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "keys"), _BAD)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], keys: str) -> None:
    with pytest.raises(InputError) as refused:
        _params(**changes)
    assert str(refused.value).startswith(f"params.yaml: {keys}: ")


def test_what_cannot_be_meant_is_explained() -> None:
    """With value and fix, as far as the words are not pydantic's, which differ between its versions."""
    lines = []
    for changes, _ in _BAD:
        with pytest.raises(InputError) as refused:
            _params(**changes)
        given = ", ".join(setting(key, ... if value is None else value) for key, value in changes.items())
        lines.append(f"{given} -> {refused.value}\n")
    check_golden("tuning_errors.txt", "".join(line for line in lines if " is not allowed: " not in line))


_LOCAL = {"start": {"steps": 1}, "period": 5}


@pytest.mark.parametrize(
    ("workers", "recipe", "refused_key"),
    [
        (4, {"post_local_sgd": _LOCAL}, "post_local_sgd"),
        ("auto", {"communication": {"compression": "bf16"}}, "communication.compression"),
        (2, {"communication": {"hierarchical": True}}, "communication.hierarchical"),
    ],
)
def test_a_study_that_no_trial_can_train_is_refused(
    workers: int | str, recipe: dict[str, Any], refused_key: str
) -> None:
    """Before anything is trained, whether the study has the key or the search gives it."""
    params = _params(space={"learning_rates": {"choices": [0.1]}}, sampler={"name": "random"})
    study = params.studies["digits"]
    four = {**study.recipe, "simulated_workers": 4, "workers": workers}
    asked = study.model_copy(update={"recipe": {**four, **recipe}})
    with pytest.raises(InputError) as refused:
        check_space("tuning.mine", params.tuning["mine"], asked, params.train)
    assert refused.value.key == "tuning.mine.study"
    assert f": {refused_key}: " in str(refused.value)
    ((key, value),) = recipe.items()
    space = {"recipe.simulated_workers": {"choices": [4]}, f"recipe.{key}": {"choices": [value]}}
    params = _params(space=space, sampler={"name": "random"})
    with pytest.raises(InputError) as refused:
        check_space(
            "tuning.mine", params.tuning["mine"], study.model_copy(update={"recipe": four}), params.train
        )  # fmt: skip
    assert refused.value.key == f"tuning.mine.space.recipe.{key}"
    assert f": {refused_key}: " in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "key", ["workers", "timeout_seconds", "checkpoint", "checkpoint.steps", "communication.bucket_mib"]
)
def test_how_a_run_is_done_is_not_searched(key: str) -> None:
    with pytest.raises(InputError) as refused:
        _params(space={f"recipe.{key}": {"choices": [2, 4]}}, sampler={"name": "random"})
    assert key_within(refused.value, "params.yaml: tuning.mine") == "space"
    assert f" recipe.{key} " in str(refused.value)


def test_a_searched_batch_size_keeps_its_own_budget_alone() -> None:
    study: dict[str, Any] = {
        "batch_sizes": [32, 128],
        "budget_by_batch_size": {"32": {"steps": 9}, "128": {"steps": 5}},
    }
    apply_values(study, {"batch_sizes": 128})
    assert study == {"batch_sizes": [128], "budget_by_batch_size": {"128": {"steps": 5}}}
    apply_values(study, {"batch_sizes": 64})
    assert study["budget_by_batch_size"] is None
