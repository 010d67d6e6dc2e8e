"""Refuse variables by which OpenMP takes fewer threads than this process sets: their number decides bits."""

import os

from pipeline.errors import InputError


def check_openmp(threads: int) -> None:
    """Check that OpenMP computes on as many threads as torch has.

    torch reports the number that it was set to and not the number that computes. A sum on another number of threads
    may have other bits, and the number that was set is part of a run's key.

    Args:
        threads: of this process.

    Raises:
        InputError: OMP_DYNAMIC is true, OMP_MAX_ACTIVE_LEVELS is 0, or OMP_THREAD_LIMIT is below `threads`.
    """
    dynamic, levels, limit = (
        os.environ.get(name, "").strip() for name in ("OMP_DYNAMIC", "OMP_MAX_ACTIVE_LEVELS", "OMP_THREAD_LIMIT")
    )
    if dynamic.lower() == "true":
        raise _refusal("OMP_DYNAMIC", dynamic, "lets OpenMP take fewer threads while the machine is busy")
    if levels.isdecimal() and int(levels) == 0:
        raise _refusal("OMP_MAX_ACTIVE_LEVELS", levels, "lets OpenMP compute on one thread only")
    if limit.isdecimal() and int(limit) < threads:
        raise _refusal("OMP_THREAD_LIMIT", limit, f"is below the {threads} threads of this process")


def _refusal(name: str, value: str, effect: str) -> InputError:
    return InputError(f"{name}: {value} {effect}, and their number decides the bits of a result; unset it")
