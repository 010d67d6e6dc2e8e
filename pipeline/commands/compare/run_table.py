"""Read anybody's table of runs, a row per run with arm, seed, a metric and settings; and pair the runs of two arms."""

import difflib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from pipeline.errors import InputError
from pipeline.stats.estimates import decimal_step

ARM, SEED, BATCH_SIZE = "arm", "seed", "batch_size"
_COLUMN_LIMIT = 12

Value = str | int | float | bool | None
Setting = tuple[Value, ...]


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """Pairs of runs of two arms.

    Attributes:
        file: of the runs.
        metric: name of the column that is compared.
        arms: A and B, as the table has them.
        columns: names of the settings.
        differences: B - A by setting and seed, -1 to 1; settings and seeds are sorted.
        step: of the metric's decimals, as a share: values of 0.91 and 0.9 are multiples of 0.01.
        other_rows: number of rows of other arms.
    """

    file: Path
    metric: str
    arms: tuple[str, str]
    columns: tuple[str, ...]
    differences: Mapping[Setting, Mapping[Value, float]]
    step: float
    other_rows: int


def read_runs(
    file: Path,
    arms: Sequence[str],
    *,
    metric: str,
    ignored: Sequence[str] = (),
    batch_sizes: Mapping[int, int] | None = None,
    percent: bool = False,
) -> RunTable:
    """Read a table and pair its runs: a pair shares the seed and all settings.

    Args:
        file: .csv or .parquet with the columns `arm`, `seed` and `metric`; all others are settings.
        arms: A and B.
        metric: column of shares from 0 to 1, or of percentages, of which higher is better.
        ignored: columns that are no settings, e.g. wall times.
        batch_sizes: `batch_size` of A's run -> that of B's, of each pair; runs of other sizes are left out. None: both
            have the same.
        percent: the metric is in percent.

    Raises:
        InputError: the file or a column is missing; a value is missing or out of range; two rows are one run; or a run
            has no partner.
    """
    table = _read_table(file)
    needed = (metric, ARM, SEED) if batch_sizes is None else (metric, ARM, SEED, BATCH_SIZE)
    _check_columns(_column_names(table, file), needed, ignored, file)
    columns = tuple(name for name in table.column_names if name not in (metric, ARM, SEED, *ignored))
    try:
        rows = table.to_pylist()
    except UnicodeDecodeError:
        raise _not_utf8(file) from None
    a, b = arms
    if a == b:
        raise InputError(f"--arm: {a} is given twice; give two arms of {file}")
    runs: dict[str, dict[tuple[Setting, Value], tuple[int, float]]] = {a: {}, b: {}}
    used: set[int] = set()
    for line, row, size in _at_paired_sizes(rows, arms, batch_sizes):
        arm = value_text(row[ARM])
        where = f"{file}: row {line}"
        if row[SEED] is None:
            raise InputError(f"{where}: has no seed; give one, so that the run can be paired")
        used.add(line)
        key = (tuple(_plain(size if name == BATCH_SIZE else row[name]) for name in columns), _plain(row[SEED]))
        if key in runs[arm]:
            raise InputError(
                f"{where}: repeats the run of row {runs[arm][key][0]} ({_described(arm, columns, key)}); remove one, "
                "or add the column of a setting that tells them apart"
            )
        runs[arm][key] = line, _checked_metric(row[metric], metric, where, percent=percent)
    for arm in arms:
        if not runs[arm]:
            if batch_sizes is not None and any(value_text(row[ARM]) == arm for row in rows):
                sizes = ", ".join(map(str, batch_sizes if arm == a else batch_sizes.values()))
                raise InputError(f"--batch-sizes: {file} has no run of {arm} at batch size {sizes}")
            known = sorted({value_text(row[ARM]) for row in rows})
            raise InputError(f"--arm: {file} has no arm {arm}; give two of {', '.join(known[:_COLUMN_LIMIT])}")
    if percent and all(value <= 0.01 for of_arm in runs.values() for _, value in of_arm.values()):
        raise InputError(f"--percent: no {metric} of {file} is above 1, so they are shares; leave it out")
    _check_partners(runs, (a, b), columns, file)
    differences: dict[Setting, dict[Value, float]] = {}
    for setting, seed in sorted(runs[a], key=lambda key: (tuple(map(_sort_key, key[0])), _sort_key(key[1]))):
        value = runs[b][setting, seed][1] - runs[a][setting, seed][1]
        differences.setdefault(setting, {})[seed] = value
    compared = table[metric].take(sorted(line - 1 for line in used))
    return RunTable(
        file=file,
        metric=metric,
        arms=(a, b),
        columns=columns,
        differences=differences,
        step=decimal_step(compared.to_numpy()) / (100 if percent else 1),
        other_rows=len(rows) - len(used),
    )


