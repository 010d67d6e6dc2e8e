"""`python -m benchmarks.gpu_day --dry-run` runs all steps at tiny sizes, with the minimal requirements."""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch

from benchmarks.gpu_day import __main__ as gpu_day
from benchmarks.gpu_day.__main__ import STEPS, main, summary
from benchmarks.gpu_day.running import GpuDayStep
from benchmarks.gpu_day.studies import LEDGER
from benchmarks.unpacking import unpack
from pipeline.commands.runs import import_runs
from pipeline.config.params import load_params
from pipeline.paths import DataPaths
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.process_tree import alive, descendants
from tests.fixtures.projects import write_params
from tests.fixtures.training import kill, run, start, wait_until

# Packages that a machine with a GPU may lack; the import of a module that is None in sys.modules fails.
_MISSING = (
    *("dask", "distributed", "dvc", "openTSNE", "optuna", "plotly", "dash", "pandas", "matplotlib", "faiss"),
    *("ruamel", "sklearn", "timm", "pynvml"),
)
_WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({_MISSING}))"
_TIMEOUT_S = 800
_REPEATED = frozenset({
    "profile-32px-cifar-bf16", "workers-32px-cifar-bf16", "compiling-32px-cifar-bf16",
    "throughput-28px-fp32", "throughput-32px-cifar-fp32", "small-maps-bf16",
})  # fmt: skip
"""Steps whose work another one does: in a dry run they differ from it at most by the stem of the network."""
_ONCE = [step for step in STEPS if step.name not in _REPEATED]


def _command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.gpu_day", "--dry-run", "--out", str(folder), *options]


def test_steps_that_are_run_once_do_the_work_of_all() -> None:
    def does(step: GpuDayStep, *left_out: str) -> tuple[object, ...]:
        return (step.work, *((name, value) for name, value in step.options.items() if name not in left_out))

    assert len(_ONCE) + len(_REPEATED) == len(STEPS)
    once = {does(step, "size", "stem", "precision") for step in _ONCE}
    assert once == {does(step, "size", "stem", "precision") for step in STEPS}
    assert {step.options.get("stem") for step in _ONCE} == {step.options.get("stem") for step in STEPS}


