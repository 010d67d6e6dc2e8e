"""Visualizer: an app that shows the embeddings and writes overrides. `explore` shows it in a notebook."""

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
    """Show the app in a cell of a Jupyter notebook.

    Args:
        network: shown first; None for the first network of the parameters.
        params: the parameter file.
        data: the folder of the outputs of the stages.
        height: of the cell, in pixels.
        port: of this machine, e.g. one that an SSH tunnel forwards; None for any free port. An app that this process
            serves there is closed first.

    Returns:
        A `viz.notebook.Explorer`. Its `selection` holds the selected images.

    Raises:
        InputError: the parameters are missing or wrong, or do not have the network; the port is not available.
    """
    # Imported by name, so that importing this package does not import Dash.
    return import_module("viz.notebook").start(network, params=Path(params), data=Path(data), height=height, port=port)
