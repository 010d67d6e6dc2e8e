"""`dask`: where independent tasks run. It changes no result, so no stage depends on it."""

from typing import Annotated, Literal

from pydantic import StringConstraints

from pipeline.config.base import Positive, Section

SchedulerAddress = Annotated[str, StringConstraints(pattern=r"^tcp://(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}$")]


class DaskConfig(Section):
    """The `dask` section.

    Attributes:
        scheduler: `none`, a plain loop in the stage's own process; `local`, processes on this machine;
            or the address of a running Dask scheduler, `tcp://host:port`, whose workers have one
            thread each and see the project's folder under the same path.
        workers: processes of `local`. Each takes as many threads as the stage itself.
    """

    scheduler: Literal["none", "local"] | SchedulerAddress = "none"
    workers: Positive = 2

    @property
    def elsewhere(self) -> bool:
        """Whether tasks may run on other machines."""
        return self.scheduler not in ("none", "local")
