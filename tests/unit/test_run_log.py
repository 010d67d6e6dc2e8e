"""Messages of a long run on a terminal, in a pipe and in its log file."""

import errno
import io
import json
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.energy import UNKNOWN_ENERGY, Energy
from pipeline.processes import peak_memory_kib
from pipeline.run_log import ResourceMeter, RunLog, rounded_time

_ROOT = Path(__file__).parents[2]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that run_log sees, as a list of one."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_messages_go_to_the_stream_and_dated_to_the_file(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = RunLog(tmp_path / "logs" / "stage.log", stream)
    log.info("half way")
    log.close()
    assert stream.getvalue() == "half way\n"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d half way\n", (tmp_path / "logs" / "stage.log").read_text())


def test_log_file_keeps_earlier_runs(tmp_path: Path) -> None:
    for message in ("first", "second"):
        log = RunLog(tmp_path / "stage.log")
        log.info(message)
        log.close()
    assert len((tmp_path / "stage.log").read_text().splitlines()) == 2


def test_a_log_on_a_full_disk_is_named() -> None:
    log = RunLog(Path("/dev/full"))
    with pytest.raises(OSError) as raised:  # noqa: PT011 - its number is checked below
        log.info("half way")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "/dev/full")
    log.close()


def test_a_pipe_gets_a_line_with_the_time_left_every_ten_minutes(clock: list[float]) -> None:
    stream = io.StringIO()
    with RunLog(None, stream).progress("train", 100, "steps") as progress:
        for _ in range(50):
            clock[0] += 60.0
            progress.update(note="loss 0.5")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "train: 10/100 steps, 1.5 h left, loss 0.5"
    assert lines[-1] == "train: 50/100 steps, 50 min left, loss 0.5"
    assert len(lines) == 5
    assert "\r" not in stream.getvalue()


def test_a_pipe_gets_no_line_from_work_of_minutes(clock: list[float]) -> None:
    stream = io.StringIO()
    with RunLog(None, stream).progress("train", 9, "steps") as progress:
        for _ in range(9):
            clock[0] += 60.0
            progress.update()
    assert stream.getvalue() == ""


def test_resumed_work_does_not_divide_by_zero(clock: list[float]) -> None:
    stream = io.StringIO()
    with RunLog(None, stream).progress("train", 10, "steps") as progress:
        clock[0] += 6000.0
        progress.update(0)
    assert stream.getvalue() == ""


def test_terminal_gets_a_bar_with_description_unit_and_note() -> None:
    stream = _Terminal()
    with RunLog(None, stream).progress("extract", 3, "images") as progress:
        progress.update(3, note="fast")
    assert re.search(r"extract: 100%.* 3/3 ", stream.getvalue())


def test_processes_that_share_a_terminal_have_no_bars() -> None:
    stream = _Terminal()
    log = RunLog(None, stream, bars=False)
    with log.progress("train", 3, "steps") as progress:
        progress.update(3)
    log.info("run 1 of 2")
    assert stream.getvalue() == "run 1 of 2\n"


def test_file_gets_the_end_of_a_progress_only(tmp_path: Path, clock: list[float]) -> None:
    log = RunLog(tmp_path / "stage.log")
    with log.progress("extract", 3, "images") as progress:
        for _ in range(3):
            clock[0] += 20.0
            progress.update()
    log.close()
    (line,) = (tmp_path / "stage.log").read_text().splitlines()
    assert line.endswith("extract: 3 images in 60.0 s")


def test_interrupted_progress_is_not_logged_as_done(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "stage.log")

    def interrupted() -> None:
        with log.progress("extract", 3, "images"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    log.close()
    assert (tmp_path / "stage.log").read_text() == ""


def test_other_ranks_are_silent(capfd: pytest.CaptureFixture[str]) -> None:
    log = RunLog.silent()
    log.info("unheard")
    with log.progress("train", 2, "steps") as progress:
        progress.update(2, note="unheard")
    log.close()
    assert capfd.readouterr() == ("", "")


def test_resources(tmp_path: Path, clock: list[float]) -> None:
    meter = ResourceMeter()
    clock[0] += 4.0
    arms, sampled = {"full": 2.504, "random": 1.5}, {"full": Energy(gpu=0.27), "random": UNKNOWN_ENERGY}
    joules = Energy(gpu=0.0, cpu=200.04)
    meter.write(tmp_path / "work" / "train.json", joules=joules, images=1000, arms=arms, arms_joules=sampled)
    record = json.loads((tmp_path / "work" / "train.json").read_text())
    assert record["wall_s"] == 4.0
    assert (record["images"], record["images_per_s"]) == (1000, 250.0)
    assert record["arms_wall_s"] == {"full": 2.5, "random": 1.5}
    assert record["joules"] == {"gpu": 0.0, "cpu": 200.0, "memory": None}
    assert record["arms_joules"] == {"full": {"gpu": 0.3, "cpu": None, "memory": None}, "random": vars(UNKNOWN_ENERGY)}
    assert 10 < record["peak_memory_mb"] < 1e6
    assert record["python"] == platform.python_version()
    meter.write(tmp_path / "work" / "train.json", joules=UNKNOWN_ENERGY)
    assert "images_per_s" not in json.loads((tmp_path / "work" / "train.json").read_text())


_MEASURED = """
import sys
from pathlib import Path
from pipeline.energy import UNKNOWN_ENERGY
from pipeline.run_log import ResourceMeter
ResourceMeter().write(Path(sys.argv[1]), joules=UNKNOWN_ENERGY)
"""
_LARGE_THEN_STARTS_IT = """
import subprocess, sys
filled = b"1" * (400 << 20)
subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2]], check=True)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="elsewhere the system tells no better")
def test_peak_memory_is_not_that_of_the_parent_process(tmp_path: Path) -> None:
    path = tmp_path / "stage.json"
    subprocess.run([sys.executable, "-c", _LARGE_THEN_STARTS_IT, _MEASURED, str(path)], check=True, cwd=_ROOT)
    assert json.loads(path.read_text())["peak_memory_mb"] < 300


_FREES = """
from pipeline.processes import peak_memory_kib
held = b"1" * (400 * 1024**2)
del held
print(peak_memory_kib())
"""


def test_peak_memory_is_of_what_was_freed_too() -> None:
    printed = subprocess.run([sys.executable, "-c", _FREES], check=True, cwd=_ROOT, capture_output=True, text=True)
    assert int(printed.stdout) >= 400 * 1024


def test_peak_memory_is_found_where_linux_tells_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected = peak_memory_kib()
    for status in ("Name: python\n", None):
        place = tmp_path / f"status of {status is not None}"
        if status is not None:
            place.write_text(status)
        monkeypatch.setattr("pipeline.processes._STATUS", place)
        assert peak_memory_kib() >= expected / 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (89, "89 s"), (90, "90 s"), (119, "119 s"), (119.6, "2 min"), (120, "2 min"), (5399, "90 min"),
     (5400, "1.5 h")],
)  # fmt: skip
def test_a_time_below_two_minutes_is_in_seconds(seconds: float, text: str) -> None:
    assert rounded_time(seconds) == text
