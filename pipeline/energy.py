"""Energy of the devices of this machine, in joules, from their hardware counters.

GPUs: NVML's total energy of the whole board (nvmlDeviceGetTotalEnergyConsumption, Volta and later). Processors: the
running average power limit (RAPL) counters of Intel and AMD, as Linux shows them in its powercap tree
(Documentation/power/powercap/powercap.rst). On many systems only root can read those. A counter does not separate
processes: the energy includes all processes and idle power.
"""

import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

POWERCAP = Path("/sys/class/powercap")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# RAPL counters have 32 bits. The smallest wrap at 65 kJ, which a package at this power uses in 65 s.
_SAMPLE_INTERVAL_S = 20.0
_MAX_WATTS = 1000.0


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Joules by kind of device; None if the counters do not cover all devices of a kind.

    Attributes:
        gpu: boards of the GPUs that do the work; 0 if it uses no GPU.
        cpu: processor packages of the nodes, including all their cores, caches and integrated graphics.
        memory: DRAM of the nodes, if it has a counter separate from the package's.
    """

    gpu: float | None = None
    cpu: float | None = None
    memory: float | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, float | None] | None) -> "Energy":
        """Return the energy of a stored record, the values of `vars`; unknown for None."""
        return UNKNOWN_ENERGY if record is None else cls(**record)

    def __sub__(self, earlier: "Energy") -> "Energy":
        return _by_kind(lambda later, before: later - before, self, earlier)

    def rounded(self) -> dict[str, float | None]:
        """Return the values rounded to 0.1 J, finer than the counters' resolution."""
        return {kind: None if joules is None else round(joules, 1) for kind, joules in vars(self).items()}


DEVICE_KINDS = tuple(kind.name for kind in fields(Energy))
UNKNOWN_ENERGY = Energy()
"""Energy that was not measured."""


def total_energy(parts: Iterable[Energy]) -> Energy:
    """Return the sum by kind: unknown if a part is unknown, 0 without parts."""
    return _by_kind(lambda *joules: sum(joules, start=0.0), *parts)


def _by_kind(combine: Callable[..., float], *parts: Energy) -> Energy:
    columns = {kind: [getattr(part, kind) for part in parts] for kind in DEVICE_KINDS}
    return Energy(**{kind: None if None in column else combine(*column) for kind, column in columns.items()})


class EnergyCounter:
    """Energy since construction from a device's counter, across its wraps.

    Args:
        read: the device's counter, in microjoules.
        max_value: the value after which it wraps to 0, in microjoules; None if it never wraps.

    Raises:
        OSError: the counter cannot be read.
    """

    def __init__(self, read: Callable[[], int], max_value: int | None = None) -> None:
        self._read, self._wraps_at = read, max_value
        self._last, self._at = read(), time.monotonic()
        self._microjoules: int | None = 0

    @property
    def wraps(self) -> bool:
        """Whether the counter wraps to 0."""
        return self._wraps_at is not None

    def joules(self) -> float | None:
        """Return the joules since construction; None after a failed read or if a wrap may have been missed."""
        if self._microjoules is None:
            return None
        try:
            value, at = self._read(), time.monotonic()
        except OSError:
            self._microjoules = None
            return None
        increase = value - self._last
        if self._wraps_at is not None:
            complete = at - self._at <= self._wraps_at / 1e6 / _MAX_WATTS
            increase += self._wraps_at if increase < 0 else 0
        else:
            complete = increase >= 0  # otherwise the driver was reloaded
        self._last, self._at = value, at
        self._microjoules = self._microjoules + increase if complete else None
        return None if self._microjoules is None else self._microjoules / 1e6


EnergyCounters = Mapping[str, Sequence[EnergyCounter] | None]
"""Kind of device -> its counters; empty without such a device, None if a device has no readable counter."""


