from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.artifacts import runs as runs_module
from pipeline.artifacts.runs import read_runs
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.runs.study_tables import HISTORY_SCHEMA, RUNS_SCHEMA
from tests.fixtures.report import params_with, write_study


def test_what_is_read_is_what_training_writes() -> None:
    assert set(runs_module._RUN_COLUMNS) <= set(RUNS_SCHEMA.names)
    assert {*runs_module._HISTORY_COLUMNS, *runs_module._LATER_HISTORY_COLUMNS} <= set(HISTORY_SCHEMA.names)


def test_each_cell_has_its_own_history(tmp_path: Path) -> None:
    data = DataPaths(root=tmp_path)
    write_study(data, params_with(), "digits")
    rows = read_runs(data.runs("digits"), data.history("digits"))
    assert len(rows) == 27
    row = next(row for row in rows if row["seed"] == 2 and row["batch_size"] == 128)
    assert [examples for examples, _ in row["history"]] == [128, 15 * 128, 45 * 128]
    assert [loss for _, loss in row["history"]] == pytest.approx([2.5, 2.3 / 15 + 0.2, 2.3 / 45 + 0.2])


def test_a_history_without_test_losses_is_of_an_earlier_version(tmp_path: Path) -> None:
    data = DataPaths(root=tmp_path)
    write_study(data, params_with(accuracy_every={"steps": 1}), "digits")
    file = data.history("digits")
    measured = read_runs(data.runs("digits"), file)
    write_parquet(file, read_parquet(file).drop_columns(["test_loss"]))
    earlier = read_runs(data.runs("digits"), file)
    assert {len(row["test_loss"]) for row in measured} == {2}
    assert earlier == [{**row, "test_loss": ()} for row in measured]


@pytest.mark.parametrize(
    "wrong",
    [
        {"arm": "best"}, {"arm": None}, {"top1": None}, {"top1": float("nan")}, {"top1": 90.0}, {"loss": None},
        {"loss": float("inf")}, {"seed": None}, {"learning_rate": float("nan")}, {"filter_network": "no network"},
    ],
    ids=lambda wrong: str(wrong),
)  # fmt: skip
def test_rows_that_no_study_gives_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    data = DataPaths(root=tmp_path)
    write_study(data, params_with(seeds=[0]), "digits", lambda row: {"top1": 0.5, **wrong})
    with pytest.raises(InputError) as refused:
        read_runs(data.runs("digits"), data.history("digits"))
    assert refused.value.key == str(data.runs("digits"))


@pytest.mark.parametrize("replaced", ["runs", "history"])
@pytest.mark.parametrize(("first", "then"), [([0, 1], [0]), ([0], [0, 1])])
def test_tables_of_two_runs_of_the_study_are_never_mixed(
    tmp_path: Path, replaced: str, first: list[int], then: list[int]
) -> None:
    old, new = DataPaths(root=tmp_path / "old"), DataPaths(root=tmp_path / "new")
    write_study(old, params_with(seeds=first), "digits")
    write_study(new, params_with(seeds=then), "digits")
    getattr(new, replaced)("digits").replace(getattr(old, replaced)("digits"))
    with pytest.raises(InputError) as refused:
        read_runs(old.runs("digits"), old.history("digits"))
    assert refused.value.key == str(old.history("digits"))


def test_a_run_diverged_at_once_or_skipped_needs_no_history(tmp_path: Path) -> None:
    data = DataPaths(root=tmp_path)
    write_study(data, params_with(seeds=[0]), "digits", lambda row: {"status": "diverged", "reason": "not finite"})
    write_parquet(data.history("digits"), read_parquet(data.history("digits")).slice(0, 0))
    assert {row["history"] for row in read_runs(data.runs("digits"), data.history("digits"))} == {()}


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    data = DataPaths(root=tmp_path)
    write_study(data, params_with(), "digits")
    write_parquet(data.runs("digits"), read_parquet(data.runs("digits")).slice(0, 0))
    with pytest.raises(InputError) as refused:
        read_runs(data.runs("digits"), data.history("digits"))
    assert refused.value.key == str(data.runs("digits"))


@pytest.mark.parametrize(("steps", "read"), [((1, 15, 45), ()), ((3, 20, 50), (3, 20, 50))])
def test_steps_are_read_where_images_do_not_say_them(
    tmp_path: Path, steps: tuple[int, ...], read: tuple[int, ...]
) -> None:
    """A run that began with smaller batches has more steps than images / batch size."""
    data = DataPaths(root=tmp_path)
    write_study(data, params_with(), "digits")
    file = data.history("digits")
    records = [{**record, "step": step} for record, step in zip(read_parquet(file).to_pylist(), cycle(steps))]
    write_parquet(file, pa.Table.from_pylist(records))
    assert {row["history_steps"] for row in read_runs(data.runs("digits"), file)} == {read}
