"""`python -m pipeline compare runs.csv --arm A B`: two arms of anybody's table of runs."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsieve import compare_runs
from pipeline.__main__ import main
from pipeline.artifacts.tables import write_csv, write_parquet
from pipeline.commands.compare.arms import compare_arms
from pipeline.commands.compare.command import main as compare
from pipeline.commands.compare.run_table import read_runs
from pipeline.errors import InputError
from pipeline.stats.hypothesis_tests import both_tests_power
from pipeline.stats.verdict import DecisionRule
from tests.fixtures.golden import check_golden, refusals

Rows = list[dict[str, Any]]
_RULE = DecisionRule(margin=0.005, alpha=0.05)


def _rows(gain: float = 0.01, *, seeds: Sequence[int] = range(8), rates: Sequence[float] = (0.1, 0.4)) -> Rows:
    noise = np.random.default_rng(0)
    return [
        {
            "arm": arm,
            "seed": seed,
            "lr": rate,
            "accuracy": round(0.9 + rate / 100 + (gain if arm == "clean" else 0) + noise.normal(0, 0.002), 4),
        }
        for arm in ("full", "clean", "other")
        for rate in rates
        for seed in seeds
    ]


def _write(path: Path, rows: Rows) -> Path:
    (write_csv if path.suffix == ".csv" else write_parquet)(path, pa.Table.from_pylist(rows))
    return path


def _values(rows: Rows, arm: str) -> dict[Any, float]:
    return {(row["lr"], row["seed"]): row["accuracy"] for row in rows if row["arm"] == arm}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("gain", [0.01, -0.01, 0.0])
def test_one_setting_has_the_verdict_of_compare_runs(suffix: str, gain: float, tmp_path: Path) -> None:
    rows = _rows(gain, rates=[0.1], seeds=range(7))
    Random(0).shuffle(rows)
    runs = read_runs(_write(tmp_path / f"runs.{suffix}", rows), ("full", "clean"), metric="accuracy")
    comparison = compare_arms(runs, _RULE, step=runs.step)
    expected = compare_runs(_values(rows, "clean"), _values(rows, "full"), margin=0.005)
    assert comparison.pooled is not None
    assert comparison.pooled.outcome == expected.outcome
    assert comparison.pooled.estimate.mean == pytest.approx(expected.estimate)
    assert (comparison.pooled.estimate.low, comparison.pooled.estimate.high) == pytest.approx(expected.interval)
    assert next(iter(comparison.settings.values())).outcome == expected.outcome


def test_settings_are_averaged_per_seed_and_adjusted_by_holm(tmp_path: Path) -> None:
    rows = [row for row in _rows() if (row["lr"], row["seed"]) != (0.4, 7)]
    runs = read_runs(_write(tmp_path / "runs.csv", rows), ("full", "clean"), metric="accuracy")
    comparison = compare_arms(runs, _RULE, step=runs.step)
    assert list(comparison.settings) == [(0.1,), (0.4,)]
    assert [verdict.comparisons for verdict in comparison.settings.values()] == [2, 2]
    # The second setting lacks a seed.
    assert comparison.pooled is not None
    assert (comparison.left_out, comparison.pooled.settings, comparison.pooled.seeds) == (1, 1, 8)
    runs = read_runs(_write(tmp_path / "b.csv", _rows()), ("full", "clean"), metric="accuracy")
    whole = compare_arms(runs, _RULE, step=runs.step)
    assert whole.pooled is not None
    means = [
        np.mean([_values(_rows(), "clean")[rate, seed] - _values(_rows(), "full")[rate, seed] for rate in (0.1, 0.4)])
        for seed in range(8)
    ]
    assert whole.pooled.estimate.sd == pytest.approx(np.std(means, ddof=1))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_row_order_changes_nothing_and_swapped_arms_the_sign(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = _rows()
    Random(seed).shuffle(rows)
    folder = tmp_path_factory.mktemp("runs")
    a, b = (
        compare_arms(read_runs(_write(folder / "runs.csv", of), ("full", "clean"), metric="accuracy"), _RULE, step=1e-4)
        for of in (rows, _rows())
    )
    swapped = compare_arms(read_runs(folder / "runs.csv", ("clean", "full"), metric="accuracy"), _RULE, step=1e-4)
    assert a.pooled == b.pooled
    assert a.settings == b.settings
    assert a.pooled is not None
    assert swapped.pooled is not None
    assert swapped.pooled.estimate.mean == pytest.approx(-a.pooled.estimate.mean)


def test_the_text_and_the_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _write(Path("runs.csv"), _rows(0.003))
    _write(Path("one.parquet"), [{**row, "wall_s": i} for i, row in enumerate(_rows(rates=[0.1], seeds=[0, 1, 2]))])
    texts = []
    for arguments in (["runs.csv", "--margin", "0.5"], ["one.parquet", "--ignore", "wall_s"]):
        assert main(["compare", *arguments, "--arm", "full", "clean", "--metric", "accuracy"]) == 0
        texts.append(capsys.readouterr().out)
    check_golden("compare_table.txt", "\n".join(texts))
    assert main(["compare", "runs.csv", "--arm", "full", "clean", "--metric", "accuracy", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    spread = values["pooled"]["estimate"]["sd"]
    assert values["power_at_margin"] == both_tests_power(8, spread=spread, difference=0.3, alpha=0.05)
    assert [row["setting"] for row in values["settings"]] == [{"lr": 0.1}, {"lr": 0.4}]
    assert (values["margin"], values["pooled"]["verdict"]["outcome"]) == (0.3, "helps")


def test_an_infinite_setting_is_text_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "lr": float("inf") if row["lr"] == 0.4 else row["lr"]} for row in _rows()]
    path = _write(tmp_path / "runs.parquet", rows)
    assert main(["compare", str(path), "--arm", "full", "clean", "--metric", "accuracy", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [row["setting"] for row in values["settings"]] == [{"lr": 0.1}, {"lr": "inf"}]


@pytest.mark.parametrize("old", ["lr", "clean"])
def test_a_csv_that_is_not_utf8_is_refused_in_one_line(old: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "runs.csv", _rows())
    path.write_bytes(path.read_bytes().replace(old.encode(), "größe".encode("latin-1")))
    with pytest.raises(InputError, match=r"runs\.csv: is not UTF-8 text") as raised:
        read_runs(path, ("full", "other"), metric="accuracy")
    assert "\n" not in str(raised.value)


def test_refusals(tmp_path: Path) -> None:
    def changed(change: Callable[[Rows], Any], *options: str, suffix: str = "csv") -> Callable[[], object]:
        rows = _rows(seeds=range(3))
        change(rows)
        path = _write(tmp_path / f"{len(list(tmp_path.iterdir()))}.{suffix}", rows)
        return partial(compare, [str(path), "--arm", "full", "clean", *(options or ("--metric", "accuracy"))])

    def every(**values: Any) -> Callable[[Rows], Any]:
        return lambda rows: [row.update({k: v(i) for k, v in values.items()}) for i, row in enumerate(rows)]

    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.csv").write_text("")
    arms = ["--arm", "full", "clean"]
    cases: dict[str, Callable[[], object]] = {
        "no file": partial(compare, [str(tmp_path / "none.csv"), *arms]),
        "a folder": partial(compare, [str(tmp_path / "folder"), *arms]),
        "another kind of file": partial(compare, [__file__, *arms]),
        "two tables": partial(compare, ["a.csv", "b.csv", *arms]),
        "no second experiment": partial(compare, ["a.csv"]),
        "a metric without arms": partial(compare, ["a", "b", "--metric", "accuracy"]),
        "no metric": changed(lambda rows: None, "--metric", "acuracy"),
        "no seed column": changed(lambda rows: [row.update(Seed=row.pop("seed")) for row in rows]),
        "an ignored column that is not there": changed(lambda rows: None, "--metric", "accuracy", "--ignore", "time"),
        "an unknown arm": changed(lambda rows: [row.update(arm="all") for row in rows if row["arm"] == "full"]),
        "one arm twice": changed(lambda rows: None, "--metric", "accuracy", "--arm", "full", "full"),
        "percent": changed(every(accuracy=lambda i: 95.5)),
        "a missing value": changed(lambda rows: rows[4].update(accuracy=None)),
        "text": changed(every(accuracy=lambda i: "high")),
        "not finite": changed(lambda rows: rows[0].update(accuracy=float("nan")), suffix="parquet"),
        "a missing seed": changed(lambda rows: rows[2].update(seed=None)),
        "an unpaired seed": changed(lambda rows: rows[2].update(seed=7)),
        "a column that is no setting": changed(every(wall_s=float)),
        "one run twice": changed(lambda rows: rows.append(dict(rows[0]))),
        "no test images": changed(lambda rows: None, "--metric", "accuracy", "--test-images", "0"),
    }
    check_golden("compare_table_refusals.txt", refusals(cases, hidden={str(tmp_path): "FOLDER", __file__: "TEST.py"}))
    assert main(["compare", str(tmp_path / "empty.csv"), *arms]) == 2


def _at_sizes(gain: float) -> Rows:
    """Arm `clean` at batch 40 is `gain` above arm `full` at 64; there are other sizes."""
    return [
        {"arm": arm, "seed": seed, "batch_size": size, "accuracy": 0.8 + seed / 1000 + (gain if size == 40 else 0.1)}
        for arm, sizes in (("full", (64, 256)), ("clean", (40, 64)))
        for size in sizes
        for seed in range(8)
    ]


def test_arms_of_different_batch_sizes_are_paired_on_request(tmp_path: Path) -> None:
    rows = [row | {"accuracy": row["accuracy"] - 0.1 * (row["arm"] == "full")} for row in _at_sizes(0.02)]
    runs = read_runs(_write(tmp_path / "runs.csv", rows), ("full", "clean"), metric="accuracy", batch_sizes={64: 40})
    assert list(runs.differences) == [(64,)]
    assert np.array(list(runs.differences[64,].values())) == pytest.approx(0.02)
    assert runs.other_rows == 16


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--metric", "accuracy", "--arm", "full", "clean", "--batch-sizes", "64:41"],
            "--batch-sizes: .* no run of clean at batch size 41",
        ),
        (
            ["--metric", "accuracy", "--arm", "full", "clean", "--batch-sizes", "64:40", "64:50"],
            "--batch-sizes: 64 is given twice",
        ),
        (["--batch-sizes", "64:40"], "--batch-sizes: is for a table of runs"),
    ],
)
def test_batch_sizes_without_runs_or_without_a_table_are_refused(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    table = _write(tmp_path / "runs.csv", _at_sizes(0.0))
    with pytest.raises(InputError, match=says):
        compare([str(table), *arguments])


def test_percentages_have_the_verdict_of_shares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = _rows()
    command = [str(_write(tmp_path / "shares.csv", rows)), "--arm", "full", "clean", "--metric", "accuracy", "--json"]
    assert compare(command) == 0
    expected = json.loads(capsys.readouterr().out)
    percent = [{**row, "accuracy": round(100 * row["accuracy"], 2)} for row in rows]
    table = str(_write(tmp_path / "percent.csv", percent))
    assert compare([table, *command[1:], "--percent"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["pooled"]["verdict"]["outcome"] == expected["pooled"]["verdict"]["outcome"]
    assert shown["pooled"]["estimate"] == pytest.approx(expected["pooled"]["estimate"])


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(("decimals", "percent"), [(2, False), (0, True), (3, False), (1, True)])
def test_decimals_are_counted_as_rounding(suffix: str, decimals: int, percent: bool, tmp_path: Path) -> None:
    """Else two seeds whose accuracies round to the same difference would be equivalent beyond doubt."""
    scale = 100 if percent else 1
    rows = [
        {"arm": arm, "seed": seed, "accuracy": round(scale * (0.81 + seed / 10 + gain), decimals)}
        for arm, gain in (("full", 0.0), ("clean", 0.001))
        for seed in range(2)
    ]
    table = str(_write(tmp_path / f"runs.{suffix}", rows))
    runs = read_runs(Path(table), ("full", "clean"), metric="accuracy", percent=percent)
    assert runs.step == pytest.approx(10**-decimals / scale)
    verdict = compare_arms(runs, _RULE, step=runs.step).pooled
    assert verdict is not None
    assert verdict.tests is not None
    assert verdict.tests.equivalence > 0.02
    assert (verdict.outcome == "undecided") == (runs.step > 0.005)


def test_shares_are_no_percentages(tmp_path: Path) -> None:
    """They would differ by a hundredth of what they do, and count as equivalent."""
    table = _write(tmp_path / "runs.csv", _rows())
    with pytest.raises(InputError, match="--percent: no accuracy of"):
        compare([str(table), "--arm", "full", "clean", "--metric", "accuracy", "--percent"])
    with pytest.raises(InputError, match="--percent: is for a table of runs"):
        compare(["a", "b", "--percent"])
