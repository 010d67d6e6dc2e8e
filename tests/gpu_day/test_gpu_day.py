"""`python -m benchmarks.gpu_day --dry-run`: all its steps at tiny sizes, on the bare requirements."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from made_up_training import alive, descendants, kill, run, start, wait_until

from benchmarks.gpu_day.__main__ import STEPS, main, summary

# What a machine with a GPU may lack; an import of a name that is bound to None fails.
_MISSING = ("dask", "distributed", "dvc", "openTSNE", "optuna", "plotly", "dash", "ruamel", "pandas", "matplotlib")
_WITHOUT = f"""
import sys
if sys.argv[0] == "-c" or "multiprocessing" in " ".join(sys.orig_argv) or "gpu_day" in " ".join(sys.orig_argv):
    sys.modules.update(dict.fromkeys({_MISSING}))
"""
_TIMEOUT_S = 400


def _command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.gpu_day", "--dry-run", "--out", str(folder), *options]


def test_killed_and_started_again_it_ends_with_a_result_of_every_step(tmp_path: Path) -> None:
    """Without what the training path can do without."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_WITHOUT)
    environ = {"PYTHONPATH": str(tmp_path / "site")}
    out = tmp_path / "out"
    call = start(_command(out), environ=environ)
    try:
        wait_until((out / "smoke.json").exists, call, timeout=_TIMEOUT_S)
        wait_until(lambda: any(out.glob("throughput*.rows.jsonl")), call, timeout=_TIMEOUT_S)
        family = descendants(call.pid)
        call.send_signal(signal.SIGKILL)
        call.wait()
    finally:
        kill(call)
    first = (out / "smoke.json").read_bytes()
    done = run(_command(out), environ=environ, timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr + (out / "summary.md").read_text()
    assert not alive(family)
    assert (out / "smoke.json").read_bytes() == first
    results = {step.name: json.loads((out / f"{step.name}.json").read_text()) for step in STEPS}
    assert {path.name for path in out.iterdir()} == {*(f"{name}.json" for name in results), "summary.md"}
    assert {result["status"] for result in results.values()} == {"finished"}
    _check_rows(results)
    before = {path: path.read_bytes() for path in out.iterdir()}
    again = run(_command(out, "--minutes", "0"), environ=environ)
    assert (again.returncode, again.stdout) == (0, f"summary: {out / 'summary.md'}\n")
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def _check_rows(results: dict[str, Any]) -> None:
    rows = {name: result["rows"] for name, result in results.items()}
    assert all(row["finite"] and row["trained"] for row in rows["smoke"])
    assert {row["case"].split()[-1] for row in rows["smoke"]} == {"fp32", "tf32", "bf16", "fp16"}
    (bits,) = rows["bits"]
    assert bits["same_twice"] and bits["same_after_kill"], bits
    assert 0 < bits["resumed_from_step"] < 21
    agreement, speed = rows["small-maps-fp32"]
    assert agreement["agrees"] and 0 < agreement["distance"] < 1e-12
    assert {"plain", "small_maps", "ratio", "ms_a_step"} <= set(speed)
    for name, others in {"throughput-28px-bf16": {"bare", "bare_fastest"}, "compiling-28px-bf16": {"compiled"}}.items():
        (row,) = rows[name]
        assert {"ours", "ratio", "lowest", "highest"} | others <= set(row)


def test_no_limit_reaches_nine_minutes() -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert all(step.limit_s < 540 for step in STEPS)


def test_the_list_says_what_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "bits", "smoke", "--out", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == [
        "smoke",
        "300",
        "s",
        *["every", "network", "in", "every", "precision", "trains", "a", "few", "steps:", "not", "run"],
    ]
    assert second.startswith("bits ")
    assert not [*tmp_path.iterdir()]


def test_a_table_has_its_errors_in_one_line() -> None:
    rows = [{"case": "a", "ratio": 1.0}, {"case": "b", "error": "RuntimeError: x |\ny"}]
    result = {"machine": {"device": "cpu"}, "status": "finished", "seconds": 1.5, "about": "x", "rows": rows}
    lines = summary(STEPS[:1], {STEPS[0].name: result}).splitlines()
    assert lines[-1] == "| b |  | RuntimeError: x / y |"
    assert "| smoke | finished | 1.5 | 2 cases, 1 failed; ratio 1.0 to 1.0, median 1.0 |" in lines
