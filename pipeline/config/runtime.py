"""The `dask` and `report` sections."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pipeline.config.base import Positive, PositiveFloat, Section

SchedulerAddress = Annotated[str, StringConstraints(pattern=r"^tcp://(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}$")]


class DaskConfig(Section):
    """The `dask` section: where independent tasks run. It changes no result, so no stage depends on it.

    Attributes:
        scheduler: `none`, a loop in the process of the stage; `local`, processes on this machine; or the address of a
            running Dask scheduler, `tcp://host:port`, whose workers have one thread each and the project's folder under
            the same path.
        workers: processes of `local`. Each uses as many threads as the stage itself.
    """

    scheduler: Literal["none", "local"] | SchedulerAddress = "none"
    workers: Positive = 2

    @property
    def is_remote(self) -> bool:
        """Whether tasks may run on other machines."""
        return self.scheduler not in ("none", "local")


class ReportConfig(Section):
    """The `report` section: the decision rule, and the content of the page.

    Choose `margin`, `primary` and `confidence` before you see results.

    Attributes:
        margin: percentage points of top-1. Smaller differences do not matter: arms are equivalent if their difference
            is within the margin with confidence.
        primary: the arm that `filtered` is compared with in each study's one primary test; comparisons with other arms
            are secondary.
        confidence: of the intervals; 1 - confidence is the level of each test, its probability of a false positive.
        target_train_loss: nats; the report gives the steps and images after which each run's training loss reaches it.
            Choose it before you see results. Null: no section on convergence.
        target_top1: the same for the accuracy on test images, 0 to 1, of studies with `accuracy_every`.
        gallery_images: dropped images shown per network, the most suspect first.
    """

    margin: Annotated[float, Field(gt=0, lt=100)]
    primary: Literal["full", "random", "random_uniform"]
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    target_train_loss: PositiveFloat | None = None
    target_top1: Annotated[float, Field(gt=0, lt=1)] | None = None
    gallery_images: Positive = 60

    @property
    def alpha(self) -> float:
        """Level of the tests, (0, 1/2)."""
        return round(1 - self.confidence, 12)
