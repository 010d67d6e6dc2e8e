"""`python -m viz`: look at the maps and try other radii, in a browser on this machine."""

import argparse
import logging
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.params import load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from viz.app import make_app
from viz.data import Source
from viz.guard import LOOPBACK


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted.

    Returns:
        The exit code: 2 with one line for bad input.
    """
    parser = argparse.ArgumentParser(prog="python -m viz", description=__doc__)
    parser.add_argument("--port", type=int, default=8050, help="default: 8050")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="default: params.yaml")
    parser.add_argument("--data", type=Path, default=Path("data"), help="default: data")
    arguments = parser.parse_args(argv)
    try:
        params = load_params(arguments.params)
        _check_port(arguments.port)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    source = Source(DataPaths(root=arguments.data))
    app = make_app(source, params, params_file=arguments.params)
    # A line for every request would bury the address.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # All of it said here: Dash would take HOST, PORT and DASH_DEBUG from the environment.
    app.run(host=LOOPBACK, port=arguments.port, debug=False)
    return 0


def _check_port(port: int) -> None:
    if not 1 <= port <= 65535:
        raise InputError(f"--port: {port} is no port; give one from 1024 to 65535")
    with socket.socket() as probe:
        # As the server does: a port that was in use a moment ago is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise InputError(
                f"--port: {port} cannot be had ({error.strerror}); give another, e.g. --port 8051"
            ) from None


if __name__ == "__main__":
    sys.exit(main())
