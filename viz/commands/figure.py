"""`python -m viz figure out.svg`: write the embedding as a figure for papers, in PNG, SVG or PDF.

The figure shows the decisions of the filter and the current overrides.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from pipeline.artifacts.files import atomic_path
from pipeline.command_line import command_parser
from pipeline.errors import InputError
from pipeline.figures.embeddings import colored_map, name_places
from pipeline.figures.rendering import pdf, png, svg, with_note
from pipeline.paths import DataPaths
from viz.color_by import COLORINGS, ColorData, colors_by
from viz.commands.inputs import check_suffix, chosen_network, network_options
from viz.data import Source
from viz.filter_settings import FilterSettings, preview_filter

_FORMATS: Mapping[str, Callable[[Figure], bytes]] = {".png": png, ".svg": svg, ".pdf": pdf}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("viz", "figure", __doc__, network_options())
    parser.add_argument("file", type=Path, help="the figure, .png, .svg or .pdf")
    parser.add_argument("--color", default="class", help=f"coloring: {', '.join(COLORINGS)}; default: class")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the figure.

    Raises:
        InputError: parameters or artifacts are wrong, the network, coloring or suffix is unknown, or the disk is full.
    """
    arguments = make_parser().parse_args(argv)
    file: Path = arguments.file
    check_suffix(file, list(_FORMATS))
    if arguments.color not in COLORINGS:
        raise InputError(f"--color: {arguments.color!r} is not known; choose from {', '.join(COLORINGS)}")
    network = chosen_network(arguments.network, arguments.params)
    source = Source(DataPaths(root=arguments.data))
    points = source.points(network)
    preview = preview_filter(source, points, FilterSettings())
    colors = colors_by(arguments.color, ColorData(points=points, preview=preview))
    dropped = ~preview.keep
    title = f"{network}: {COLORINGS[arguments.color][0]}; {dropped.sum():,} of {len(points):,} training images dropped"
    names = name_places(points.coordinates, points.labels, points.class_names)
    figure = with_note(colored_map(points.coordinates, colors, dropped, title=title, names=names), points.planted_note)
    content = _FORMATS[file.suffix.lower()](figure)
    with atomic_path(file) as temporary:
        temporary.write_bytes(content)
    print(f"{file}: written")
    return 0