def _at_paired_sizes(
    rows: Sequence[Mapping[str, Any]], arms: Sequence[str], sizes: Mapping[int, int] | None
) -> Iterator[tuple[int, Mapping[str, Any], Value]]:
    """Yield the rows of both arms, counted from 1, with the batch size of A in the pair that each belongs to."""
    for line, row in enumerate(rows, start=1):
        arm = value_text(row[ARM])
        if arm not in arms:
            continue
        size = row.get(BATCH_SIZE)
        if sizes is None or (arm == arms[0] and size in sizes):
            yield line, row, size
        elif arm == arms[1]:
            yield from ((line, row, large) for large, small in sizes.items() if small == size)


def _read_table(file: Path) -> pa.Table:
    if not file.is_file():
        raise InputError(f"{file}: is no file; give a .csv or .parquet table of runs, or leave --arm out")
    suffix = file.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise InputError(f"{file}: ends in {suffix or 'nothing'}; give a .csv or .parquet table of runs")
    try:
        if suffix == ".parquet":
            return pyarrow.parquet.read_table(file, partitioning=None)
        table = pyarrow.csv.read_csv(file, parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True))
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{file}: cannot be read as {suffix[1:]} ({reason}); save it again") from None
    # The reader makes binary columns of text that is not UTF-8.
    if any(pa.types.is_binary(kind) for kind in table.schema.types):
        raise _not_utf8(file)
    return table


def _column_names(table: pa.Table, file: Path) -> list[str]:
    try:
        names: list[str] = table.column_names
    except UnicodeDecodeError:
        raise _not_utf8(file) from None
    return names


def _not_utf8(file: Path) -> InputError:
    return InputError(f"{file}: is not UTF-8 text; save it again as UTF-8")


def _check_columns(names: Sequence[str], needed: Sequence[str], ignored: Sequence[str], file: Path) -> None:
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise InputError(f"{file}: has the column {twice[0]} twice; rename one of the two")
    listed = ", ".join(names[:_COLUMN_LIMIT]) + (", ..." if len(names) > _COLUMN_LIMIT else "")
    for name in needed:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            fix = f"rename {close[0]}" if close else "rename one"
            if name not in (ARM, SEED):
                fix = "name one by --metric"
            raise InputError(f"{file}: has no column {name} among {listed}; {fix}")
    for name in ignored:
        if name not in names or name in needed:
            raise InputError(f"--ignore: {name} is no column of settings of {file}, which has {listed}")


def _checked_metric(value: Any, metric: str, where: str, *, percent: bool) -> float:
    """Return a share from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{where}: {metric} is {value!r}; give a number, or remove the run and its partner")
    largest = 100 if percent else 1
    if not 0 <= value <= largest:
        fix = "give percentages from 0 to 100" if percent else "give shares from 0 to 1, or --percent for percentages"
        raise InputError(f"{where}: {metric} is {value:g}; {fix}")
    return value / largest


def _check_partners(
    runs: Mapping[str, Mapping[tuple[Setting, Value], tuple[int, float]]],
    arms: tuple[str, str],
    columns: Sequence[str],
    file: Path,
) -> None:
    for arm, other in (arms, arms[::-1]):
        alone = [key for key in runs[arm] if key not in runs[other]]
        if not alone:
            continue
        # A column that tells all runs apart, such as a wall time, is no setting.
        culprits = [
            name
            for i, name in enumerate(columns)
            if {key[0][i] for key in runs[arm]}.isdisjoint({key[0][i] for key in runs[other]})
        ]
        fix = f"leave {culprits[0]} out by --ignore" if culprits else f"add the run of {other}, or remove this one"
        more = f" (and {len(alone) - 1} more)" if len(alone) > 1 else ""
        raise InputError(
            f"{file}: row {runs[arm][alone[0]][0]}: {_described(arm, columns, alone[0])} has no partner of the arm "
            f"{other}{more}; {fix}"
        )


def _described(arm: str, columns: Sequence[str], key: tuple[Setting, Value]) -> str:
    settings = [f"{name} {value_text(value)}" for name, value in zip(columns, key[0], strict=True)]
    return ", ".join([f"arm {arm}", f"seed {value_text(key[1])}", *settings])


def _plain(value: Any) -> Value:
    """Return a value that equals itself and can be a key; a number that is no number is a missing value."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def value_text(value: Any) -> str:
    """Return a value of a table as text, numbers without trailing zeros."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _sort_key(value: Value) -> tuple[int, float, str]:
    if value is None:
        return 0, 0.0, ""
    return (2, 0.0, value) if isinstance(value, str) else (1, float(value), "")
