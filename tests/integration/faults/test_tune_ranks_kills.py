"""A search whose trials train on two processes, stopped at any moment: no process is left, and the bytes are equal."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.process_tree import alive, descendants
from tests.fixtures.training import files_below, kill, run, start, wait_until
from tests.fixtures.tuning import command, results_of, write_search

SEARCH: dict[str, Any] = {
    "trials": 2,
    "max_concurrent_trials": None,
    "epochs": 2,
    "train": {"simulated_workers": 2, "workers": 2},
}
# A busy machine is slow, not wrong.
_TIMEOUT_S = 400.0
_END_WITHIN_S = 20


def _finish(folder: Path) -> None:
    done = run(command(folder), timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stderr


def _stop(folder: Path, sent: signal.Signals) -> None:
    """Start the command, send it a signal after the next checkpoint, and check that none of its processes is left."""
    before = set(files_below(folder, "step-*.pt"))
    process = start(command(folder))
    try:
        wait_until(lambda: set(files_below(folder, "step-*.pt")) - before, process)
        started = descendants(process.pid)
        assert len(started) >= 3, "the ranks and their launcher"
        process.send_signal(sent)
        _, said = process.communicate(timeout=60)
    finally:
        kill(process)
    assert process.returncode == (75 if sent == signal.SIGTERM else -sent), said
    # After SIGKILL the kernel ends the launcher, and that its ranks.
    end = time.monotonic() + (_END_WITHIN_S if sent == signal.SIGKILL else 0)
    while left := alive(started):
        assert time.monotonic() < end, f"still running: {left}"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_command_stopped_by_signals_can_be_resumed(tmp_path: Path) -> None:
    expected = write_search(tmp_path / "undisturbed", **SEARCH)
    _finish(tmp_path / "undisturbed")
    data = write_search(tmp_path / "ended", **SEARCH)
    for sent in (signal.SIGTERM, signal.SIGKILL):
        _stop(tmp_path / "ended", sent)
    _finish(tmp_path / "ended")
    assert results_of(data) == results_of(expected)
