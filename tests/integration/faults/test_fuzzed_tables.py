"""Any table or record of other people's results, with any value in any place, is read or refused in one line.

Changed bytes of a Parquet file are damage that its format shows. Here the file is sound, and its values are others.
FUZZ is the number of changes that each file gets; `make campaign-fuzz` sets 5,000.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import strategies as st

from pipeline.__main__ import main
from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.prepared import load_prepared
from pipeline.artifacts.recorded import check_recorded
from pipeline.artifacts.runs import read_runs
from pipeline.artifacts.stage_inputs import report_inputs
from pipeline.paths import DataPaths
from pipeline.reporting.inputs import load_report_inputs
from pipeline.runs.arm_rows import read_decisions
from pipeline.stats.runs import run_from_row
from tests.fixtures.experiments import run_rows, write_experiment
from tests.fixtures.fuzzing import assert_read_or_refused, fuzz_file
from tests.fixtures.records import write_archive_record
from tests.fixtures.report import params_with, write_artifacts

_NETWORK = "resnet18"
_PARAMS = params_with([_NETWORK])
_TEXTS = ["", "evil", "full", "finished", "null", "{}", "[]", '{"format": {}}', "[" * 5000, "9" * 5000, "\x1b[2J", "é"]
_NUMBERS = [0, -1, 1, 2**31, 2**62, 0.5, -0.0, 1e308, float("nan"), float("inf")]
_VALUES = st.sampled_from([None, True, *_TEXTS, *_NUMBERS])
_TYPES = st.sampled_from(
    [pa.string(), pa.float64(), pa.int8(), pa.int64(), pa.bool_(), pa.null(), pa.list_(pa.int64()), pa.binary()]
)
_CHANGES = st.lists(
    st.tuples(st.sampled_from(["value", "value", "type", "drop", "repeat", "remove"]), st.floats(0, 1), st.floats(0, 1),
              _VALUES, _TYPES),
    min_size=1, max_size=3,
)  # fmt: skip


def _changed_table(table: pa.Table, changes: list[tuple[str, float, float, Any, pa.DataType]]) -> pa.Table:
    """Change columns and rows: each change is a kind, a column and a row as shares, a value and a type."""
    for kind, of_columns, of_rows, value, data_type in changes:
        if not table.num_columns or not len(table):
            break
        column, row = (round(share * (n - 1)) for share, n in ((of_columns, table.num_columns), (of_rows, len(table))))
        name, values = table.column_names[column], table.column(column).to_pylist()
        if kind == "drop":
            table = table.remove_column(column)
        elif kind == "repeat":
            table = pa.concat_tables([table, table.slice(row, 1)])
        elif kind == "remove":
            table = pa.concat_tables([table.slice(0, row), table.slice(row + 1)])
        else:
            kept = table.schema.field(column).type if kind == "value" else data_type
            others = [value] * len(values) if kind == "type" else [*values[:row], value, *values[row + 1 :]]
            try:
                array = pa.array(others, kept)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                array = pa.nulls(len(values), kept)
            table = table.set_column(column, name, array)
    return table


def _places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    for key, inner in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from _places(inner, (*at, key))


def _changed_tree(tree: Any, changes: list[tuple[float, Any]]) -> Any:
    """Replace or remove (by `...`) values of a JSON file at any place."""
    tree = {"": copy.deepcopy(tree)}
    for share, value in changes:
        places = list(_places(tree))[1:]
        *parents, last = places[round(share * (len(places) - 1))]
        inner: Any = tree
        for key in parents:
            inner = inner[key]
        if value is ... and len(parents):
            del inner[last]
        else:
            inner[last] = None if value is ... else copy.deepcopy(value)
    return tree[""]


def _read_report(data: DataPaths) -> object:
    return load_report_inputs(_PARAMS, data)


def _read_study(data: DataPaths) -> object:
    return [run_from_row(row) for row in read_runs(data.runs("digits"), data.history("digits"))]


def _read_filter(data: DataPaths) -> object:
    return read_decisions(data, load_prepared(data, folder=None), _NETWORK, suggestions=True)


def _read_archive(data: DataPaths) -> object:
    return check_recorded(data, report_inputs(_PARAMS, data))


def _compared(data: DataPaths, name: str) -> DataPaths:
    return DataPaths(root=data.root.with_name(name))


def _compare(data: DataPaths, name: str = "unrecorded") -> object:
    """Compare the folder `name` with an equal one."""
    try:
        return main(["compare", *(str(_compared(data, one).root) for one in (name, "other"))])
    except SystemExit as ended:
        assert ended.code == 2  # noqa: PT017 - no error is right too
        return ended.code


_TABLES: dict[str, tuple[Callable[[DataPaths], Path], Callable[[DataPaths], object]]] = {
    "runs": (lambda data: data.runs("digits"), _read_study),
    "curves": (lambda data: data.history("digits"), _read_study),
    "runs in a report": (lambda data: data.runs("digits"), _read_report),
    "runs to compare": (lambda data: _compared(data, "unrecorded").runs("digits"), _compare),
    "points in a report": (lambda data: data.points(_NETWORK), _read_report),
    "test coordinates in a report": (lambda data: data.embedding(_NETWORK, "test"), _read_report),
    "manifest": (lambda data: data.manifest("train"), _read_filter),
    "points of a filter": (lambda data: data.points(_NETWORK), _read_filter),
    "test images to compare": (lambda data: _compared(data, "unrecorded").manifest("test"), _compare),
}
_RECORDS: dict[str, tuple[Callable[[DataPaths], Path], Callable[[DataPaths], object]]] = {
    "archive": (lambda data: data.archive_record, _read_archive),
    "provenance": (lambda data: data.provenance("filter", _NETWORK), _read_archive),
    "metrics of prepare": (lambda data: data.prepare_metrics, _read_filter),
    "metrics of a filter": (lambda data: data.filter_metrics(_NETWORK), _read_report),
    "metrics of fine-tuning": (lambda data: data.finetune_metrics(_NETWORK), _read_report),
    "metrics of the reduction": (lambda data: data.reduce_metrics(_NETWORK), _read_report),
    "metrics to compare": (lambda data: _compared(data, "unrecorded").filter_metrics(_NETWORK), _compare),
    "provenance to compare": (
        lambda data: _compared(data, "recorded").provenance("train", "digits"),
        partial(_compare, name="recorded"),
    ),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataPaths:
    """Results of a network and a study, an archive's record, and three equal folders to compare."""
    paths = DataPaths(root=tmp_path_factory.mktemp("tables") / "data")
    write_artifacts(paths, _PARAMS)
    for name in ("unrecorded", "recorded", "other"):
        write_experiment(_compared(paths, name).root, {"digits": run_rows()}, {_NETWORK: ["a", "b"]}, margin=0.5)
    for record in _compared(paths, "unrecorded").root.rglob("*provenance.json"):
        record.unlink()
    write_archive_record(paths, [paths.points(_NETWORK)])
    for read in (_read_report, _read_study, _read_filter, _read_archive):
        read(paths)
    assert _compare(paths) == _compare(paths, "recorded") == 0
    return paths


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _TABLES)
def test_tables_are_read_or_refused_in_one_line(data: DataPaths, name: str) -> None:
    path, read = _TABLES[name][0](data), _TABLES[name][1]
    table = pyarrow.parquet.read_table(path)

    def check(changes: list[Any]) -> None:
        pyarrow.parquet.write_table(_changed_table(table, changes), path)
        assert_read_or_refused(lambda: read(data))

    fuzz_file(path, _CHANGES, check)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _RECORDS)
def test_records_are_read_or_refused_in_one_line(data: DataPaths, name: str) -> None:
    path, read = _RECORDS[name][0](data), _RECORDS[name][1]
    tree = read_json(path)

    def check(changes: list[Any]) -> None:
        write_json(path, _changed_tree(tree, changes))
        assert_read_or_refused(lambda: read(data))

    values = _VALUES | st.sampled_from([..., [], {}, [None], {"": {}}])
    fuzz_file(path, st.lists(st.tuples(st.floats(0, 1), values), min_size=1, max_size=3), check)


def test_changes_are_changes() -> None:
    table = pa.table({"a": [1, 2], "b": ["x", "y"]})
    changed = _changed_table(table, [("value", 0, 1, 7, pa.null()), ("type", 1, 0, 5, pa.int8())])
    assert changed.to_pydict() == {"a": [1, 7], "b": [5, 5]}
    assert _changed_table(table, [("drop", 0, 0, 0, pa.null())]).column_names == ["b"]
    assert _changed_tree({"a": [1, {"b": 2}]}, [(1, 3)]) == {"a": [1, {"b": 3}]}
    assert _changed_tree({"a": 1}, [(1, ...)]) == {}
    assert np.isnan(_changed_tree([1], [(1, float("nan"))])[0])
