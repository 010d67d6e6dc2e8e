"""Figures of the report and the notebooks, and the app that shows the maps; `explore` shows it in a notebook."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from viz.notebook import Explorer


def explore(
    network: str | None = None, *, params: Path | str = "params.yaml", data: Path | str = "data", height: int = 760
) -> "Explorer":
    """The app in a cell of a Jupyter notebook; what is selected there comes back as `.selection`.

    Args:
        network: the one shown at first; None is the first one of the parameters.
        params, data: the parameter file and the folder of the stages' outputs.
        height: of the cell in pixels.

    Raises:
        InputError: the parameters are missing or wrong, or name no such network.
    """
    # The stages draw figures with this package, and do not need the app.
    from viz.notebook import start

    return start(network, params=Path(params), data=Path(data), height=height)
