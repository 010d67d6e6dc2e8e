"""`python -m pipeline compare`: what cannot be compared, damaged files, and the margin."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from tests.fixtures.damages import damage
from tests.fixtures.experiments import gains, run_rows, state_planted, write_experiment
from tests.fixtures.printed_errors import printed_error
from tests.unit.commands.test_compare import KEPT, noise, printed_by


def no_study_in_common(folder: Path) -> None:
    write_experiment(folder, {"paper": run_rows()})


def no_results(folder: Path) -> None:
    (folder / "data/train").mkdir(parents=True)


def old_columns(folder: Path) -> None:
    rows = [{key: value for key, value in row.items() if key != "simulated_workers"} for row in run_rows()]
    write_experiment(folder, {"digits": rows})


def no_accuracy(folder: Path) -> None:
    write_experiment(folder, {"digits": run_rows(change=lambda row: {"top1": 90.0})})


def no_total(folder: Path) -> None:
    write_experiment(folder, {"digits": run_rows()}, {"resnet18": ["a", "b"]}, n_total=1)


def no_confidence(folder: Path) -> None:
    write_experiment(folder, {"digits": run_rows()}, margin=0.5, confidence=0.5)


def no_margin(folder: Path) -> None:
    write_experiment(folder, {"digits": run_rows()}, margin=0)


def no_table(folder: Path) -> None:
    (folder / "train").mkdir(parents=True)
    (folder / "train/digits.parquet").write_text("no table")


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (no_study_in_common, "b: "),
        (no_results, "b: "),
        (old_columns, "b/train/digits.parquet: "),
        (no_accuracy, "b/train/digits.parquet: "),
        (no_total, "b/filter/resnet18/metrics.json: "),
        (no_confidence, "b/report/provenance.json: report.confidence 0.5 "),
        (no_margin, "b/report/provenance.json: report.margin 0 "),
        (no_table, "b/train/digits.parquet: "),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], None], named: str
) -> None:
    a = write_experiment(tmp_path / "a", {"digits": run_rows()})
    harm(tmp_path / "b")
    assert main(["compare", str(a), str(tmp_path / "b")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert named in captured.err


_COMMANDS = {
    "prepare": "python -m pipeline.stages.prepare",
    "train": "python -m pipeline.stages.train --study digits",
    "filter": "python -m pipeline.stages.filter --network resnet18",
    "report": "python -m pipeline.stages.report",
}


@pytest.mark.parametrize(
    "name",
    [
        "prepare/metrics.json", "prepare/test.parquet", "prepare/provenance.json", "train/digits.parquet",
        "train/digits.correct.npy", "train/digits.provenance.json", "filter/resnet18/kept.csv",
        "filter/resnet18/metrics.json", "filter/resnet18/provenance.json", "report/provenance.json",
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_with_the_command_that_writes_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write_experiment(tmp_path / "a", {"digits": run_rows()})
    b = write_experiment(tmp_path / "b", {"digits": run_rows(change=gains(noise))}, {"resnet18": ["a"]}, margin=0.5)
    state_planted(b, 1)
    assert main(["compare", str(a), str(b)]) == 0
    whole = (b / name).read_bytes()
    for kind in ("bit in the middle", "a value changed", "a row less", "empty", "a list"):
        if damage(b / name, kind):
            capsys.readouterr()
            assert main(["compare", str(a), str(b)]) == 2, kind
            captured = capsys.readouterr()
            assert captured.out == ""
            error = printed_error(captured.err)
            assert error.key == str(b / name)
            assert f"`{_COMMANDS[name.partition('/')[0]]}`" in str(error)
        (b / name).write_bytes(whole)


def test_stages_without_a_record_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_experiment(tmp_path / "a", {"digits": run_rows()}, KEPT)
    (a / "filter/resnet34/provenance.json").unlink()
    assert main(["compare", str(a), str(a), "--json"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    assert "filter@resnet34:" in captured.err
    assert "filter@resnet18" not in captured.err


@pytest.mark.parametrize(
    ("recorded", "arguments", "margin"),
    [
        ((0.5, 0.7), [], {"points": 0.7, "stated": "report"}),
        ((0.5, 0.7), ["--margin", "0.2"], {"points": 0.2, "stated": "arguments"}),
        ((0.5, None), [], {"points": 0.3, "stated": "default"}),
    ],
)
def test_the_margin_is_that_of_the_second_report_unless_given(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    recorded: tuple[float | None, float | None],
    arguments: list[str],
    margin: dict[str, Any],
) -> None:
    a = write_experiment(tmp_path / "a", {"digits": run_rows()}, margin=recorded[0])
    b = write_experiment(tmp_path / "b", {"digits": run_rows(change=gains(noise))}, margin=recorded[1])
    assert json.loads(printed_by(capsys, a, b, *arguments, "--json"))["margin"] == margin
    assert " ".join(printed_by(capsys, a, b, *arguments).split()).count(f"±{margin['points']:g} ") == 2


@pytest.mark.parametrize(("confidence", "alpha"), [(0.99, 0.01), (None, 0.05)])
def test_the_confidence_is_that_of_the_second_report_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], confidence: float | None, alpha: float
) -> None:
    a = write_experiment(tmp_path / "a", {"digits": run_rows()}, margin=0.5, confidence=0.9)
    b = {"digits": run_rows(change=gains(noise))}
    write_experiment(tmp_path / "b", b, margin=0.5 if confidence else None, confidence=confidence or 0.9)
    shown = printed_by(capsys, a, tmp_path / "b")
    assert f"{100 * (1 - alpha):g} % " in shown
    assert json.loads(printed_by(capsys, a, tmp_path / "b", "--json"))["alpha"] == alpha


@pytest.mark.parametrize("margin", ["0", "-1", "100", "nan", "much"])
def test_a_margin_that_is_none_is_refused(margin: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["compare", ".", ".", f"--margin={margin}"])
    assert raised.value.code == 2
    assert "--margin" in capsys.readouterr().err
