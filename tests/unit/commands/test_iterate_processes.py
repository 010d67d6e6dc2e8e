"""Signals to a stage in a real process."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.commands.iterate.running import StageFailedError, StageProcesses
from pipeline.errors import Terminated
from pipeline.paths import DataPaths, WorkPaths

_STAGE = """#!{python}
import signal, sys, time
from pathlib import Path
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: sys.exit({code}))
Path({ready!r}).touch()
# A signal just before a long sleep would be seen at its end alone.
for _ in range(1200):
    time.sleep(0.05)
"""


def _asked_to_end(folder: Path, sent: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a stage that answers a signal with `code`, and send it to this process."""
    ready, script = folder / "ready", folder / "stage.py"
    script.write_text(_STAGE.format(python=sys.executable, code=code, ready=str(ready)))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))

    def send() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), sent)

    processes = StageProcesses("resnet18")
    with processes.forwarding_signals():
        sender = threading.Thread(target=send)
        sender.start()
        try:
            processes.run("finetune", folder / "params.yaml", DataPaths(root=folder), WorkPaths(root=folder))
        finally:
            sender.join()


@pytest.mark.subprocess
@pytest.mark.parametrize(("sent", "ends"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_an_error_of_an_interrupted_import_is_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals, ends: type[BaseException]
) -> None:
    with pytest.raises(ends):
        _asked_to_end(tmp_path, sent, 1, monkeypatch)


@pytest.mark.subprocess
@pytest.mark.parametrize("code", [2, 75, 130])
def test_what_the_stage_itself_says_of_its_end_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with pytest.raises(StageFailedError) as failed:
        _asked_to_end(tmp_path, signal.SIGTERM, code, monkeypatch)
    assert failed.value.code == code
