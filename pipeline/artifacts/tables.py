"""Read and write Parquet and CSV tables: atomic writes, and readers that check columns and types.

Text in CSV files is protected: people open them in a spreadsheet, which runs some cells as formulas.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from pipeline.artifacts.files import atomic_path
from pipeline.errors import InputError, lacks_resources, short_reason

# OWASP, "CSV Injection"; full-width signs act alike in some locales. The apostrophe makes the way back unique.
_STARTS = r"^[=+\-@＝＋－＠\t\r\n']"


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table as one row group, zstd-compressed; equal tables give equal bytes."""
    with atomic_path(path) as temporary:
        pyarrow.parquet.write_table(table, temporary, compression="zstd", row_group_size=max(1, len(table)))


def read_parquet(
    path: Path,
    columns: Sequence[str] | Mapping[str, pa.DataType] | None = None,
    *,
    optional: Sequence[str] = (),
    max_rows: int | None = None,
) -> pa.Table:
    """Read columns of a Parquet file.

    Args:
        columns: names, or names with types. Values must have the type or convert to it without loss, and typed columns
            have no nulls. Default: all columns.
        optional: columns that earlier versions did not write; read if present.
        max_rows: most rows of a file that anyone may have written: a few bytes can claim billions of equal rows.

    Raises:
        InputError: the file is missing, damaged, too long, or lacks a column; a value is null or of another type.
    """
    if not path.exists():
        raise InputError(f"{path}: missing; run `dvc repro`")
    try:
        metadata = pyarrow.parquet.read_metadata(path)
        if max_rows is not None and metadata.num_rows > max_rows:
            raise InputError(f"{path}: {metadata.num_rows:,} rows, more than {max_rows:,}; remove it")
        names = metadata.schema.to_arrow_schema().names
        missing = [name for name in columns or () if name not in names]
        if missing:
            raise InputError(f"{path}: has no column {missing[0]}; it is of another version, run `dvc repro --force`")
        present = [*columns, *(name for name in optional if name in names)] if columns is not None else None
        # By one thread, and not as a data set: that reader waits for ever for a thread that a limit on memory forbids.
        table = pyarrow.parquet.ParquetFile(path).read(columns=present, use_threads=False)
        table = table if present is None else table.select(present)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if lacks_resources(error):
            raise
        raise InputError(f"{path}: damaged ({short_reason(error)}); delete it and run `dvc repro`") from None
    return _cast(table, columns, path) if isinstance(columns, Mapping) else table


def _cast(table: pa.Table, types: Mapping[str, pa.DataType], path: Path) -> pa.Table:
    for name, data_type in types.items():
        try:
            column = table[name].cast(data_type)
        except pa.ArrowException as error:
            if lacks_resources(error):
                raise
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{path}: column {name} is not {data_type} ({reason}); delete it and run `dvc repro`"
            ) from None
        if column.null_count:
            raise InputError(f"{path}: column {name} has {column.null_count} nulls; delete it and run `dvc repro`")
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def list_array(values: NDArray[Any]) -> pa.ListArray:
    """Convert values (N, k), k >= 1, to a column of N lists, without a Python object for each number."""
    n, k = values.shape
    return pa.ListArray.from_arrays(np.arange(0, n * k + 1, k, dtype=np.int32), values.ravel())


def list_column(table: pa.Table, name: str, path: Path) -> NDArray[Any]:
    """Convert a column of N lists of equal length k >= 1 to an array (N, k); `path` is named in errors.

    Raises:
        InputError: there is no such column, or the lists differ in length or are empty.
    """
    if name not in table.column_names:
        raise InputError(f"{path}: has no column {name}, as in some archives of results; run `dvc repro`")
    column = table[name].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    n = len(column)
    if len(flat) == 0 or len(flat) % n or (np.diff(column.offsets.to_numpy()) != len(flat) // n).any():
        raise InputError(f"{path}: images have different numbers of {name}; delete it and run `dvc repro`")
    return np.asarray(flat).reshape(n, -1)


def write_csv(path: Path, table: pa.Table) -> None:
    """Write a table with a header line, atomically; strings are quoted only where needed."""
    options = pyarrow.csv.WriteOptions(quoting_style="needed")
    with atomic_path(path) as temporary:
        pyarrow.csv.write_csv(table, temporary, options)


def read_csv(path: Path, columns: dict[str, pa.DataType], *, optional: Sequence[str] = ()) -> pa.Table:
    """Read a CSV that has exactly these columns, by name and type, in any order.

    Args:
        optional: further columns that the file may have; they are not returned.

    Raises:
        InputError: the file is missing, has other columns, or a value of another type.
    """
    if not path.exists():
        raise InputError(f"{path}: missing; run `dvc repro`")
    convert = pyarrow.csv.ConvertOptions(column_types=columns, strings_can_be_null=False)
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    try:
        read = pyarrow.csv.ReadOptions(use_threads=False)
        table = pyarrow.csv.read_csv(path, read_options=read, convert_options=convert, parse_options=parse)
    except (pa.ArrowException, OSError) as error:
        if lacks_resources(error):
            raise
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: not readable as CSV ({reason}); fix that line") from None
    if sorted(name for name in table.column_names if name not in optional) != sorted(columns):
        raise InputError(f"{path}: has the columns {table.column_names}; give exactly {list(columns)}")
    return table.select(list(columns))


def protect_cells(table: pa.Table) -> pa.Table:
    """Put an apostrophe before each text that a spreadsheet could run, and before each that starts with one."""
    return _replace_texts(table, _STARTS, r"'\0")


def restore_cells(table: pa.Table) -> pa.Table:
    """Return the texts before `protect_cells`; texts that were never protected stay, unless an apostrophe is first."""
    return _replace_texts(table, "^'", "")


def _replace_texts(table: pa.Table, pattern: str, replacement: str) -> pa.Table:
    for number, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            replaced = pc.replace_substring_regex(table[number], pattern=pattern, replacement=replacement)
            table = table.set_column(number, field.name, replaced)
    return table
