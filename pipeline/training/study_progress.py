"""The progress of a study: how many of its runs have ended, and about how long the others take."""

import time
from collections.abc import Callable, Sequence


class StudyProgress:
    """Estimates the time left from the time per image of the runs that have ended in this process.

    Runs of several batch sizes differ in their time per image, so the estimate is rough until most of them have ended.

    Args:
        images: training images that each run processes, in the order of the runs.
        clock: returns seconds.
    """

    def __init__(self, images: Sequence[int], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._images, self._clock = images, clock
        self._start = clock()
        self._ended = 0

    def end_run(self) -> str:
        """Count a run, and return the progress, such as "3 of 27 runs, about 5 min left"."""
        self._ended += 1
        done, left = sum(self._images[: self._ended]), sum(self._images[self._ended :])
        counted = f"{self._ended} of {len(self._images)} runs"
        if not left:
            return counted
        return f"{counted}, about {_rounded((self._clock() - self._start) * left / max(1, done))} left"


def _rounded(seconds: float) -> str:
    """Return a time in the unit that people use for it."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
