"""The test of the effective batch: its batch sizes, its place in the plan, and what is refused."""

from typing import Any

import pytest

from pipeline.config.batch_sizes import EquivalentBatch
from pipeline.config.params import Params, check_params
from pipeline.config.study_plan import build_plan, plan_hash
from pipeline.errors import InputError
from tests.fixtures.params import digits_tree


def _params(*, train: dict[str, Any] | None = None, **study: Any) -> Params:
    tree = digits_tree()
    tree["train"] |= {"simulated_workers": 2, **(train or {})}
    tree["studies"]["digits"] |= {"batch_sizes": [32, 128], **study}
    return check_params(tree, source="p")


def _plan(**study: Any) -> dict[str, Any]:
    params = _params(**study)
    return build_plan("digits", params.studies["digits"], params.train, params.report)


def test_sizes_are_s_squared_times_the_batch_in_whole_images() -> None:
    # A fifth of the labels of ten classes: s = 1 - .2 * 10 / 9.
    fifth = EquivalentBatch(gradient_scale=1 - 0.2 * 10 / 9)
    assert fifth.sizes((16, 64, 1024), 2) == {16: 10, 64: 38, 1024: 620}
    assert fifth.sizes((64, 1024), 8) == {64: 40, 1024: 616}
    assert EquivalentBatch(gradient_scale=0.5, batch_sizes=(64,)).sizes((16, 64), 4) == {64: 16}


def test_the_plan_states_scale_and_both_sizes_if_they_are_tested() -> None:
    stated = _plan(equivalent_batch={"gradient_scale": 0.5})["equivalent_batch_test"]
    assert stated == {
        "gradient_scale": 0.5,
        "arms": ["filtered", "full"],
        "sizes": {"32": 8, "128": 32},
        "equal": "steps",
        "paired_by": "seed",
        "difference": "t test and sign-flip test",
        "equivalence": "two one-sided t tests at the margin",
        "margin": 0.5,
        "confidence": 0.95,
    }
    assert _plan(equivalent_batch=None) == _plan()
    assert not any("equivalent" in key for key in _plan())


@pytest.mark.parametrize("change", [{"gradient_scale": 0.6}, {"gradient_scale": 0.5, "batch_sizes": [128]}], ids=str)
def test_every_part_changes_the_hash(change: dict[str, Any]) -> None:
    assert plan_hash(_plan(equivalent_batch=change)) != plan_hash(_plan(equivalent_batch={"gradient_scale": 0.5}))


@pytest.mark.parametrize(
    ("change", "key", "says"),
    [
        ({"equivalent_batch": {"gradient_scale": 1.0}}, "equivalent_batch.gradient_scale", "less than 1"),
        ({"equivalent_batch": {"gradient_scale": 0.99}}, "equivalent_batch.gradient_scale", "batch 32 is 32"),
        ({"equivalent_batch": {"gradient_scale": 0.2}}, "equivalent_batch", "32 with gradient_scale 0.2: 2 does not"),
        ({"equivalent_batch": {"gradient_scale": 0.5, "batch_sizes": [64]}}, "equivalent_batch.batch_sizes", "64"),
        ({"equivalent_batch": {"gradient_scale": 0.5}, "arms": ["full", "random"]}, "equivalent_batch", "add filtered"),
        (
            {"equivalent_batch": {"gradient_scale": 0.5},
             "recipe": {"batch_schedule": {"stages": [{"share": 0.5, "until": {"steps": 5}}]}}},
            "equivalent_batch", "batch_schedule",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_tested_is_one_clear_line(change: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(InputError) as raised:
        _params(**change)
    message = str(raised.value)
    assert f"p: studies.digits.{key}: " in message.replace("studies.digits: equivalent", "studies.digits.equivalent")
    assert says in message
    assert "\n" not in message
