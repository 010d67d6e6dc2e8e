"""Finished runs on disk: complete or absent; errors name a damaged one."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.artifacts.files import read_json, remove_leftovers, write_json
from pipeline.energy import UNKNOWN_ENERGY, Energy
from pipeline.errors import InputError
from pipeline.models import build_network
from pipeline.runs.ledger import Ledger, RunResult
from pipeline.training.run_key import RunKey
from pipeline.training.state import ChainLink, HistoryRecord
from pipeline.training.weights import save_trained
from tests.fixtures.training import TIMEOUT_S, TINY, environment

_DEAD = 4194305  # above the largest process id
KEY, OTHER_KEY = (
    RunKey(job={"settings": {"seed": seed}}, machine={"torch": "2.0", "threads": None}) for seed in (0, 1)
)
FINISHED = RunResult(
    status="finished",
    top1=0.75,
    balanced_accuracy=0.1 + 0.2,
    loss=1 / 3,
    history=(HistoryRecord(epoch=1.5, step=3, examples=60, train_loss=0.1, lr=0.05),),
    correct=np.array([True, False, True, True]),
    workers=2,
    hardware=("4 processes of 1 threads on cpu", "2 processes on cuda"),
    skipped_steps=3,
    micro_batch=512,
    critical_batch={"critical_batch": 100.5, "n_samples": 7, "low": None},
    links=(ChainLink(step=2, sha256="0a" * 32), ChainLink(step=3, sha256="f7" * 32)),
    seconds=1.5,
    joules=Energy(gpu=250.25, cpu=None, memory=0.5),
)
DIVERGED = RunResult(
    status="diverged",
    top1=None,
    balanced_accuracy=None,
    loss=None,
    history=(HistoryRecord(epoch=0.5, step=2, examples=40, train_loss=None, lr=0.05),),
    correct=None,
    workers=1,
    hardware=("1 processes of 2 threads on cpu",),
    skipped_steps=0,
    micro_batch=20,
    critical_batch=None,
    seconds=0.5,
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "runs")


def _check_equal(one: RunResult, other: RunResult) -> None:
    assert replace(one, correct=None) == replace(other, correct=None)
    np.testing.assert_array_equal(one.correct, other.correct)


@pytest.mark.parametrize("result", [FINISHED, DIVERGED])
def test_an_added_result_is_read_back(ledger: Ledger, result: RunResult) -> None:
    assert not ledger.has(KEY.fingerprint)
    ledger.add(KEY, result)
    assert ledger.has(KEY.fingerprint)
    _check_equal(ledger.get(KEY.fingerprint), result)


def test_an_entry_without_energy_has_unknown_energy(ledger: Ledger, tmp_path: Path) -> None:
    ledger.add(KEY, FINISHED)
    write_json(tmp_path / "runs" / KEY.fingerprint / "timing.json", {"seconds": 1.5})
    _check_equal(ledger.get(KEY.fingerprint), replace(FINISHED, joules=UNKNOWN_ENERGY))


def test_an_entry_without_links_has_no_hash_chain(ledger: Ledger, tmp_path: Path) -> None:
    ledger.add(KEY, FINISHED)
    path = tmp_path / "runs" / KEY.fingerprint / "result.json"
    record = read_json(path)
    del record["links"]
    write_json(path, record)
    _check_equal(ledger.get(KEY.fingerprint), replace(FINISHED, links=()))


def test_an_imported_result_names_its_machine(ledger: Ledger) -> None:
    imported = replace(FINISHED, imported_from={"torch": "2.0", "device": "another"})
    ledger.add(KEY, imported)
    _check_equal(ledger.get(KEY.fingerprint), imported)


@pytest.mark.parametrize("part", ["", "old."])
def test_leftovers_of_a_process_with_the_same_id_are_replaced(ledger: Ledger, tmp_path: Path, part: str) -> None:
    ledger.add(KEY, DIVERGED)
    leftover = tmp_path / "runs" / f".{KEY.fingerprint}.{part}{os.getpid()}.tmp"
    leftover.mkdir()
    (leftover / "result.json").write_text("{}")
    ledger.add(KEY, FINISHED)
    _check_equal(ledger.get(KEY.fingerprint), FINISHED)
    assert not leftover.exists()


def test_each_entry_has_its_run_key(ledger: Ledger, tmp_path: Path) -> None:
    assert list(ledger.run_keys()) == []
    ledger.add(KEY, FINISHED)
    ledger.add(OTHER_KEY, DIVERGED)
    (tmp_path / "runs" / f".{KEY.fingerprint}.1.tmp").mkdir()  # of a process that was killed
    assert list(ledger.run_keys()) == sorted((KEY, OTHER_KEY), key=lambda key: key.fingerprint)


@pytest.mark.parametrize("text", ["[]", "{}", '{"job": {}}', "3", "", "{"])
def test_an_entry_with_a_damaged_run_key_is_named(ledger: Ledger, tmp_path: Path, text: str) -> None:
    ledger.add(KEY, FINISHED)
    (tmp_path / "runs" / KEY.fingerprint / "identity.json").write_text(text)
    with pytest.raises(InputError) as raised:
        list(ledger.run_keys())
    assert Path(raised.value.key).is_relative_to(tmp_path / "runs" / KEY.fingerprint)


def test_equal_results_are_equal_bytes_but_for_the_time(tmp_path: Path) -> None:
    for name, seconds in (("one", 1.0), ("other", 2.0)):
        Ledger(tmp_path / name).add(KEY, replace(FINISHED, seconds=seconds))
    for file in ("result.json", "correct.npy", "identity.json"):
        assert (tmp_path / "one" / KEY.fingerprint / file).read_bytes() == (
            tmp_path / "other" / KEY.fingerprint / file
        ).read_bytes()


def test_weights_are_moved_into_the_entry(ledger: Ledger, tmp_path: Path) -> None:
    weights = tmp_path / "w.tmp"
    weights.write_bytes(b"weights")
    ledger.add(KEY, FINISHED, weights)
    assert not weights.exists()
    assert ledger.weights(KEY.fingerprint).read_bytes() == b"weights"
    assert ledger.has(KEY.fingerprint, with_weights=True)


def test_an_entry_without_required_weights_is_missing(ledger: Ledger, tmp_path: Path) -> None:
    ledger.add(KEY, FINISHED)
    ledger.add(OTHER_KEY, DIVERGED)
    assert not ledger.has(KEY.fingerprint, with_weights=True)
    assert ledger.has(OTHER_KEY.fingerprint, with_weights=True)  # there are none to wait for
    (tmp_path / "w").write_bytes(b"weights")
    ledger.add(KEY, FINISHED, tmp_path / "w")
    assert ledger.has(KEY.fingerprint, with_weights=True)


@pytest.mark.slow
def test_a_killed_add_leaves_no_entry(ledger: Ledger, tmp_path: Path) -> None:
    """Killed at the last moment before the rename, in a separate process."""
    script = f"""
