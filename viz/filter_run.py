"""Run the stage `filter` of one network again, in a separate process, by DVC."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.params import load_params
from pipeline.errors import InputError, explain_file_errors
from pipeline.paths import DataPaths, WorkPaths

_MAX_LINE = 300  # characters of a message


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Status of the last run.

    Attributes:
        is_running: whether it has not ended.
        text: one line for people; empty before the first run.
        failed: whether it ended with an error.
    """

    is_running: bool
    text: str
    failed: bool = False


class FilterRun:
    """Runs the filter of one network at a time. It is thread-safe.

    Args:
        params: the parameter file of a project.
        data: its data folder.
        program: that runs DVC.
    """

    def __init__(
        self, params: Path, data: DataPaths, *, program: Sequence[str] = (sys.executable, "-m", "dvc")
    ) -> None:
        self._params, self._data, self._program = params, data, program
        self._log = WorkPaths(root=params.resolve().parent / ".work").log("viz-filter")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._network = ""
        self._started = 0.0

    def start(self, network: str) -> RunStatus:
        """Start `dvc repro --single-item filter@NETWORK`, which runs no other stage.

        Raises:
            InputError: the folder is no DVC project, params.yaml is wrong or lacks the network, a run has not ended, or
                its log cannot be written.
        """
        self._check(network)
        with self._lock, explain_file_errors():
            if self._process is not None and self._process.poll() is None:
                raise InputError(f"the filter of {self._network} is running; wait until it has ended")
            self._log.parent.mkdir(parents=True, exist_ok=True)
            # `python` in dvc.yaml is this one.
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [*self._program, "repro", "--single-item", f"filter@{network}"],
                    cwd=self._params.resolve().parent,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "PATH": path},
                )
            self._network, self._started = network, time.monotonic()
        return self.status()

    def status(self) -> RunStatus:
        """Return the status of the last run."""
        with self._lock:
            if self._process is None:
                return RunStatus(is_running=False, text="")
            code, name = self._process.poll(), f"filter of {self._network}"
            if code is None:
                seconds = time.monotonic() - self._started
                return RunStatus(is_running=True, text=f"The {name} is running: {seconds:.0f} s.")
            lines = self._log_lines()
        if code != 0:
            return RunStatus(is_running=False, text=f"The {name} failed: {_reason(lines, code)}", failed=True)
        unchanged = any("didn't change, skipping" in line for line in lines)
        # After a change the page gets a notice with what the filter drops now.
        return RunStatus(
            is_running=False,
            text=f"The {name} has ended{': no parameter, decision or input has changed' if unchanged else ''}.",
        )

    def _log_lines(self) -> list[str]:
        try:
            return self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            # Others may remove the work folder, which no result needs.
            return []

    def _check(self, network: str) -> None:
        folder = self._params.resolve().parent
        if self._params.name != "params.yaml":
            raise InputError(f"{self._params}: DVC reads params.yaml; start the visualizer with that file")
        if not (folder / "dvc.yaml").is_file():
            raise InputError(f"{folder}: has no dvc.yaml; run again the command that wrote the folder")
        if self._data.root.resolve() != folder / "data":
            raise InputError(f"{self._data.root}: dvc.yaml writes {folder / 'data'}; start the visualizer with it")
        networks = load_params(self._params).networks
        if network not in networks:
            raise InputError(f"{self._params}: networks lacks {network}; choose one of {', '.join(networks)}")


def _reason(lines: list[str], code: int) -> str:
    """Return the line that says why: that of the stage, else the last one of DVC."""
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    said = errors or [line for line in lines if line.strip()] or [f"exit code {code}"]
    return said[-1][:_MAX_LINE]