@pytest.mark.slow
def test_after_a_kill_and_a_restart_every_step_has_a_result(tmp_path: Path) -> None:
    """The packages that training does not need are missing."""
    command = partial(_command, tmp_path / "out", "--only", *(step.name for step in _ONCE))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_WITHOUT)
    environ = {"PYTHONPATH": str(tmp_path / "site")}
    assert run([sys.executable, "-c", "import plotly"], environ=environ, fresh=True).returncode == 1
    out = tmp_path / "out"
    call = start(command(), environ=environ, fresh=True)
    try:
        wait_until((out / "smoke.json").exists, call, timeout=_TIMEOUT_S)
        wait_until(lambda: any(out.glob("throughput*.rows.jsonl")), call, timeout=_TIMEOUT_S)
        family = descendants(call.pid)
        call.send_signal(signal.SIGKILL)
        call.wait()
    finally:
        kill(call)
    first = (out / "smoke.json").read_bytes()
    done = run(command(), environ=environ, timeout=_TIMEOUT_S, fresh=True)
    assert done.returncode == 0, done.stdout + done.stderr + (out / "summary.md").read_text()
    assert not alive(family)
    assert (out / "smoke.json").read_bytes() == first
    results = {step.name: json.loads((out / f"{step.name}.json").read_text()) for step in _ONCE}
    assert {path.name for path in out.iterdir()} == {*(f"{name}.json" for name in results), "summary.md"}
    for name, package in {
        "tsne": "openTSNE is",
        "ranks": "timm is",
        "studies": "ruamel, sklearn, timm, pynvml",
    }.items():
        row = results[name]["rows"][-1]
        assert row["skipped"].startswith(f"{package} not installed")
    assert {result["status"] for result in results.values()} == {"finished"}
    _check_rows(results)
    before = {path: path.read_bytes() for path in out.iterdir()}
    again = run(command("--minutes", "0"), environ=environ, fresh=True)
    assert (again.returncode, again.stdout) == (0, f"summary: {out / 'summary.md'}\n")
    assert {path: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.slow
def test_studies_fill_a_ledger_that_another_project_imports(tmp_path: Path) -> None:
    """With all packages: two ranks, t-SNE, and a tiny study in its own project; then a machine that starts bare."""
    out, packed, only = tmp_path / "out", tmp_path / "results.tar.gz", ("--only", "ranks", "tsne", "studies")
    done = run(_command(out, *only, "--pack", str(packed)), timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    (embedded,) = json.loads((out / "tsne.json").read_text())["rows"]
    assert embedded["finite"]
    with_itself, two = json.loads((out / "ranks.json").read_text())["rows"]
    assert all(with_itself[f"same_bits_{name}"] for name in ("exact", "ddp", "hierarchical"))
    assert two["same_bits"]
    (trained,) = json.loads((out / "studies.json").read_text())["rows"]
    assert (trained["exit_code"], trained["finished_runs"]) == (0, 2)
    unpack(out / LEDGER, tmp_path / "work")
    assert len([*(tmp_path / "work/cells").glob("*/result.json")]) == 2
    assert not [*(tmp_path / "work").rglob("*.pt")]
    params = write_params(tmp_path)
    import_runs(tmp_path / "work", tmp_path / "ours", load_params(params), DataPaths(root=tmp_path / "data"))
    assert len([*(tmp_path / "ours/cells").glob("*/result.json")]) >= 2
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    again = run(_command(tmp_path / "bare", *only, "--earlier", str(packed)))
    assert (again.returncode, again.stdout) == (0, f"summary: {tmp_path / 'bare/summary.md'}\n")
    assert {path.name: path.read_bytes() for path in (tmp_path / "bare").iterdir()} == before


def test_bad_arguments_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--project", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "add --studies NAME" in capsys.readouterr().err
    assert main(["--earlier", str(tmp_path / "none.tar.gz"), "--out", str(tmp_path / "out"), "--list"]) == 2
    assert "none.tar.gz cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_a_missing_package_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['pydantic'] = None")
    done = run(_command(tmp_path / "out"), environ={"PYTHONPATH": str(tmp_path)}, fresh=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: import of pydantic halted; ")
    assert "; install the package; docs/guides/gpu-day.md " in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_real_run_has_every_network_precision_and_batch_size() -> None:
    """The case names are listed without a measurement."""
    cases = {step.name: [*resolve_name(step.work)(dry_run=False, **step.options)] for step in STEPS}
    assert len(cases["smoke"]) == 4 * (2 * 5 + 3)
    assert cases["throughput-28px-bf16"] == ["batch 4096", "batch 16", "batch 256", "batch 20480"]
    assert len(cases["small-maps-bf16"]) == 3 + 3 * 4
    assert cases["bits"][:4] == ["bf16", "fp32", "fp16", "tf32"]
    workers = [f"batch {batch}, {count} workers" for count in (8, 32) for batch in (4096, 16, 256, 20480)]
    assert cases["workers-28px-bf16"] == [name for name in workers if name != "batch 16, 32 workers"]
    sizes = ["batch 4096", "batch 16", "batch 256"]
    assert cases["graphs-28px-bf16"] == [*(f"{size}, bare" for size in sizes), *sizes]


def test_the_dry_run_of_bits_has_all_that_needs_no_compiler() -> None:
    (step,) = (step for step in STEPS if step.name == "bits")
    real, dry = ([*resolve_name(step.work)(dry_run=dry_run)] for dry_run in (False, True))
    without = [name for name in real if name not in ("bf16, compiled", "bf16, CUDA graphs")]
    assert [name.replace("4 workers", "8 workers") for name in dry] == without


def test_the_padding_question_is_asked_right_after_the_smoke_test() -> None:
    assert [step.name for step in STEPS[:2]] == ["smoke", "padding"]


def test_a_dry_run_leaves_the_environment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hides the GPU and turns off the compiler for its steps alone: this process may compile later."""
    seen: list[str | None] = []
    monkeypatch.setattr(gpu_day, "run_steps", lambda *_, **__: seen.append(os.environ.get("TORCHDYNAMO_DISABLE")))
    before = dict(os.environ)
    assert gpu_day.main(["--dry-run", "--only", "smoke", "--out", str(tmp_path)]) == 0
    assert seen == ["1"]
    assert dict(os.environ) == before


def test_a_file_that_would_not_come_back_is_an_error_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_day, "run_steps", lambda *_, **__: None)
    out, packed = tmp_path / "out", tmp_path / "packed.tar.gz"
    out.mkdir()
    arguments = ["--dry-run", "--only", "smoke", "--out", str(out), "--pack", str(packed)]
    assert gpu_day.main(arguments) == 0
    assert capsys.readouterr().err == ""
    (out / LEDGER).write_bytes(os.urandom((16 << 20) + (1 << 19)))
    assert gpu_day.main(arguments) == 0
    big = "is larger than the 16 MiB up to which a file comes back from a lent machine; give fewer --studies"
    assert capsys.readouterr().err.splitlines() == [
        f"error: {path}: {size} MiB, {big}" for path, size in ((out / LEDGER, 16.5), (packed, 16.5))
    ]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_the_command_is_refused(tmp_path: Path) -> None:
    done = run([sys.executable, "-m", "benchmarks.gpu_day", "--out", str(tmp_path / "out")])
    assert done.returncode == 2
    error = printed_error(done.stderr)
    assert error.key == "gpu_day"
    assert "--dry-run" in str(error)
    assert not (tmp_path / "out").exists()


def _check_rows(results: dict[str, Any]) -> None:
    rows = {name: result["rows"] for name, result in results.items()}
    assert all(row["finite"] and row["trained"] for row in rows["smoke"])
    assert {row["case"].split()[-1] for row in rows["smoke"]} == {"fp32", "tf32", "bf16", "fp16"}
    for bits in rows["bits"]:
        assert bits["same_twice"], bits
        assert bits["same_after_kill"], bits
        assert bits["same_without_graphs"], bits
        assert 0 < bits["resumed_from_step"] < 9, bits
    agreement, speed = rows["small-maps-fp32"]
    assert agreement["agrees"]
    assert 0 < agreement["distance"] < 1e-12
    assert {"plain", "small_maps", "ratio", "ms_a_step"} <= set(speed)
    (profiled,) = rows["profile-28px-bf16"]
    assert profiled["operations_a_step"] > 0
    assert profiled["device_ms_a_step"] > 0
    assert "ms" in profiled["most_expensive"]
    (extracted,) = rows["extraction"]
    assert extracted["images_per_s"] > 0
    bare = {"bare", "bare_fastest", "plain"}
    for name, others in {
        "throughput-28px-bf16": bare,
        "workers-28px-bf16": bare,
        "graphs-28px-bf16": {"graphs"},
        "compiling-28px-bf16": {"compiled"},
    }.items():
        (row,) = rows[name]
        assert {"ours", "ratio", "lowest", "highest"} | others <= set(row)


def test_no_limit_reaches_nine_minutes() -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert all(step.limit_s < 540 for step in STEPS)


def test_the_list_marks_finished_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "bits", "smoke", "--out", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:3] == ["smoke", "300", "s"]
    assert first.endswith(": not run")
    assert second.startswith("bits ")
    assert not [*tmp_path.iterdir()]


def test_a_table_has_its_errors_in_one_line() -> None:
    rows = [{"case": "a", "ratio": 1.0}, {"case": "b", "error": "RuntimeError: x |\ny"}]
    result = {"machine": {"device": "cpu"}, "status": "finished", "seconds": 1.5, "about": "x", "rows": rows}
    lines = summary(STEPS[:1], {STEPS[0].name: result}).splitlines()
    assert lines[-1] == "| b |  | RuntimeError: x / y |"
    (row,) = (line for line in lines if line.startswith("| smoke |"))
    assert row == "| smoke | finished | 1.5 | 2 cases, 1 failed; ratio 1.0 to 1.0, median 1.0 |"
