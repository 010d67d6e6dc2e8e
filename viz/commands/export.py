"""`python -m viz export out.html`: write the embedding with all images as one offline page.

The page shows the decisions of the filter and the current overrides.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.command_line import command_parser
from pipeline.paths import DataPaths
from viz.commands.inputs import check_suffix, chosen_network, network_options
from viz.data import Source
from viz.export.page import make_content, write_page
from viz.filter_settings import FilterSettings, preview_filter


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("viz", "export", __doc__, network_options())
    parser.add_argument("file", type=Path, help="the page, .html")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the page and print its size.

    Raises:
        InputError: parameters or artifacts are wrong, the network is unknown, the suffix is not .html or .htm, or the
            disk is full.
    """
    arguments = make_parser().parse_args(argv)
    file: Path = arguments.file
    check_suffix(file, [".html", ".htm"])
    network = chosen_network(arguments.network, arguments.params)
    source = Source(DataPaths(root=arguments.data))
    points = source.points(network)
    write_page(file, make_content(points, preview_filter(source, points, FilterSettings()), source.overrides(points)))
    print(f"{file}: written, {file.stat().st_size / 1e6:.1f} MB")
    return 0
