"""The targets of the Makefile and .ci/run, on copies with stand-ins for Python and make."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]

_WITHOUT_AVX512 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with what the Makefile itself needs, and no .venv."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock", ".gitignore", "data/.gitignore"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_ROOT / name, tmp_path / name)
    return tmp_path


def _make(
    folder: Path, *arguments: str, answer: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    # Under `make test` this make would take the outer one's options.
    inherited = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env={**inherited, **environment},
        input=answer or "",
        capture_output=True,
        text=True,
        check=False,
    )


def _script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_help_lists_every_target(project: Path) -> None:
    phony = re.search(r"^\.PHONY: (.+)$", (project / "Makefile").read_text(), flags=re.MULTILINE)
    assert phony is not None
    shown = _make(project, "help").stdout
    assert {line.split()[1] for line in shown.splitlines()} == set(phony[1].split())
    assert _make(project).stdout == shown


def test_repro_validates_and_repairs_first_and_verifies_last(project: Path) -> None:
    (project / ".venv/bin").mkdir(parents=True)
    for name in (".venv/bin/python", ".venv/.installed"):
        (project / name).touch()
    lines = _make(project, "-n", "repro").stdout.splitlines()
    ours = [f"python -m pipeline {command}" for command in ("validate", "repair", "check-lock")]
    assert lines[:4] == [*ours[:2], "dvc repro", ours[2]]
    assert lines[4].startswith('echo "report: ')


def test_setup_installs_again_only_when_the_requirements_change(project: Path) -> None:
    _script(project / ".venv/bin/python", 'echo "$@" >> calls')
    calls = project / "calls"
    assert _make(project, "setup").returncode == 0
    install, compile_all = calls.read_text().splitlines()
    assert install.endswith("-c requirements.lock -e .[all]")
    assert compile_all.startswith("-m compileall")
    _make(project, "setup")
    assert len(calls.read_text().splitlines()) == 2
    for count, name in ((4, "pyproject.toml"), (6, "requirements.lock")):
        later = (project / ".venv/.installed").stat().st_mtime + count
        os.utime(project / name, (later, later))
        _make(project, "setup")
        assert len(calls.read_text().splitlines()) == count
        os.utime(project / ".venv/.installed", (later + 1, later + 1))


def test_failed_installation_is_tried_again(project: Path) -> None:
    _script(project / ".venv/bin/python", "exit 1")
    assert _make(project, "setup").returncode == 2
    assert not (project / ".venv/.installed").exists()


@pytest.mark.parametrize(
    "python",
    ['case "$2" in *version*) exit 1;; esac', 'case "$2" in *ensurepip*) exit 1;; esac'],
)
def test_unsupported_python_is_one_line_and_no_environment(project: Path, python: str) -> None:
    fake = _script(project / "fake", python)
    answer = _make(project, "setup", f"PYTHON={fake}")
    assert answer.returncode == 2
    assert answer.stderr.splitlines()[0].startswith(f"error: {fake} ")
    assert not (project / ".venv").exists()


def test_interrupted_venv_is_removed(project: Path) -> None:
    fake = _script(project / "fake", 'case "$2" in venv) mkdir -p .venv/bin; touch .venv/bin/python; exit 1;; esac')
    assert _make(project, "setup", f"PYTHON={fake}").returncode == 2
    assert not (project / ".venv").exists()


def test_the_callers_environment_does_not_leak(project: Path) -> None:
    answer = _make(
        project, "--eval=show: ; @env", "show", PYTHONPATH="/elsewhere", VIRTUAL_ENV="/other", PYTHONHOME="/third"
    )
    shown = dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME"} & set(shown)
    assert shown["PATH"].split(":")[0] == str(project / ".venv/bin")


def test_bench_runs_programs_without_arguments_until_one_fails(project: Path) -> None:
    shutil.copytree(_ROOT / "benchmarks", project / "benchmarks")
    _script(project / ".venv/bin/python", 'echo "$@" >> calls; [ "$2" != benchmarks.training_costs ]')
    (project / ".venv/.installed").touch()
    assert _make(project, "bench").returncode != 0
    *_, last = called = (project / "calls").read_text().split("\n")[:-1]
    names = [call.removeprefix("-m benchmarks.") for call in called]
    assert {"import_time", "large_batch_simulation", "loop_speed"} < set(names)
    assert not {"filter_gallery", "optimizer_study", "measuring", "label_noise"} & set(names)
    assert last == "-m benchmarks.training_costs", "the one after it is not run"
    for name in names:
        assert "required=True" not in (_ROOT / f"benchmarks/{name}.py").read_text()


@pytest.mark.parametrize("flags", ["avx2 avx512f avx512bw", "sse2 avx2"], ids=["with AVX-512", "without"])
def test_numeric_tests_run_again_as_without_avx512(project: Path, flags: str) -> None:
    """Where the processor lacks it, they have run so by `make test`, and only all canonical runs are left."""
    shown = " ".join(f"{name}=${name}" for name in _WITHOUT_AVX512)
    _script(project / ".venv/bin/pytest", f'echo "{shown}" "$@"')
    for name in (".venv/bin/python", ".venv/.installed"):
        (project / name).touch()
    (project / "cpuinfo").write_text(f"flags : {flags}\n")
    answer = _make(project, "test-avx2", "CPUINFO=cpuinfo")
    assert answer.returncode == 0, answer.stderr
    again = "avx512f" in flags
    for name, value in _WITHOUT_AVX512.items():
        assert answer.stdout.count(f"{name}={value} ") == 1 + again
    paths = [word for word in answer.stdout.split() if word.startswith("tests/")]
    numeric = ("distributed", "training", "models", "optim", "runs", "run_analysis")
    assert paths == [
        *(["tests/integration/distributed", *(f"tests/unit/{name}" for name in numeric)] if again else []),
        "tests/unit/training/test_canonical_runs.py",
    ]
    assert ("no AVX-512 here" in answer.stdout) != again
    assert all((_ROOT / path).exists() for path in paths)


@pytest.fixture
def outputs(project: Path) -> dict[str, Path]:
    """A repository in which the pipeline has run, and a person's own files."""
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    files = {
        "output": project / "data/train/digits.parquet",
        "nested": project / "data/filter/resnet18/kept.csv",
        "ledger": project / ".work/cells/abc/result.json",
        "overrides": project / "data/overrides.csv",
        "images": project / "data/my_images/cat/1.png",
        "params": project / "params.yaml",
        "cache": project / ".dvc/cache/files",
    }
    for path in files.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return files


