"""`batchsieve export`: write what the filter kept and dropped for other tools, or the visualizer as one page.

batchsieve export FOLDER       kept and dropped images as Parquet of the Hugging Face hub, metadata.csv, indices, and
                               cleanlab's columns
batchsieve export FILE.html    the visualizer's embedding with all images as one offline page
"""

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from pipeline.errors import InputError


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = argparse.ArgumentParser(
        prog="batchsieve export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="a folder, or a file that ends in .html")
    parser.add_argument("--network", help="whose filter (default: the first of the parameters' networks)")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="default: params.yaml")
    parser.add_argument("--data", type=Path, default=Path("data"), help="default: data")
    parser.add_argument("--force", action="store_true", help="overwrite the files of an earlier export in the folder")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the folder or the page.

    Raises:
        InputError: as the two commands; or a name that is neither a folder's nor a page's.
    """
    arguments = make_parser().parse_args(argv)
    out: Path = arguments.out
    shared = ["--params", str(arguments.params), "--data", str(arguments.data)]
    shared += ["--network", arguments.network] if arguments.network else []
    if out.suffix.lower() in (".html", ".htm"):
        if arguments.force:
            raise InputError(f"--force: is for folders, and {out} is a page, which is always replaced; remove --force")
        return _run("viz.commands.export", [str(out), *shared])
    if out.suffix and not out.is_dir():
        raise InputError(f"{out}: is neither a folder nor a page; give a name without a dot, or one that ends in .html")
    return _run("pipeline.commands.export.command", [str(out), *shared, *(["--force"] if arguments.force else [])])


def _run(module: str, argv: Sequence[str]) -> int:
    code: int = import_module(module).main(argv)
    return code
