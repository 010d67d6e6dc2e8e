"""Results of tasks on a cluster's workers, in the order of the tasks, while workers join, die and leave."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from itertools import islice
from typing import TYPE_CHECKING, Any

from pipeline.errors import InputError
from pipeline.fanout.on_worker import numerics, run_task
from pipeline.fanout.pickling import dumps
from pipeline.reduction.tasks import Item, Result

if TYPE_CHECKING:
    from distributed import Client, Future

_AHEAD = 2  # tasks on their way per worker: none waits for work, and results do not pile up
_LOOKS_EVERY_S = 10.0  # who is there
# A worker that died is back by then: its nanny starts a process, which imports the libraries.
_WITHOUT_WORKERS_S = 60.0

CANNOT_IMPORT = (
    "dask.scheduler: a worker cannot import the project ({error}); start workers in its folder and environment"
)


def map_in_order(
    client: "Client",
    threads: int,
    if_killed: Callable[[], Any] | None,
    task: Callable[[Item], Result],
    items: Iterable[Item],
    /,
) -> Iterator[Result]:
    """Results in the order of `items`; tasks start now, some ahead of the result that is asked for."""
    wanted = tuple(sorted(numerics().items()))
    # Some tasks are random and equal calls are rare, so none is looked up among earlier ones.
    sent = (client.submit(run_task, dumps((task, item)), threads, wanted, pure=False) for item in items)
    ahead = _Ahead(client, sent)
    ahead.send()
    return _results(ahead, if_killed)


def _results(ahead: "_Ahead", if_killed: Callable[[], Any] | None) -> Iterator[Any]:
    from distributed import KilledWorker

    while ahead.pending:
        future = ahead.pending.popleft()
        try:
            ahead.wait_for(future)
            result = future.result()
        except KilledWorker as error:
            if if_killed is None:
                raise InputError(f"dask: a worker died ({error}); give workers more memory or start fewer") from None
            result = if_killed()
        except CancelledError as error:
            raise InputError(f"dask.scheduler: the connection was lost ({error}); start the stage again") from None
        except ModuleNotFoundError as error:
            raise InputError(CANNOT_IMPORT.format(error=error)) from None
        ahead.send()
        yield result


class _Ahead:
    """The tasks on their way, as many as the workers that are there can use.

    Attributes:
        pending: in order.
    """

    def __init__(self, client: "Client", more: "Iterator[Future[Any]]") -> None:
        self._client, self._more = client, more
        self.pending: deque[Future[Any]] = deque()

    def send(self) -> None:
        """For those that have joined too."""
        # There is none for a moment where the last one died and comes back.
        wanted = _AHEAD * max(1, self._workers())
        self.pending.extend(islice(self._more, max(0, wanted - len(self.pending))))

    def wait_for(self, future: "Future[Any]") -> None:
        """Until a task has ended, however long it takes, as long as there is anybody to do it."""
        from distributed import wait

        last_seen = time.monotonic()
        while not future.done():
            try:
                wait(future, timeout=_LOOKS_EVERY_S)
            except TimeoutError:
                if self._workers():
                    last_seen = time.monotonic()
                    self.send()
                elif time.monotonic() - last_seen > _WITHOUT_WORKERS_S:
                    raise InputError(
                        "dask.scheduler: no worker is left; start workers and the same command again"
                    ) from None

    def _workers(self) -> int:
        try:
            return len(self._client.nthreads())
        except OSError as error:
            raise InputError(f"dask.scheduler: it has ended ({error}); start it and the stage again") from None
