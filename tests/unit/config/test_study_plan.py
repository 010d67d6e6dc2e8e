"""A study's plan: its values, its hash, and what differs between two."""

import hashlib
import json
import subprocess
from typing import Any

import pytest

from pipeline.config.params import Params, check_params
from pipeline.config.study_plan import build_plan, diff_plans, plan_hash
from pipeline.errors import InputError
from tests.fixtures.params import digits_tree

_TEXT = {"question": "Does it help?", "hypotheses": ["It does.", "It does not."], "rate_selection": "On val, in May."}


def _params(*, report: dict[str, Any] | None = None, train: dict[str, Any] | None = None, **study: Any) -> Params:
    tree = digits_tree()
    tree["studies"]["digits"] |= study
    tree["report"] |= report or {}
    tree["train"] |= train or {}
    return check_params(tree, source="p")


def _plan(**changes: Any) -> dict[str, Any]:
    params = _params(**changes)
    return build_plan("digits", params.studies["digits"], params.train, params.report)


def test_a_bound_of_relabels_is_part_of_the_plan_if_there_is_one() -> None:
    arms = ["full", "relabeled"]
    assert _plan(arms=arms, relabel_above=0.5)["relabel_above"] == 0.5
    assert "relabel_above" not in _plan(arms=arms)


def test_it_holds_what_is_decided_before_the_runs() -> None:
    plan = _plan(plan=_TEXT, looks=[2, 3])
    recipe = plan.pop("recipe")
    assert (recipe["optimizer"]["name"], recipe["schedule"]["warmup"]) == ("sgd", {"steps": 5})
    assert plan == {
        "study": "digits",
        **_TEXT,
        "models": ["resnet18"],
        "arms": ["full", "filtered", "random"],
        "filter_network": "resnet18",
        "filter_draws": 1,
        "batch_sizes": [32, 128, 512],
        "learning_rates": [0.02],
        "weight_decays": [5e-4],
        "seeds": [0, 1, 2],
        "looks": [2, 3],
        "budget": {"steps": 40},
        "match": "steps",
        "primary_test": {
            "arms": ["filtered", "random"],
            "paired_by": "seed",
            "difference": "t test",
            "equivalence": "two one-sided t tests at the margin",
            "margin": 0.5,
            "confidence": 0.95,
        },
        "stopping_rule": "first look that decides",
    }


def test_a_study_without_the_two_arms_has_no_primary_test() -> None:
    assert "primary_test" not in _plan(arms=["full", "filtered"])
    assert _plan()["stopping_rule"] == "after all seeds"


def test_the_hash_is_the_sha256_of_canonical_json() -> None:
    """`sha256sum` of the text that the RFC on canonical JSON (8785) gives for it."""
    plan = {"seeds": [0, 1], "question": "größer?", "budget": {"steps": 40}, "arms": ["full"]}
    text = '{"arms":["full"],"budget":{"steps":40},"question":"größer?","seeds":[0,1]}'
    done = subprocess.run(["sha256sum"], input=text.encode(), capture_output=True, check=True)
    assert plan_hash(plan) == done.stdout.decode().split()[0] == hashlib.sha256(text.encode()).hexdigest()
    assert plan_hash(json.loads(json.dumps(plan, indent=9))) == plan_hash(plan)


@pytest.mark.parametrize(
    "change",
    [
        {"plan": _TEXT},
        {"plan": {**_TEXT, "rate_selection": "On test."}},
        {"seeds": [0, 1]},
        {"arms": ["full", "random"]},
        {"batch_sizes": [32]},
        {"learning_rates": [0.03]},
        {"match": "epochs"},
        {"budget": {"steps": 41}},
        {"looks": [2, 3]},
        {"recipe": {"label_smoothing": 0.1}},
        {"train": {"label_smoothing": 0.1}},
        {"report": {"margin": 0.4}},
        {"report": {"confidence": 0.9}},
        {"report": {"primary": "full"}},
    ],
    ids=str,
)
def test_every_decision_changes_the_hash(change: dict[str, Any]) -> None:
    assert plan_hash(_plan(**change)) != plan_hash(_plan())


@pytest.mark.parametrize(
    "change",
    [
        {"keep_weights": "all"},
        {"needs": "filter/resnet18"},
        {"recipe": {"clip_norm": None}},
        {"recipe": {"label_smoothing": 0.0}},
        {"report": {"gallery_images": 9}},
        {"train": {"concurrent_runs": "auto"}},
        {"recipe": {"concurrent_runs": 2}},
    ],
    ids=str,
)
def test_what_decides_no_result_does_not(change: dict[str, Any]) -> None:
    assert plan_hash(_plan(**change)) == plan_hash(_plan())


def test_lines_that_changed_name_the_key_and_both_values() -> None:
    before, after = _plan(plan=_TEXT), _plan(seeds=[0, 1], recipe={"schedule": {"name": "constant"}}, looks=[2])
    assert diff_plans(before, before) == []
    assert diff_plans({"seeds": 4, "a": {"b": 1}}, {"seeds": 6, "a": {"b": 2}, "c": "x"}) == [
        "seeds 4 -> 6", "a.b 1 -> 2", 'c none -> "x"',
    ]  # fmt: skip
    lines = diff_plans(before, after)
    assert {
        "seeds [0, 1, 2] -> [0, 1]", "looks none -> [2]", 'question "Does it help?" -> none',
        'recipe.schedule.name "cosine" -> "constant"',
    } <= set(lines)  # fmt: skip


def test_budgets_by_batch_size_and_what_is_equal_are_part_of_it() -> None:
    sizes = {"budget_by_batch_size": {128: {"steps": 10}}, "equal_across": "arms"}
    plan = _plan(**sizes)
    assert (plan["budget_by_batch_size"], plan["equal_across"]) == ({"128": {"steps": 10}}, "arms")
    assert plan_hash(json.loads(json.dumps(plan))) == plan_hash(plan) != plan_hash(_plan())
    assert _plan(equal_across="sizes")["equal_across"] == "sizes"
    assert not {"budget_by_batch_size", "equal_across", "x_axis"} & set(_plan(x_axis="steps"))


@pytest.mark.parametrize(
    ("change", "key", "says"),
    [
        ({"budget_by_batch_size": {64: {"steps": 10}}}, "budget_by_batch_size", "64 is not one of batch_sizes"),
        ({"budget_by_batch_size": {128: {"steps": 0}}}, "budget_by_batch_size", "more than 0"),
        ({"budget_by_batch_size": {128: {"steps": 10}}, "equal_across": "sizes"}, "equal_across", "write arms"),
    ],
)
def test_budgets_that_do_not_fit_are_one_clear_line(change: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as raised:
        _params(**change)
    assert f"studies.digits: {key}" in str(raised.value) or f"studies.digits.{key}" in str(raised.value)
    assert "\n" not in str(raised.value)
