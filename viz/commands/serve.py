"""`python -m viz`: look at the maps and try other radii, in a browser on this machine."""

import argparse
import logging
import secrets
import socket
from collections.abc import Sequence

from pipeline.config.params import load_params
from pipeline.paths import DataPaths
from viz.app import make_app
from viz.commands.inputs import folder_options
from viz.data import Source
from viz.security import LOOPBACK, LOOPBACK_NAMES, check_port

_ALL_INTERFACES = "0.0.0.0"

_EPILOG = """other commands, each with its own --help:
  export out.html       one offline page with the map and all pictures
  figure out.svg        the map for papers, as PNG, SVG or PDF"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = argparse.ArgumentParser(
        prog="python -m viz",
        description=__doc__,
        epilog=_EPILOG,
        parents=[folder_options()],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=8050, help="default: 8050")
    parser.add_argument(
        "--host",
        default=LOOPBACK,
        help="address to serve at; default: this machine alone. Any other asks browsers for a token, which is printed",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Serve until interrupted.

    Raises:
        InputError: the parameters are wrong, or the port cannot be had.
    """
    arguments = make_parser().parse_args(argv)
    # Said here, before anything is served.
    load_params(arguments.params)
    check_port(arguments.host, arguments.port, name="--port")
    token = None if arguments.host in LOOPBACK_NAMES else secrets.token_urlsafe(24)
    app = make_app(Source(DataPaths(root=arguments.data)), params_file=arguments.params, token=token)
    # A line for every request would bury the address.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    host = socket.gethostname() if arguments.host == _ALL_INTERFACES else arguments.host
    print(f"http://{host}:{arguments.port}/" + (f"?token={token}" if token else ""), flush=True)
    # All of it said here: Dash would take HOST, PORT and DASH_DEBUG from the environment.
    app.run(host=arguments.host, port=arguments.port, debug=False)
    return 0
