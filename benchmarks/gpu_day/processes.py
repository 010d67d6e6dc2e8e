"""Processes of the steps: forked from a server that has imported torch, and ended with their parent."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from typing import Any


def start_process(function: Callable[..., None], *arguments: Any, imported: str | None = None) -> ForkServerProcess:
    """Run a function in a new process, forked from a server.

    Args:
        imported: the module that the server imports when it starts; by default the function's module.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([imported or function.__module__])
    process = context.Process(target=function, args=arguments)
    process.start()
    return process


def end_with_parent() -> None:
    """End this process and its children when the parent process is killed."""
    os.setsid()
    threading.Thread(target=_kill_group_after_parent, daemon=True).start()


def _kill_group_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)


def gpu_answers() -> bool:
    """Return whether the GPU that this process uses computes; after an error in a kernel it computes nothing more."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.empty_cache()
        return bool(torch.ones(2, device="cuda").sum().item() == 2)
    except RuntimeError:
        return False
