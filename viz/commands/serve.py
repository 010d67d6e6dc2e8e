"""`python -m viz`: show the embeddings and preview other filter settings in a browser."""

import argparse
import logging
import secrets
import socket
from collections.abc import Sequence

from pipeline.command_line import command_parser
from pipeline.config.params import load_params
from pipeline.paths import DataPaths
from viz.app import make_app
from viz.commands.inputs import folder_options
from viz.data import Source
from viz.security import LOOPBACK, LOOPBACK_NAMES, check_port

_ALL_INTERFACES = ("0.0.0.0", "::")

_EPILOG = """other commands, each with its own --help:
  export out.html       one offline page with the embedding and all images
  figure out.svg        the embedding for papers, as PNG, SVG or PDF"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("viz", "viz", __doc__, folder_options(), _EPILOG)
    parser.add_argument("--port", type=int, default=8050, help="default: 8050")
    parser.add_argument(
        "--host",
        default=LOOPBACK,
        help="address to serve at; default: this machine only. Any other needs a token, which is printed",
    )
    return parser


def page_url(host: str, port: int, token: str | None) -> str:
    """Return the URL of the page, with the name of this machine if it serves at all addresses."""
    name = socket.gethostname() if host in _ALL_INTERFACES else host
    # The colons of an IPv6 address are no separators.
    authority = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    return f"http://{authority}/" + (f"?token={token}" if token else "")


def main(argv: Sequence[str]) -> int:
    """Serve until interrupted.

    Raises:
        InputError: the parameters are wrong, or the port is not available.
    """
    arguments = make_parser().parse_args(argv)
    # Report errors before serving.
    load_params(arguments.params, accept_old_keys=True)
    check_port(arguments.host, arguments.port, name="--port")
    token = None if arguments.host in LOOPBACK_NAMES else secrets.token_urlsafe(24)
    app = make_app(Source(DataPaths(root=arguments.data)), params_file=arguments.params, token=token)
    # A log line for every request would hide the URL.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    print(page_url(arguments.host, arguments.port, token), flush=True)
    # All arguments are explicit: Dash would take HOST, PORT and DASH_DEBUG from the environment.
    app.run(host=arguments.host, port=arguments.port, debug=False)
    return 0
