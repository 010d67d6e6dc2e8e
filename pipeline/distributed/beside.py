"""Work beside the backward pass, one piece after another: on a thread, or on a stream of a GPU."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

Beside = Callable[[Tensor, Callable[[], None]], torch.futures.Future[Tensor]]
"""Starts what is given, after what was given before; promises the tensor, which that overwrites."""


def on_thread() -> Beside:
    """A thread of its own, which may wait for other ranks; what it raises ends the backward pass as a RuntimeError."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="exchange")

    def start(result: Tensor, work: Callable[[], None]) -> torch.futures.Future[Tensor]:
        done: torch.futures.Future[Tensor] = torch.futures.Future()

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - nobody hears a thread
                done.set_exception(error)  # type: ignore[arg-type]
            else:
                done.set_result(result)

        thread.submit(run)
        return done

    return start


def on_stream(device: torch.device) -> Beside:
    """A CUDA stream of its own: this thread only queues the work."""
    stream = torch.cuda.Stream(device)

    def start(result: Tensor, work: Callable[[], None]) -> torch.futures.Future[Tensor]:
        stream.wait_stream(torch.cuda.current_stream(device))
        done: torch.futures.Future[Tensor] = torch.futures.Future(devices=[device])
        with torch.cuda.stream(stream):
            work()
            done.set_result(result)
        return done

    return start
