"""Keys of params.yaml that were renamed: refused in a file that is used, translated in stored parameters."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.params import check_params, load_params
from pipeline.config.renamed_keys import MOVED_KEYS, RENAMED_KEYS, with_moved_keys, with_new_keys, with_old_keys
from pipeline.config.study_plan import build_plan, plan_hash
from pipeline.errors import InputError
from tests.fixtures.params import digits_tree
from tests.fixtures.printed_errors import key_within

_PACKED = Path("docs/results/convergence/2026-11-22-convergence/params.yaml")


def _tree_with(path: str) -> tuple[dict[str, Any], str]:
    """A tree that has the key, or key with a value, of a pattern of the table alone, and the path of the key."""
    keys, _, value = path.replace("*", "mine").partition(": ")
    tree: Any = {keys.rpartition(".")[2]: value or 1}
    for section in reversed(keys.split(".")[:-1]):
        tree = {section: tree}
    return tree, keys


@pytest.mark.parametrize(("old", "new"), RENAMED_KEYS.items())
def test_an_old_key_in_a_file_is_an_error_that_names_the_new_one(old: str, new: str) -> None:
    tree, key = _tree_with(old)
    with pytest.raises(InputError) as raised:
        check_params(tree, source="p")
    assert key_within(raised.value, "p") == key
    assert new.split(".")[-1].split(": ")[-1] in str(raised.value)


@pytest.mark.parametrize(("old", "new"), RENAMED_KEYS.items())
def test_both_directions_translate_each_key(old: str, new: str) -> None:
    before, after = _tree_with(old)[0], _tree_with(new)[0]
    assert with_new_keys(before) == after
    assert with_new_keys(with_old_keys(after)) == after


@pytest.mark.parametrize(("old", "new"), MOVED_KEYS.items())
def test_a_moved_key_is_refused_in_files_and_translated_if_stored(old: str, new: str) -> None:
    tree, _ = _tree_with(old)
    with pytest.raises(InputError) as raised:
        check_params(tree, source="p")
    assert str(raised.value) == f"p: {old}: is now {new}; move it"
    moved = with_moved_keys(tree)
    assert moved == {**_tree_with(new)[0], old.split(".")[0]: {}}
    assert with_moved_keys(moved) == moved


def test_translation_reaches_lists_and_keeps_the_order_of_keys() -> None:
    stored = {
        "filter": {"quota": "overall", "scorer": {"name": "ensemble", "of": [{"name": "grid"}, {"space": "map"}]}}
    }
    current = with_new_keys(stored)
    scorers = [{"name": "grid"}, {"space": "embedding"}]
    assert current == {"filter": {"allocation": "overall", "scorer": {"name": "ensemble", "scorers": scorers}}}
    assert list(current["filter"]) == ["allocation", "scorer"]
    assert with_old_keys(current) == stored
    assert stored["filter"]["quota"] == "overall"


def test_values_that_only_look_like_old_ones_stay() -> None:
    tree = {"filter": {"scorer": {"space": "components"}}, "extract": {"neighbors": 1}, "networks": ["mirror"]}
    assert with_new_keys(tree) == tree == with_old_keys(tree)


def test_packed_parameters_are_read_with_their_old_keys() -> None:
    with pytest.raises(InputError):
        load_params(_PACKED)
    assert load_params(_PACKED, accept_old_keys=True).prepare.val_size == 0.1


def test_plans_registered_under_old_keys_keep_their_hashes() -> None:
    """The hash was made when the key was `filter_draws`."""
    params = check_params(digits_tree(), source="p")
    plan = build_plan("digits", params.studies["digits"], params.train, params.report)
    assert plan_hash(plan) == "fe8af948cadfe4a1554c26534f0634ff48add4c5dd2ba8f703ff84be55fa21dc"
