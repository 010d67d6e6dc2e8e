"""Joules by the counters of devices: an invented powercap tree, an NVML of one GPU, and this machine."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import energy
from pipeline.energy import (
    DEVICE_KINDS,
    UNKNOWN_ENERGY,
    Energy,
    EnergyCounter,
    EnergyMeter,
    measure_energy,
    node_id,
    total_energy,
)

_RANGE_UJ = 262_143_328_850  # of an Intel server's package
_UUID = "GPU-0c2d6d07-50ca-4a5b-9b6c-1a54b2a1d4f7"


class PowercapTree:
    """A powercap tree as Linux lays it out: packages, what is in them, and the same packages by another way."""

    def __init__(self, root: Path, *, packages: int = 2, dram: bool = True) -> None:
        self._root = root
        (root / "intel-rapl").mkdir(parents=True)  # the control type, which has no counter
        for number in range(packages):
            self.zone(f"intel-rapl:{number}", f"package-{number}", 10**9)
            self.zone(f"intel-rapl:{number}:0", "core", 10**8)
            if dram:
                self.zone(f"intel-rapl:{number}:1", "dram", 10**7)
        self.zone(f"intel-rapl:{packages}", "psys", 10**9)
        self.zone("intel-rapl-mmio:0", "package-0", 10**9)

    def zone(self, folder: str, name: str, microjoules: int) -> None:
        zone = self._root / folder
        zone.mkdir()
        (zone / "name").write_text(f"{name}\n")
        (zone / "max_energy_range_uj").write_text(f"{_RANGE_UJ}\n")
        (zone / "energy_uj").write_text(f"{microjoules}\n")

    def draw(self, folder: str, joules: float) -> None:
        path = self._root / folder / "energy_uj"
        drawn = path.with_name("energy_uj after")
        drawn.write_text(f"{(int(path.read_text()) + round(joules * 1e6)) % _RANGE_UJ}\n")
        drawn.replace(path)  # a reader sees either

    def draw_everywhere(self, joules: float) -> None:
        for zone in self._root.glob("*:*"):
            self.draw(zone.name, joules)

    def hide(self, folder: str, file: str = "energy_uj") -> None:
        """As from a reader who is not root, whom the tests may be."""
        (self._root / folder / file).unlink()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_packages_and_dram_are_counted_once_each(tmp_path: Path) -> None:
    machine = PowercapTree(tmp_path)
    with measure_energy(powercap=tmp_path) as meter:
        assert meter.read() == Energy(gpu=0.0, cpu=0.0, memory=0.0)
        machine.draw_everywhere(3.5)
        assert meter.read() == Energy(gpu=0.0, cpu=7.0, memory=7.0)
        machine.draw("intel-rapl:1:0", 100.0)  # cores, whose energy their package's counter has too
        machine.draw("intel-rapl:1", 0.25)
        assert meter.read() == Energy(gpu=0.0, cpu=7.25, memory=7.0)


def test_dies_of_a_package_are_counted_too(tmp_path: Path) -> None:
    machine = PowercapTree(tmp_path, packages=1, dram=False)
    machine.zone("intel-rapl:2", "package-1-die-1", 0)
    with measure_energy(powercap=tmp_path) as meter:
        machine.draw_everywhere(1.0)
        assert meter.read() == Energy(gpu=0.0, cpu=2.0, memory=None)


def test_without_a_counter_the_energy_is_unknown(tmp_path: Path) -> None:
    for powercap in (tmp_path, tmp_path / "not there"):
        with measure_energy(powercap=powercap) as meter:
            assert meter.read() == Energy(gpu=0.0, cpu=None, memory=None)


@pytest.mark.parametrize(
    ("hidden", "cpu", "memory"),
    [
        (("intel-rapl:0", "energy_uj"), None, 2.0),
        (("intel-rapl:1", "max_energy_range_uj"), None, 2.0),
        (("intel-rapl:1:1", "energy_uj"), 2.0, None),
        (("intel-rapl:0", "name"), None, None),
    ],
)
def test_kind_that_a_device_does_not_report_is_unknown(
    tmp_path: Path, hidden: tuple[str, str], cpu: float | None, memory: float | None
) -> None:
    machine = PowercapTree(tmp_path)
    machine.hide(*hidden)
    with measure_energy(powercap=tmp_path) as meter:
        for folder in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:1", "intel-rapl:1:1"):
            if (tmp_path / folder / "energy_uj").exists():
                machine.draw(folder, 1.0)
        assert meter.read() == Energy(gpu=0.0, cpu=cpu, memory=memory)


def test_kind_is_unknown_after_a_failed_reading(tmp_path: Path) -> None:
    machine = PowercapTree(tmp_path)
    with measure_energy(powercap=tmp_path) as meter:
        kept = (tmp_path / "intel-rapl:1/energy_uj").read_text()
        machine.hide("intel-rapl:1")
        assert meter.read().cpu is None
        (tmp_path / "intel-rapl:1/energy_uj").write_text(kept)
        assert meter.read().cpu is None, "what it drew meanwhile is not known"


def test_wraps_are_counted_over(tmp_path: Path, clock: list[float]) -> None:
    machine = PowercapTree(tmp_path, packages=1)
    with measure_energy(powercap=tmp_path) as meter:
        for _ in range(10):
            clock[0] += 200.0
            machine.draw("intel-rapl:0", 1e5)
            drawn = meter.read()
    assert drawn == Energy(gpu=0.0, cpu=1e6, memory=0.0)
    assert drawn.cpu is not None
    assert drawn.cpu > 3 * _RANGE_UJ / 1e6


def test_a_reading_too_late_to_see_a_wrap_gives_none(clock: list[float]) -> None:
    counter = EnergyCounter(lambda: 5, max_value=65_532_610_987)  # the narrowest there is
    clock[0] += 65.0
    assert counter.joules() == 0.0
    clock[0] += 66.0
    assert counter.joules() is None
    assert counter.joules() is None


def test_wrapping_counters_are_sampled_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_SAMPLE_INTERVAL_S", 0.001)
    machine = PowercapTree(tmp_path, packages=1)
    looks = 0
    requested = EnergyMeter.read

    def counted(meter: EnergyMeter) -> Energy:
        nonlocal looks
        looks += 1
        return requested(meter)

    monkeypatch.setattr(EnergyMeter, "read", counted)
    with measure_energy(powercap=tmp_path) as meter:
        for _ in range(3):
            machine.draw("intel-rapl:0", 1e5)
            wanted, end = looks + 2, time.monotonic() + 10
            while looks < wanted and time.monotonic() < end:
                time.sleep(0.001)
            assert looks >= wanted
        assert meter.read().cpu == 3e5
    at_the_end = looks
    time.sleep(0.01)
    assert looks == at_the_end, "nobody looks after the block"


@given(
    gains=st.lists(st.integers(min_value=0, max_value=_RANGE_UJ - 1), min_size=1, max_size=30),
    start=st.integers(min_value=0, max_value=_RANGE_UJ - 1),
    data=st.data(),
)
def test_energy_is_additive_over_moments(gains: list[int], start: int, data: st.DataObject) -> None:
    """However often it is asked in between, and wherever its counter wraps."""
    held = [start]
    counters = [EnergyCounter(lambda: held[0], max_value=_RANGE_UJ) for _ in range(2)]
    often, seldom = (EnergyMeter({"gpu": [], "cpu": [counter], "memory": None}) for counter in counters)
    moments = [often.read()]
    unseen = 0
    for gain in gains:
        held[0] = (held[0] + gain) % _RANGE_UJ
        unseen += gain
        moments.append(often.read())
        # At least once a wrap, as the thread does.
        if unseen + max(gains) >= _RANGE_UJ or data.draw(st.booleans()):
            seldom.read()
            unseen = 0
    parts = total_energy(later - earlier for earlier, later in pairwise(moments))
    assert (parts.gpu, parts.memory) == (0.0, None)
    assert parts.cpu == pytest.approx(sum(gains) / 1e6)
    assert moments[-1] == seldom.read() == Energy(gpu=0.0, cpu=sum(gains) / 1e6, memory=None)


_JOULES = st.none() | st.floats(min_value=0, max_value=1e9)
_ENERGY = st.builds(Energy, gpu=_JOULES, cpu=_JOULES, memory=_JOULES)


@given(parts=st.lists(_ENERGY))
def test_sum_is_unknown_for_a_kind_with_an_unknown_part(parts: list[Energy]) -> None:
    for kind in DEVICE_KINDS:
        reported = [getattr(part, kind) for part in parts]
        assert getattr(total_energy(parts), kind) == (None if None in reported else pytest.approx(sum(reported)))


@given(drawn=_ENERGY)
def test_a_record_round_trips(drawn: Energy) -> None:
    assert Energy.from_record(vars(drawn)) == drawn
    assert Energy.from_record(None) == UNKNOWN_ENERGY


class _RefusedError(Exception):
    """As `pynvml.NVMLError`."""


class _Driver(SimpleNamespace):
    """What of pynvml is used, for one GPU; `millijoules` is its counter, an exception one that does not tell."""

    NVMLError = _RefusedError

    def __init__(self, millijoules: int | Exception) -> None:
        super().__init__(millijoules=millijoules, users=0)

    def nvmlInit(self) -> None:  # noqa: N802
        self.users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.users -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != _UUID:
            raise _RefusedError("Not Found")
        return "the GPU"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        assert handle == "the GPU"
        assert self.users == 1
        if isinstance(self.millijoules, Exception):
            raise self.millijoules
        return int(self.millijoules)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Driver]:
    made = _Driver(10**12)
    monkeypatch.setitem(sys.modules, "pynvml", made)
    yield made
    assert made.users == 0


def test_a_gpu_is_counted_from_where_its_counter_stood(driver: _Driver, tmp_path: Path) -> None:
    with measure_energy(gpu=_UUID, powercap=tmp_path) as meter:
        driver.millijoules += 2500
        assert meter.read() == Energy(gpu=2.5, cpu=None, memory=None)


def _too_old(driver: _Driver) -> None:
    driver.millijoules = _RefusedError("Not Supported")


def _loaded_anew(driver: _Driver) -> None:
    driver.millijoules = 7


@pytest.mark.parametrize("change", [_too_old, _loaded_anew])
def test_gpu_is_unknown_after_a_failed_reading(
    driver: _Driver, tmp_path: Path, change: Callable[[_Driver], None]
) -> None:
    with measure_energy(gpu=_UUID, powercap=tmp_path) as meter:
        change(driver)
        assert meter.read().gpu is None


def test_gpu_without_readings_is_unknown(driver: _Driver, tmp_path: Path) -> None:
    with measure_energy(gpu="GPU-of another driver", powercap=tmp_path) as meter:
        assert meter.read().gpu is None
    driver.millijoules = _RefusedError("Not Supported")
    with measure_energy(gpu=_UUID, powercap=tmp_path) as meter:
        assert meter.read().gpu is None


def test_processes_that_share_a_node_count_it_once(driver: _Driver, tmp_path: Path) -> None:
    machine = PowercapTree(tmp_path)
    with measure_energy(gpu=_UUID, powercap=tmp_path) as first, measure_energy(node=False, powercap=tmp_path) as second:
        machine.draw_everywhere(1.0)
        driver.millijoules += 4000
        assert second.read() == Energy(gpu=0.0, cpu=0.0, memory=0.0)
        assert total_energy([first.read(), second.read()]) == Energy(gpu=4.0, cpu=2.0, memory=2.0)


def test_this_machine_tells_something_plausible_or_nothing() -> None:
    with measure_energy(gpu=_UUID) as meter:  # of no GPU here
        time.sleep(0.1)
        drawn = meter.read()
    assert drawn.gpu is None
    assert replace(drawn, cpu=None, memory=None) == UNKNOWN_ENERGY
    for joules in (drawn.cpu, drawn.memory):
        assert joules is None or 0 <= joules < 0.1 * 4 * 1000 * 8
    assert node_id() == node_id() != ""
