"""The app inside a Jupyter notebook."""

import html
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
from werkzeug.serving import make_server

from pipeline.artifacts.tables import read_parquet
from pipeline.config.params import load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from viz.app import make_app
from viz.callbacks.overrides import current_points
from viz.data import Source
from viz.security import LOOPBACK, check_port

_running: dict[int, "Explorer"] = {}
"""The apps of this process that serve, by port."""


class Explorer:
    """A running app, which a notebook shows as the output of a cell. It stops with the kernel or by `close`.

    Attributes:
        url: of the page, for browsers on this machine only.
    """

    def __init__(self, network: str, *, data: DataPaths, params_file: Path, height: int, port: int | None) -> None:
        self._source, self._network, self._height = Source(data), network, height
        self._selection: tuple[str | None, tuple[int, ...]] = (None, ())
        app = make_app(self._source, params_file=params_file, on_selection=self._remember)
        # A log line for every request would hide the output of the notebook.
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        if port is not None:
            # A cell that runs again takes over the port of its last app.
            if port in _running:
                _running[port].close()
            check_port(LOOPBACK, port, name="port")
        self._server = make_server(LOOPBACK, port or 0, app.server, threaded=True)
        _running[self._server.port] = self
        self.url = f"http://{LOOPBACK}:{self._server.port}/?{urlencode({'network': network})}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def selection(self) -> list[int]:
        """Sample ids of the images that were selected last on any open page of this app, ascending."""
        return sorted(self._selection[1])

    def selected(self) -> pa.Table:
        """Return the selected rows of points.parquet, of the network in whose embedding they were selected.

        Raises:
            InputError: the file is missing or damaged, or has been replaced since the selection.
        """
        generation, rows = self._selection
        network = self._network if generation is None else generation.partition(" ")[0]
        file = self._source.data.points(network)
        table = read_parquet(file)
        # Checked after reading, so that the table is that of the selection.
        if generation is not None and current_points(self._source, generation) is None:
            raise InputError(f"{file}: has been replaced since the selection; select again")
        return table.take(sorted(rows))

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        if _running.get(self._server.port) is self:
            del _running[self._server.port]

    def _remember(self, generation: str | None, rows: Sequence[int]) -> None:
        self._selection = generation, tuple(rows)

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {self._height}px; border: 1px solid #cccccc"
        return f'<iframe src="{html.escape(self.url)}" style="{style}"></iframe>'


def start(network: str | None, *, params: Path, data: Path, height: int, port: int | None) -> Explorer:
    """Start an app for a notebook; see `viz.explore`."""
    networks = load_params(params, accept_old_keys=True).networks
    if network is not None and network not in networks:
        raise InputError(f"network: {network} is not in {params}; choose from {', '.join(networks)}")
    return Explorer(network or networks[0], data=DataPaths(root=data), params_file=params, height=height, port=port)
