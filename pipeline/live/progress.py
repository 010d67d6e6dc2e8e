"""The progress of several runs: where the current one is, how many have ended, and about how long the others take."""

import os
import time
from collections.abc import Callable, Iterable, Sequence

from pipeline.run_log import rounded_time


class StudyProgress:
    """Estimates the time left from the time per image of the runs that have ended in this process.

    Runs of several batch sizes differ in their time per image, so the estimate is rough until most of them have ended.

    Args:
        images: training images that each run processes, in the order of the runs.
        following: stages that come after these runs.
        unit: name of a run in the texts.
        clock: returns seconds.
    """

    def __init__(
        self,
        images: Sequence[int],
        *,
        following: Sequence[str] = (),
        unit: str = "run",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._images, self._following, self._unit, self._clock = images, following, unit, clock
        self._start = clock()
        self._begun = self._ended = 0

    def begin_run(self) -> str:
        """Count a run that begins, and return where it is: "run 3 of 27, about 5 min left, then report"."""
        self._begun += 1
        return self.where

    @property
    def where(self) -> str:
        """Where the run that began last is in the whole. The time left is unknown before the first run has ended."""
        then = f"then {', '.join(self._following)}" if self._following else ""
        return ", ".join(filter(None, [f"{self._unit} {self._begun} of {len(self._images)}", self._left(), then]))

    def end_run(self) -> str:
        """Count a run that has ended, and return the progress, such as "3 of 27 runs, about 5 min left"."""
        self._ended += 1
        return ", ".join(filter(None, [f"{self._ended} of {len(self._images)} {self._unit}s", self._left()]))

    def _left(self) -> str:
        done, left = sum(self._images[: self._ended]), sum(self._images[self._ended :])
        if not left or not self._ended:
            return ""
        return f"about {rounded_time((self._clock() - self._start) * left / max(1, done))} left"


def following_stages(study: str, studies: Iterable[str]) -> list[str]:
    """Return the stages after a study's in the order of dvc.yaml: the later studies and the report.

    Args:
        studies: of params.yaml, in its order.

    Returns:
        Empty outside of DVC, which runs one stage after another.
    """
    if "DVC_ROOT" not in os.environ:
        return []
    names = list(studies)
    return [*(f"train@{name}" for name in names[names.index(study) + 1 :]), "report"]
