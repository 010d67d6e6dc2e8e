"""benchmarks/all_reduce_times.py writes what `simulate --fit` reads."""

import sys
from pathlib import Path

import pytest

from benchmarks.all_reduce_times import main
from pipeline.simulator.fitting import load_all_reduce_times
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.training import run

_ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_all_reduces_of_two_real_ranks_are_points_to_fit(tmp_path: Path) -> None:
    out, sizes = tmp_path / "points.json", (4_096, 2**24, 2**26)
    words = ["--out", str(out), "--repeats", "5", "--bytes", *map(str, sizes)]
    command = [sys.executable, "-m", "benchmarks.all_reduce_times", *words]
    measured = run(command, timeout=200, environ={"PYTHONPATH": str(_ROOT)})
    assert measured.returncode == 0, measured.stderr
    times = load_all_reduce_times(out)
    assert times.algorithm == "ring"
    assert [(point.n_bytes, point.workers) for point in times.points] == [(size, 2) for size in sizes]
    fit = [sys.executable, "-m", "pipeline", "simulate", "--fit", str(out), "--hold-out", "n_bytes"]
    fitted = run(fit, timeout=200, environ={"PYTHONPATH": str(_ROOT)})
    assert fitted.returncode == 0, fitted.stderr
    assert "bytes_per_second: " in fitted.stdout


@pytest.mark.parametrize(
    ("words", "key"), [(["--ranks", "1"], "--ranks 1"), (["--algorithm", "tree"], "--algorithm tree")]
)
def test_what_cannot_be_measured_is_refused(
    words: list[str], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        main([*words, "--out", str(tmp_path / "points.json")])
    assert printed_error(capsys.readouterr().err).key == key
