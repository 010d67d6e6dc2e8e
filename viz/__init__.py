"""Figures of the report and the notebooks, and the app that shows the maps; `explore` shows it in a notebook."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any


def explore(
    network: str | None = None,
    *,
    params: Path | str = "params.yaml",
    data: Path | str = "data",
    height: int = 760,
    port: int | None = None,
) -> Any:
    """The app in a cell of a Jupyter notebook, as a `viz.notebook.Explorer`: what is selected is its `.selection`.

    Args:
        network: the one shown at first; None is the first one of the parameters.
        params, data: the parameter file and the folder of the stages' outputs.
        height: of the cell in pixels.
        port: of this machine to serve at, e.g. one that an SSH tunnel forwards; None is any free one.

    Raises:
        InputError: the parameters are missing or wrong, or name no such network; the port cannot be had.
    """
    # By name: stages that draw figures with this package neither need the app nor depend on it.
    return import_module("viz.notebook").start(network, params=Path(params), data=Path(data), height=height, port=port)