class EnergyMeter:
    """Energy of several counters since construction. Thread-safe."""

    def __init__(self, counters: EnergyCounters) -> None:
        self._counters = counters
        self._lock = threading.Lock()

    @property
    def wraps(self) -> bool:
        """Whether a counter wraps, so that the meter must be read regularly."""
        return any(counter.wraps for counters in self._counters.values() for counter in counters or ())

    def read(self) -> Energy:
        """Return the energy since construction; the difference of two readings is the energy between them."""
        with self._lock:
            return Energy(**{kind: _sum(counters) for kind, counters in self._counters.items()})


@contextmanager
def measure_energy(*, gpu: str | None = None, node: bool = True, powercap: Path = POWERCAP) -> Iterator[EnergyMeter]:
    """Yield a meter that starts at 0. Within the block a thread reads the counters that wrap.

    Args:
        gpu: UUID of this process's GPU as NVML writes it, `GPU-...`; None without one.
        node: also count this machine's processors and memory. One process of a machine does so for all.
        powercap: root of Linux's powercap tree.
    """
    with _nvml(needed=gpu is not None) as nvml:
        counters: dict[str, Sequence[EnergyCounter] | None] = {"gpu": [] if gpu is None else _gpu_counters(nvml, gpu)}
        counters |= _rapl_counters(powercap) if node else {"cpu": [], "memory": []}
        meter = EnergyMeter(counters)
        if not meter.wraps:
            yield meter
            return
        ended = threading.Event()
        sampling = threading.Thread(target=_sample, args=(meter, ended), name="energy", daemon=True)
        sampling.start()
        try:
            yield meter
        finally:
            ended.set()
            sampling.join()


def node_id() -> str:
    """Return an id that all processes on a machine share, also those in other containers."""
    try:
        return _BOOT_ID.read_text(encoding="ascii")
    except OSError:  # no Linux
        return platform.node()


def _sample(meter: EnergyMeter, ended: threading.Event) -> None:
    while not ended.wait(_SAMPLE_INTERVAL_S):
        meter.read()


def _sum(counters: Sequence[EnergyCounter] | None) -> float | None:
    joules = None if counters is None else [counter.joules() for counter in counters]
    return None if joules is None or None in joules else sum((value or 0.0 for value in joules), start=0.0)


def _rapl_counters(powercap: Path) -> dict[str, list[EnergyCounter] | None]:
    """Return the counters of all packages and all DRAM domains.

    The other domains are parts of packages, or contain them (psys). intel-rapl-mmio repeats the packages of intel-rapl.
    """
    zones: dict[str, list[Path]] = {"cpu": [], "memory": []}
    for zone in sorted(powercap.glob("intel-rapl:*")):
        try:
            name = (zone / "name").read_text(encoding="ascii").strip()
        except OSError:
            return {"cpu": None, "memory": None}  # its kind is unknown
        if kind := "cpu" if name.startswith("package-") else "memory" if name == "dram" else "":
            zones[kind].append(zone)
    return {kind: _zone_counters(paths) for kind, paths in zones.items()}


def _zone_counters(zones: Sequence[Path]) -> list[EnergyCounter] | None:
    """Return None without a zone or if one cannot be read, since the others would not cover the kind."""
    try:
        return [_zone_counter(zone) for zone in zones] or None
    except OSError:
        return None


def _zone_counter(zone: Path) -> EnergyCounter:
    def number(name: str) -> int:
        return int((zone / name).read_text(encoding="ascii"))

    return EnergyCounter(lambda: number("energy_uj"), max_value=number("max_energy_range_uj"))


@contextmanager
def _nvml(*, needed: bool) -> Iterator[ModuleType | None]:
    """Yield NVML, initialized; None if it is not needed or this machine has no NVIDIA driver."""
    if not needed:
        yield None
        return
    # Imported here: most stages use no GPU.
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _gpu_counters(nvml: Any, uuid: str) -> list[EnergyCounter] | None:
    """Return None if NVML does not know the GPU (another vendor, or a part of a GPU) or gives no energy."""
    if nvml is None:
        return None

    def read() -> int:
        try:
            return 1000 * int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        except nvml.NVMLError as error:
            raise OSError(str(error)) from error

    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        return [EnergyCounter(read)]
    except (nvml.NVMLError, OSError):
        return None