@pytest.mark.parametrize("answer", [None, "", "n\n", "yes please\n"])
def test_clean_deletes_nothing_without_a_yes(project: Path, outputs: dict[str, Path], answer: str | None) -> None:
    result = _make(project, "clean", answer=answer)
    assert result.returncode == 2
    assert "data/train" in result.stdout
    assert "my_images" not in result.stdout
    assert all(path.exists() for path in outputs.values())


@pytest.mark.parametrize(("arguments", "answer"), [((), "y\n"), (("YES=1",), None)])
def test_clean_deletes_outputs_and_nothing_of_a_persons(
    project: Path, outputs: dict[str, Path], arguments: tuple[str, ...], answer: str | None
) -> None:
    assert _make(project, "clean", *arguments, answer=answer).returncode == 0
    assert {name for name, path in outputs.items() if path.exists()} == {"overrides", "images", "params", "cache"}


@pytest.mark.parametrize(
    ("failing", "code"),
    [("none", 0), ("test", 3), ("test-avx2", 3), ("check", 3)],
    ids=["all-pass", "tests-fail", "tests-without-avx512-fail", "checks-fail"],
)
def test_ci_runs_tests_and_checks_and_fails_with_the_first(tmp_path: Path, failing: str, code: int) -> None:
    _script(tmp_path / "bin/make", f'echo "ran $1 with CI=$CI"; [ "$1" != {failing} ] || exit 3')
    _script(tmp_path / ".venv/bin/python", "true")  # installs nothing
    (tmp_path / ".ci").mkdir()
    shutil.copy(_ROOT / ".ci/run", tmp_path / ".ci/run")
    answer = subprocess.run(
        [tmp_path / ".ci/run"],
        env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == code
    ran = [line for line in answer.stdout.splitlines() if line.startswith("ran ")]
    assert ran == [f"ran {target} with CI=true" for target in ("test", "test-avx2", "check")]
    assert re.search(r"^make check: exit \d after \d+ s$", answer.stdout, flags=re.MULTILINE)
