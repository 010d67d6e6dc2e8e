"""Watch the other ranks of a run: name the one that does not answer, and end the run when it is lost.

Each rank has a thread that counts in the store of the launcher. A count that stands still means that the process was
killed, is stopped, or has lost its connection. With it the thread writes how many collectives the process has reached:
a rank that answers and has reached fewer than the others keeps them waiting. It may have a reason, such as a slow disk,
so it has `timeout_seconds`. A rank that does not answer at all has a minute at most. Clocks of machines are not
compared. Rank 0 watches all others, and they watch rank 0.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pipeline.distributed.collectives import arrivals
from pipeline.errors import MachineError, lacks_resources

NOTICE_AFTER_S = 60.0
"""Time after which a rank that does not reach the others is named, unless half of its limit is shorter."""
SILENT_AFTER_S = 60.0
"""Time after which a rank that does not answer at all is lost, unless `timeout_seconds` is shorter."""

_LOST_CODE = 2
_LEFT = "left"
_MAX_INTERVAL_S = 1.0
# Time in which the kernel and the launcher notice that a process has ended.
_SEARCH_S = 3.0
_SEARCH_INTERVAL_S = 0.1
# A collective that times out raises in the main thread, which can end properly: it has the precedence.
_GRACE_S = 5.0
_STORE_TIMEOUT_S = 20.0
# What gloo, NCCL and the store say of a rank that is gone or does not come.
_LOST_TEXTS = (
    "Connection reset by peer", "Connection closed by peer", "Connection refused", "Broken pipe", "Timed out",
    "timed out", "Application timeout", "remote process exited", "Socket Timeout", "Socket closed",
    "Connection was likely closed",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RankProcess:
    """Where a rank runs."""

    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"

    @property
    def state(self) -> str | None:
        """`ended`, `stopped` or `running`; None on another host."""
        if self.host != socket.gethostname():
            return None
        try:
            letter = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return "ended"
        return {"Z": "ended", "X": "ended", "T": "stopped", "t": "stopped"}.get(letter, "running")


@dataclass
class _Seen:
    """The last count of another rank and its collectives, and when they were new."""

    count: str = ""
    arrived: int = -1
    answered_at: float = field(default_factory=time.monotonic)
    arrived_at: float = field(default_factory=time.monotonic)
    named: bool = False


class RankWatch:
    """A thread that counts in the store, and watches the counts of other ranks.

    Args:
        store: a client of its own: one that waits for a key answers no other thread.
        timeout_s: time that a rank may take to reach the others. Without any answer for this time or for
            `SILENT_AFTER_S`, whichever is shorter, the process ends with one line and exit code 2.
    """

    def __init__(self, store: Any, *, rank: int, size: int, timeout_s: float) -> None:
        self._store, self._rank, self._timeout_s = store, rank, timeout_s
        self._watched = [other for other in range(size) if other != rank] if rank == 0 else [0]
        self._all = [other for other in range(size) if other != rank]
        self._stopped = threading.Event()
        self._seen: dict[int, _Seen] = {}
        self._store_answered = time.monotonic()
        self._count = 0
        self._ends_absent = False
        store.set(f"process {rank}", f"{os.getpid()} {socket.gethostname()}")
        self._beat()
        self._thread = threading.Thread(target=self._run, name="rank watch", daemon=True)
        self._thread.start()

    @property
    def _interval(self) -> float:
        return min(_MAX_INTERVAL_S, self._timeout_s / 10)

    @property
    def _silent_limit_s(self) -> float:
        return min(SILENT_AFTER_S, self._timeout_s)

    def set_timeout(self, seconds: float, *, ends_absent: bool = False) -> None:
        """Set the time after which a rank counts as lost.

        Args:
            ends_absent: end the process also where a rank answers, and has not reached the others within the time. A
                collective of gloo raises an error there. One of NCCL only blocks the GPU.
        """
        self._timeout_s, self._ends_absent = seconds, ends_absent

    def stop(self) -> None:
        """Say that this rank leaves, and end the thread."""
        self._stopped.set()
        # Its last count must not replace the word.
        self._thread.join(_STORE_TIMEOUT_S)
        try:
            self._store.set(f"count {self._rank}", _LEFT)
        except Exception:  # noqa: BLE001 - the launcher, which has the store, may be gone
            return

    def find_lost(self, error: BaseException) -> str | None:
        """Return which rank has ended or is stopped or, if `error` is a timeout, has reached fewer collectives.

        Returns:
            None if nothing is known: the states of processes on other hosts are not.
        """
        end = time.monotonic() + _SEARCH_S
        while True:
            processes = self._processes(self._all)
            for process in processes:
                if process.state == "ended":
                    return f"{process} has ended"
                if process.state == "stopped":
                    return f"{process} is stopped"
            if time.monotonic() > end:
                break
            time.sleep(_SEARCH_INTERVAL_S)
        if "imed out" not in str(error) and "timeout" not in str(error):
            return None
        # A count may be as old as the interval between two.
        late = time.monotonic() - self._timeout_s / 2
        absent = [other for other, seen in list(self._seen.items()) if seen.arrived_at < late]
        found = self._processes(absent[:1])
        return f"{found[0]} has not reached the others within {self._timeout_s:g} s" if found else None

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stopped.wait(self._interval):
            now = time.monotonic()
            if now - last > max(3 * self._interval, self._silent_limit_s / 4):
                # This process was stopped itself, perhaps with all others, and has seen no count since.
                self._seen.clear()
                self._store_answered = now
            last = now
            try:
                self._beat()
                self._check_ranks(now)
                self._store_answered = time.monotonic()
            except Exception as error:  # noqa: BLE001 - the store has many errors, all of the connection to it
                self._without_store(error)

    def _beat(self) -> None:
        self._count += 1
        self._store.set(f"count {self._rank}", f"{self._count} {arrivals()}")

    def _check_ranks(self, now: float) -> None:
        for other, value in self._counts().items():
            if value == _LEFT:
                continue
            count, _, arrived = value.partition(" ")
            seen = self._seen.setdefault(other, _Seen(answered_at=now, arrived_at=now))
            if count != seen.count:
                seen.count, seen.answered_at = count, now
            if int(arrived) != seen.arrived or arrivals() <= int(arrived):
                seen.arrived, seen.arrived_at = int(arrived), now
            silent, absent = now - seen.answered_at, now - seen.arrived_at
            if silent > self._silent_limit_s + _GRACE_S:
                self._end(f"{self._describe(other)} has not answered for {silent:.0f} s")
            if self._ends_absent and absent > self._timeout_s + _GRACE_S:
                self._end(f"{self._describe(other)} has not reached the others within {self._timeout_s:g} s")
            # A rank may have come as far as this one, and be stopped inside a collective that is not counted.
            if silent <= self._silent_limit_s / 2 and absent <= min(NOTICE_AFTER_S, self._timeout_s / 2):
                seen.named = False
            elif not seen.named:
                seen.named = True
                self._print_once(self._late_line(other, silent, absent), key=f"named {other} at {arrived}")

    def _late_line(self, rank: int, silent: float, absent: float) -> str:
        what, late, limit_s = "reached the others", absent, self._timeout_s
        if silent > 2 * self._interval:
            what, late, limit_s = "answered", silent, self._silent_limit_s
        of = " (timeout_seconds)" if limit_s == self._timeout_s else ""
        return f"{self._describe(rank)} has not {what} for {late:.0f} s; the others wait until {limit_s:g} s{of}"

    def _counts(self) -> dict[int, str]:
        here = [other for other in self._watched if other in self._seen or self._store.check([f"count {other}"])]
        if not here:
            return {}
        values = self._store.multi_get([f"count {other}" for other in here])
        return {other: value.decode() for other, value in zip(here, values, strict=True)}

    def _without_store(self, error: Exception) -> None:
        silent = time.monotonic() - self._store_answered
        if silent > self._silent_limit_s + _GRACE_S and not self._stopped.is_set():
            reason = (str(error).splitlines() or [""])[0][:160]
            self._end(f"the store of the launcher on {os.environ.get('MASTER_ADDR')} does not answer ({reason})")

    def _describe(self, rank: int) -> str:
        found = self._processes([rank])
        if not found:
            return f"rank {rank}"
        state = {"ended": " has ended: it", "stopped": " is stopped: it"}.get(found[0].state or "", "")
        return f"{found[0]}{state}"

    def _processes(self, ranks: Sequence[int]) -> list[RankProcess]:
        found = []
        for rank in ranks:
            try:
                if self._store.check([f"count {rank}"]) and self._store.get(f"count {rank}") == _LEFT.encode():
                    continue
                if self._store.check([f"process {rank}"]):
                    pid, _, host = self._store.get(f"process {rank}").decode().partition(" ")
                    found.append(RankProcess(rank=rank, host=host, pid=int(pid)))
            except Exception:  # noqa: BLE001 - the launcher, which has the store, may be gone
                break
        return found

    def _print_once(self, line: str, *, key: str) -> None:
        """Print a line that no other rank has printed."""
        try:
            first = self._store.add(key, 1) == 1
        except Exception:  # noqa: BLE001 - without the store every rank says it
            first = True
        if first:
            print(line, file=sys.stderr, flush=True)

    def _end(self, reason: str) -> None:
        """End the process from this thread: the main thread waits inside a collective, which nothing interrupts."""
        if self._stopped.is_set():
            return
        self._print_once(f"error: {lost_line(reason)}", key="ended")
        os._exit(_LOST_CODE)


def lost_line(reason: str) -> str:
    """Return the line that ends a run."""
    return f"{reason}; run the same command again, which resumes at the last checkpoint"


def is_lost_connection(error: BaseException) -> bool:
    """Return whether `error` means that another rank is gone, or has not reached a collective in time."""
    if isinstance(error, MachineError) or lacks_resources(error):
        return False
    if isinstance(error, dist.DistNetworkError | dist.DistStoreError):
        return True
    return isinstance(error, RuntimeError | TimeoutError | ConnectionError) and any(
        words in str(error) for words in _LOST_TEXTS
    )


def watch_store(prefix: str) -> Any:  # torch's types leave dist.Store out
    """Return a new client of the launcher's store, for the keys of one set of ranks."""
    store = dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
        timeout=timedelta(seconds=_STORE_TIMEOUT_S),
    )  # fmt: skip
    return dist.PrefixStore(f"watch of {prefix}", store)  # type: ignore[attr-defined]