import os, signal, sys
sys.path.insert(0, ".")
from pathlib import Path
from tests.unit.runs.test_ledger import FINISHED, KEY, Ledger
Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
Ledger(Path({str(tmp_path / "runs")!r})).add(KEY, FINISHED)
"""
    root = Path(__file__).parents[3]
    killed = subprocess.run([sys.executable, "-c", script], cwd=root, env=environment(), timeout=TIMEOUT_S, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = (tmp_path / "runs").iterdir()
    assert (left / "result.json").exists()
    assert not ledger.has(KEY.fingerprint)
    remove_leftovers(tmp_path / "runs")
    assert not list((tmp_path / "runs").iterdir())
    ledger.add(KEY, FINISHED)
    _check_equal(ledger.get(KEY.fingerprint), FINISHED)


def _interrupt_replacement(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop between the two renames."""
    rename = Path.rename

    def stopped(source: Path, target: Path) -> Path:
        if target.name == KEY.fingerprint:
            raise KeyboardInterrupt
        return rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", stopped)
        with pytest.raises(KeyboardInterrupt):
            ledger.add(KEY, DIVERGED)


@pytest.mark.parametrize("pid", [os.getpid(), _DEAD], ids=["own", "dead"])
def test_a_kill_during_a_replacement_loses_no_run(
    ledger: Ledger, tmp_path: Path, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.add(KEY, FINISHED)
    _interrupt_replacement(ledger, monkeypatch)
    for leftover in (tmp_path / "runs").iterdir():
        leftover.rename(str(leftover).replace(f".{os.getpid()}.", f".{pid}."))
    (line,) = ledger.restore_replaced()
    assert line.startswith(f"{tmp_path / 'runs' / KEY.fingerprint}: ")
    remove_leftovers(tmp_path / "runs")
    _check_equal(ledger.get(KEY.fingerprint), FINISHED)
    assert ledger.restore_replaced() == []


def test_of_a_replaced_run_nothing_comes_back(ledger: Ledger, tmp_path: Path) -> None:
    """Of a running process, of a run that is there, and of one that was partly deleted."""
    ledger.add(KEY, FINISHED)
    entry = ledger.folder(KEY.fingerprint)
    running = entry.with_name(f".{OTHER_KEY.fingerprint}.old.{os.getppid()}.tmp")
    shutil.copytree(entry, running)
    shutil.copytree(entry, entry.with_name(f".{KEY.fingerprint}.old.{_DEAD}.tmp"))
    partly = entry.with_name(f".{'0a' * 12}.old.{_DEAD}.tmp")
    shutil.copytree(entry, partly)
    (partly / "correct.npy").unlink()
    assert ledger.restore_replaced() == []
    assert [run.fingerprint for run in ledger.run_keys()] == [KEY.fingerprint]
    remove_leftovers(tmp_path / "runs")
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {entry.name, running.name}


def test_leftovers_of_running_processes_stay(tmp_path: Path) -> None:
    mine, gone = tmp_path / f".k.{os.getpid()}.tmp", tmp_path / f".k.{_DEAD}.tmp"
    for folder in (mine, gone):
        folder.mkdir()
    remove_leftovers(tmp_path)
    assert mine.exists()
    assert not gone.exists()


_DAMAGE: dict[str, Callable[[Path], object]] = {
    "no result": lambda entry: (entry / "result.json").unlink(),
    "truncated result": lambda entry: (entry / "result.json").write_text('{"status": "fin'),
    "empty result": lambda entry: (entry / "result.json").write_text(""),
    "a list": lambda entry: (entry / "result.json").write_text("[]"),
    "a number": lambda entry: (entry / "result.json").write_text("3"),
    "another version": lambda entry: (entry / "result.json").write_text('{"status": "finished", "history": []}'),
    "binary result": lambda entry: (entry / "result.json").write_bytes(b"\xff\xfe\x00"),
    "links of no chain": lambda entry: write_json(
        entry / "result.json", {**read_json(entry / "result.json"), "links": [{"step": 3}]}
    ),
    "no correct": lambda entry: (entry / "correct.npy").unlink(),
    "truncated correct": lambda entry: os.truncate(entry / "correct.npy", 130),
    "empty correct": lambda entry: os.truncate(entry / "correct.npy", 0),
    "no time": lambda entry: (entry / "timing.json").unlink(),
    "energy of no kind": lambda entry: write_json(entry / "timing.json", {"seconds": 1.5, "joules": {"psu": 1.0}}),
    "nothing": lambda entry: [file.unlink() for file in entry.iterdir()],  # type: ignore[func-returns-value]
}


@pytest.mark.parametrize("damage", _DAMAGE)
def test_a_damaged_entry_is_named(ledger: Ledger, tmp_path: Path, damage: str) -> None:
    ledger.add(KEY, FINISHED)
    entry = tmp_path / "runs" / KEY.fingerprint
    _DAMAGE[damage](entry)
    with pytest.raises(InputError) as caught:
        ledger.get(KEY.fingerprint)
    assert Path(caught.value.key).is_relative_to(entry)


def _with_weights(folder: Path, result: RunResult) -> Ledger:
    weights = folder.with_suffix(".pt")
    save_trained(weights, build_network(TINY.network, TINY.n_classes, stem=TINY.stem, seed=0), TINY, tuple("abcd"))
    ledger = Ledger(folder)
    ledger.add(KEY, result, weights)
    return ledger


def test_an_import_adds_weights_to_an_equal_run(tmp_path: Path) -> None:
    """The record here stays, with its time."""
    ours, theirs = Ledger(tmp_path / "ours"), _with_weights(tmp_path / "theirs", replace(FINISHED, seconds=7.0))
    ours.add(KEY, FINISHED)
    assert ours.import_run(theirs, KEY, KEY)
    assert ours.weights(KEY.fingerprint).exists()
    _check_equal(ours.get(KEY.fingerprint), FINISHED)
    assert not ours.import_run(theirs, KEY, KEY)


_OTHERS: dict[str, dict[str, Any]] = {
    "hash chain": {"links": (ChainLink(step=1, sha256="f" * 64),)},
    "training losses": {"history": (replace(FINISHED.history[0], train_loss=0.125), *FINISHED.history[1:])},
    "test answers": {"correct": np.array([True, True, False, True])},
    "test loss": {"loss": 9.0},
}


@pytest.mark.parametrize("name", _OTHERS)
def test_an_import_replaces_no_run_of_this_folder(tmp_path: Path, name: str) -> None:
    ours, theirs = Ledger(tmp_path / "ours"), _with_weights(tmp_path / "theirs", replace(FINISHED, **_OTHERS[name]))
    ours.add(KEY, FINISHED)
    with pytest.raises(InputError, match=f"{KEY.fingerprint}: another {name} than "):
        ours.import_run(theirs, KEY, KEY)
    _check_equal(ours.get(KEY.fingerprint), FINISHED)
    assert not ours.weights(KEY.fingerprint).exists()
