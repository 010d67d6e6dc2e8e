"""benchmarks/statistics_error_rates.py at small size: the tests of pipeline/stats keep their levels."""

import math
from pathlib import Path
from typing import Any

import pyarrow.csv
import pytest

from benchmarks.printing import Row
from benchmarks.statistics_error_rates import ALPHA, EFFECT, SETTINGS, SPREAD, error_rates, main
from pipeline.stats.hypothesis_tests import paired_t_power

SIMULATIONS = 1000


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return error_rates(SIMULATIONS, seed=0)


def _above(nominal: float, simulations: float) -> float:
    """What a rate of `nominal` hardly ever exceeds by chance: 4 binomial standard deviations more."""
    return nominal + 4 * math.sqrt(nominal * (1 - nominal) / simulations)


def _chosen(rows: list[Row], **wanted: Any) -> list[Row]:
    found = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    assert found
    return found


@pytest.mark.slow
@pytest.mark.parametrize("test", ["t", "sign flips", "both (claim)"])
@pytest.mark.parametrize("noise", ["normal", "skewed"])
def test_no_test_errs_more_often_than_it_says(rows: list[Row], test: str, noise: str) -> None:
    for row in _chosen(rows, test=test, noise=noise, quantity="type I"):
        assert float(row["rate"]) <= _above(ALPHA, SIMULATIONS), row


@pytest.mark.slow
def test_five_pairs_or_fewer_never_make_a_claim(rows: list[Row]) -> None:
    for row in _chosen(rows, test="both (claim)"):
        replicates = row["seeds"] if row["draws"] == 1 else row["draws"]
        assert int(replicates) > 5 or row["rate"] == 0, row


def test_intervals_cover_as_often_as_stated(rows: list[Row]) -> None:
    for row in _chosen(rows, test="t", quantity="coverage", noise="normal"):
        assert 1 - float(row["rate"]) <= _above(ALPHA, SIMULATIONS), row
        if row["draws"] == 1:
            assert 1 - float(row["rate"]) >= 2 * ALPHA - _above(ALPHA, SIMULATIONS), row


def test_power_is_that_of_the_noncentral_t(rows: list[Row]) -> None:
    # Of a run's variance half is common to its settings, the other half is averaged over them.
    spread = SPREAD * (2 * (0.5 + 0.5 / SETTINGS)) ** 0.5
    for row in _chosen(rows, test="t", quantity="power", noise="normal", draws=1):
        power = paired_t_power(int(row["seeds"]), spread=spread, difference=EFFECT, alpha=ALPHA)
        assert float(row["rate"]) <= _above(power, SIMULATIONS), row
        assert 1 - float(row["rate"]) <= _above(1 - power, SIMULATIONS), row


def test_equivalence_at_the_margin_is_found_as_rarely_as_stated(rows: list[Row]) -> None:
    for margin in ("-0.003", "+0.003"):
        for test, quantity in (("TOST", "error"), ("verdict", "false")):
            for row in _chosen(rows, test=test, quantity=f"{quantity} at {margin}", noise="normal"):
                assert float(row["rate"]) <= _above(ALPHA, SIMULATIONS), row
    for row in _chosen(rows, test="TOST", quantity="error at -0.003", noise="skewed"):
        assert float(row["rate"]) <= _above(0.07, SIMULATIONS), row


def test_holm_keeps_the_family_error_that_single_tests_exceed(rows: list[Row]) -> None:
    for name in ("t, Holm", "both, Holm (claim)"):
        for row in _chosen(rows, test=name):
            assert float(row["rate"]) <= _above(ALPHA, SIMULATIONS), row
    assert min(float(row["rate"]) for row in _chosen(rows, test="t, not adjusted", draws=1)) > 2 * ALPHA


def test_seeds_of_one_draw_are_no_evidence_on_other_draws(rows: list[Row]) -> None:
    for row in _chosen(rows, test="t, read beyond its draw"):
        assert float(row["low"]) > 2 * ALPHA, row


def test_draws_that_share_their_seeds_are_not_independent(rows: list[Row]) -> None:
    """Taken so, ten draws of two seeds err in a quarter of the studies; crossed with their seeds they do not."""
    wrong = _chosen(rows, test="t, draws taken as independent", noise="normal", draws=10, seeds=2)
    assert all(float(row["low"]) > 2 * ALPHA for row in wrong)
    for row in _chosen(rows, test="t", quantity="type I", control="own, seed effect"):
        assert float(row["rate"]) <= _above(ALPHA, SIMULATIONS), row


@pytest.mark.parametrize("quantity", ["type I, margin next to 0", "type I", "false at -margin", "false at +margin"])
def test_looks_err_no_more_often_than_stated_with_normal_noise(rows: list[Row], quantity: str) -> None:
    for noise in ("normal", f"normal, mean of {SETTINGS} sizes"):
        for row in _chosen(rows, test="t at 6, 8, 10, 12 seeds", quantity=quantity, noise=noise):
            assert float(row["rate"]) <= _above(ALPHA, SIMULATIONS), row


def test_looks_find_as_much_as_twelve_seeds_with_fewer(rows: list[Row]) -> None:
    (found,) = _chosen(rows, test="t at 6, 8, 10, 12 seeds", quantity="difference found at 1.2 sd", noise="normal")
    (fixed,) = _chosen(rows, test="t at 12 seeds", quantity="difference found at 1.2 sd", noise="normal")
    (seeds,) = _chosen(rows, test="t at 6, 8, 10, 12 seeds", quantity="mean seeds at 1.2 sd", noise="normal")
    assert float(found["rate"]) > float(fixed["rate"]) - 0.08
    assert 6 <= float(seeds["rate"]) < 8.5


def test_seeds_of_three_draws_are_no_replicates_at_looks_either(rows: list[Row]) -> None:
    for row in _chosen(rows, test="t at 6, 8, 10, 12 seeds", noise="normal, seeds of 3 draws counted"):
        assert float(row["low"]) > ALPHA, row


def test_slopes_err_no_more_often_than_stated_with_normal_noise(rows: list[Row]) -> None:
    for row in _chosen(rows, test="slope on log2(batch size)", noise="normal"):
        assert float(row["rate"]) <= _above(ALPHA, SIMULATIONS), row


def test_the_bootstrap_knows_images_but_takes_few_seeds_for_many(rows: list[Row]) -> None:
    def missed(test: str, seeds: int, most: str) -> float:
        (row,) = _chosen(rows, test=test, seeds=seeds, quantity=f"coverage, {most} vary most")
        return 1 - float(row["rate"])

    assert missed("bootstrap", 10, "images") < _above(ALPHA, SIMULATIONS / 10) < missed("t", 10, "images")
    assert missed("bootstrap", 3, "seeds") > _above(ALPHA, SIMULATIONS / 10) > missed("t", 3, "seeds")


def test_the_table_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rates.csv"
    monkeypatch.setattr("sys.argv", ["statistics_error_rates", "--simulations", "20", "--out", str(path)])
    main()
    table = pyarrow.csv.read_csv(path)
    assert {"test", "quantity", "noise", "draws", "seeds", "rate", "low", "high"} < set(table.column_names)
    assert set(table["seeds"].to_pylist()) == {2, 3, 4, 5, 6, 10, 12}
