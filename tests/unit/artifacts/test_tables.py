"""Tables come back as they were, in bytes that depend on their values alone."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.artifacts.tables import read_csv, read_parquet, write_csv, write_parquet
from pipeline.errors import InputError

_TABLE = pa.table({"sample_id": pa.array([0, 1, 2], pa.int64()), "path": ["a.png", "b,c.png", 'd"e.png']})
_COLUMNS = {"sample_id": pa.int64(), "path": pa.string()}


def test_parquet_round_trip_keeps_types_nulls_and_lists(tmp_path: Path) -> None:
    table = pa.table(
        {
            "sample_id": pa.array([0, 1], pa.int32()),
            "score": pa.array([0.5, None], pa.float32()),
            "neighbours": pa.array([[1], []], pa.list_(pa.int32())),
        }
    )
    write_parquet(tmp_path / "t.parquet", table)
    assert read_parquet(tmp_path / "t.parquet").equals(table)
    assert read_parquet(tmp_path / "t.parquet", ["score"]).column_names == ["score"]


def test_empty_tables_keep_their_columns(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", _TABLE.slice(0, 0))
    assert read_parquet(tmp_path / "t.parquet").schema == _TABLE.schema
    write_csv(tmp_path / "t.csv", _TABLE.slice(0, 0))
    assert read_csv(tmp_path / "t.csv", _COLUMNS).equals(_TABLE.slice(0, 0))


def test_equal_tables_are_equal_bytes_whatever_their_chunks(tmp_path: Path) -> None:
    chunked = pa.concat_tables([_TABLE.slice(0, 1), _TABLE.slice(1)])
    for write, ending in ((write_parquet, "parquet"), (write_csv, "csv")):
        write(tmp_path / f"one.{ending}", _TABLE)
        write(tmp_path / f"two.{ending}", chunked)
    assert pyarrow.parquet.ParquetFile(tmp_path / "two.parquet").num_row_groups == 1
    for ending in ("parquet", "csv"):
        assert (tmp_path / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()


def test_folder_names_are_no_columns(tmp_path: Path) -> None:
    path = tmp_path / "rate=0.1" / "t.parquet"
    write_parquet(path, _TABLE)
    assert read_parquet(path).column_names == _TABLE.column_names


@given(texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8), min_size=1))
def test_csv_round_trip_of_any_text(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    table = pa.table({"sample_id": pa.array(range(len(texts)), pa.int64()), "path": pa.array(texts, pa.string())})
    write_csv(path, table)
    assert read_csv(path, _COLUMNS).equals(table)


def test_line_breaks_in_values_survive_in_large_files(tmp_path: Path) -> None:
    """Arrow reads a megabyte at a time and must not end one within a value."""
    texts = ["one\ntwo," * 10] * 40_000
    table = pa.table({"sample_id": pa.array(range(len(texts)), pa.int64()), "path": texts})
    write_csv(tmp_path / "t.csv", table)
    assert read_csv(tmp_path / "t.csv", _COLUMNS).equals(table)


def test_csv_columns_are_read_in_any_order_and_from_spreadsheets(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfpath,sample_id\r\na.png,7\r\n")
    assert read_csv(path, _COLUMNS).to_pylist() == [{"sample_id": 7, "path": "a.png"}]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        (None, ""),
        (b"", ""),
        (b"sample_id,path\nseven,a.png\n", ""),
        (b"sample_id,path\n7\n", ""),
        (b"sample_id,path\n7,\xff\xfe\n", ""),
        (b"sample_id\n7\n", "['sample_id']"),
        (b"sample_id,path,note\n7,a,b\n", "['sample_id', 'path', 'note']"),
        (b"sample_id,path,path\n7,a,b\n", "['sample_id', 'path', 'path']"),
    ],
)
def test_unsound_csv_gets_one_line(tmp_path: Path, content: bytes | None, columns: str) -> None:
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        read_csv(path, _COLUMNS)
    assert raised.value.key == str(path)
    assert columns in str(raised.value)


def test_unsound_parquet_gets_one_line(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with pytest.raises(InputError) as refused:
        read_parquet(path)
    assert refused.value.key == str(path)
    write_parquet(path, _TABLE)
    with pytest.raises(InputError) as refused:
        read_parquet(path, ["sample_id", "label"])
    assert "label" in str(refused.value)
    whole = path.read_bytes()
    for damaged in (b"", b"PAR1", whole[:-1], whole[:-20] + whole[-8:], b"text" * 20):
        path.write_bytes(damaged)
        with pytest.raises(InputError) as refused:
            read_parquet(path)
        assert refused.value.key == str(path)
