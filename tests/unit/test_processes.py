"""Functions of the operating system for processes."""

import gc
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.processes import freeze_imported_objects, signal_handler
from tests.fixtures.projects import ROOT
from tests.fixtures.training import run

_CODE = """
import resource, sys
from pipeline.processes import disable_malloc_trim
if sys.argv[1] == "keep":
    disable_malloc_trim()
for _ in range(20):
    b"x" * 2**26
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


@pytest.mark.slow
def test_freed_memory_is_used_again_without_page_faults() -> None:
    """Twenty arrays of 64 MB, one after another, touch the pages of one."""
    faults = {}
    for how in ("keep", "return"):
        done = run([sys.executable, "-c", _CODE, how], fresh=True)
        assert done.returncode == 0, done.stderr
        faults[how] = int(done.stdout)
    assert faults["keep"] < faults["return"] / 4


_PROCESS_1 = """
import subprocess, sys
code = "from pipeline.processes import is_orphaned; print(is_orphaned('dvc'))"
sys.exit(subprocess.run([sys.executable, "-c", code]).returncode)
"""
_IN_A_CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]


def _can_unshare() -> bool:
    return (
        shutil.which("unshare") is not None and subprocess.run([*_IN_A_CONTAINER, "true"], check=False).returncode == 0
    )


@pytest.mark.parametrize(("name", "adopted"), [("dvc", "False"), ("init", "True")])
def test_a_child_of_process_1_is_adopted_unless_dvc_is_process_1(name: str, adopted: str, tmp_path: Path) -> None:
    if not _can_unshare():
        pytest.skip("needs the right to make a namespace of processes (`unshare --user --pid`)")
    (tmp_path / name).write_text(_PROCESS_1)
    done = run([*_IN_A_CONTAINER, sys.executable, str(tmp_path / name)], environ={"PYTHONPATH": str(ROOT)}, fresh=True)
    assert (done.returncode, done.stdout.strip()) == (0, adopted), done.stderr


@pytest.mark.parametrize(
    ("words", "collects"),
    [
        (["-m", "pipeline.stages.train", "--study=a"], False),
        (["-u", "-m", "pipeline", "plan"], False),
        (["-m", "pipelines.pipeline"], True),
        (["-m", "benchmarks.small_maps"], True),
    ],
)
def test_imports_of_a_program_are_not_searched_for_garbage(words: list[str], collects: bool) -> None:
    """Only those of the programs of this package, which turn the collector on again."""
    code = f"import sys; sys.argv, sys.orig_argv = ['-m'], {[sys.executable, *words]}; import pipeline, gc"
    done = run([sys.executable, "-c", f"{code}; print(gc.isenabled())"], fresh=True)
    assert done.stdout == f"{collects}\n", done.stderr


def test_a_program_of_another_package_keeps_its_garbage_collector(tmp_path: Path) -> None:
    package = tmp_path / "other"
    package.mkdir()
    (package / "__init__.py").write_text("import pipeline\n")
    (package / "__main__.py").write_text("import gc\nprint(gc.isenabled())\n")
    done = run([sys.executable, "-m", "other"], environ={"PYTHONPATH": f"{ROOT}:{tmp_path}"}, fresh=True)
    assert done.stdout == "True\n", done.stderr


def test_the_collector_is_on_after_the_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)  # this process has garbage
    gc.disable()
    try:
        freeze_imported_objects.__wrapped__()
        assert gc.isenabled()
    finally:
        gc.enable()


def test_every_program_turns_the_collector_on() -> None:
    starts = ("exit_codes", "run_stage", "run_parallel_stage", "run_command", "freeze_imported_objects")
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "pipeline").rglob("*.py")}
    programs = {path for path, text in texts.items() if '__name__ == "__main__"' in text}
    assert len(programs) >= 10
    assert {path for path in programs if not any(f"{name}(" in texts[path] for name in starts)} == set()


@pytest.mark.parametrize("ignored", [True, False])
def test_an_ignored_interrupt_stays_ignored(ignored: bool) -> None:
    received: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        earlier = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        with signal_handler(lambda number, _: received.append(number)):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == earlier
    finally:
        signal.signal(signal.SIGINT, before)
    assert received == ([] if ignored else [signal.SIGINT]) + [signal.SIGTERM]
