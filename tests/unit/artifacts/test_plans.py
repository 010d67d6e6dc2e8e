"""Plans in the ledger: added with their dates, never replaced."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.artifacts.plans import (
    copy_registered_plans,
    read_registered_plans,
    read_run_dates,
    register_plan,
    utc_timestamp,
    write_run_dates,
)
from pipeline.errors import InputError

_START = datetime(2026, 11, 23, 18, 45, tzinfo=UTC)


@given(plans=st.lists(st.sampled_from([{"seeds": [0]}, {"seeds": [0, 1]}, {"match": "epochs"}]), max_size=6))
def test_each_change_adds_a_statement_and_earlier_ones_stay(
    plans: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("plans")
    expected: list[dict[str, object]] = []
    files: dict[str, bytes] = {}
    for hour, plan in enumerate(plans):
        new = register_plan(folder, plan, _START + timedelta(hours=hour))
        assert new == (expected[-1:] != [plan])
        expected += [plan] if new else []
        now = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert files.items() <= now.items()
        files = now
    assert [statement.plan for statement in read_registered_plans(folder)] == expected


def test_a_date_is_utc_wherever_it_is_taken() -> None:
    there = datetime(2026, 11, 24, 1, 45, tzinfo=timezone(timedelta(hours=7)))
    assert utc_timestamp(there) == utc_timestamp(_START) == "2026-11-23T18:45:00.000000Z"


@pytest.mark.parametrize("harm", [('"seeds": [', '"seeds": [9, '), ('"date"', '"day"'), ("{", "")])
def test_a_plan_that_was_changed_by_hand_is_refused(harm: tuple[str, str], tmp_path: Path) -> None:
    register_plan(tmp_path, {"seeds": [0, 1]}, _START)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace(*harm, 1))
    with pytest.raises(InputError) as refused:
        read_registered_plans(tmp_path)
    assert refused.value.key == str(path)


def test_copies_of_two_ledgers_hold_the_statements_of_both(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    register_plan(there / "a", {"seeds": [0]}, _START)
    register_plan(here / "a", {"seeds": [1]}, _START + timedelta(days=1))
    register_plan(there / "b", {"seeds": [0]}, _START)
    assert copy_registered_plans(there, here) == 2
    assert copy_registered_plans(there, here) == 0
    assert [statement.plan for statement in read_registered_plans(here / "a")] == [{"seeds": [0]}, {"seeds": [1]}]
    assert copy_registered_plans(tmp_path / "nowhere", here) == 0


def test_a_run_with_two_dates_has_none(tmp_path: Path) -> None:
    """A person sees the first, and most parsers take the last."""
    date = "2026-11-23T18:45:12.000000Z"
    write_run_dates(tmp_path, {"a": date, "b": None})
    assert read_run_dates(tmp_path) == {"a": date, "b": None}
    path = tmp_path / "runs.json"
    path.write_text(path.read_text().replace("{", '{"a": "2000-01-01T00:00:00.000000Z",', 1))
    with pytest.raises(InputError, match=r"runs\.json: has the key a twice"):
        read_run_dates(tmp_path)
