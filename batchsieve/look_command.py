"""`batchsieve look FOLDER`: find labels that are probably wrong in a folder of images, without a project.

    batchsieve look photos

FOLDER has one folder per class, or is an archive of them, images with metadata.csv or metadata.jsonl, or a data set
cloned from the Hugging Face hub. Features of a pretrained network, which is not trained, are compared. The command
prints the ten most suspect labels, and writes all suspects with pictures and a map as one page that works offline. It
writes nothing into FOLDER.
"""

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from batchsieve.looking.looking import look
from batchsieve.looking.networks import DEFAULT_NETWORK, SMALL_NETWORKS
from batchsieve.looking.result import Look
from batchsieve.looking.sources import thumbnail_pixels
from pipeline.artifacts.overrides import locate_overrides, read_overrides
from pipeline.config.filter import FilterConfig
from pipeline.errors import InputError
from pipeline.filtering.apply import FilterContext, apply_filter
from pipeline.filtering.tables import filter_metrics, points_table
from pipeline.filtering.visualizer_project import (
    PICTURE_SIDE,
    VisualizerProject,
    check_project_folder,
    data_paths,
    project_parameters,
    write_project,
)
from pipeline.paths import expand_home
from pipeline.scoring.base import ScorerInputs
from pipeline.stats.formatting import plural

_SHOWN = 10
_PORT = 8050

# Arguments of `look` at the start of its messages, and phrases of its advice, which have a space -> options.
_OPTIONS = {
    "network": "--network",
    "weights": "--weights",
    "label_column": "--label-column",
    "give it as weights": "give it as --weights FILE",
    "give a file as weights": "give --weights FILE",
    "take network ": "take --network ",
}
# Of the scorers that need no record of a training, the one whose order is closest to `label_odds`.
_FILTER = {"scorer": {"name": "margin"}, "drop_fraction": "estimated", "allow_empty": True}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = argparse.ArgumentParser(
        prog="batchsieve look", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder or archive of images")
    parser.add_argument(
        "--network",
        help=f"timm/NAME, or resnet18 to resnet152, pretrained; or {' or '.join(SMALL_NETWORKS)}, trained on the "
        f"images; default: {DEFAULT_NETWORK}, or {SMALL_NETWORKS[0]} where it has no weights",
    )
    parser.add_argument("--weights", type=Path, metavar="FILE", help=".safetensors or .pth file of the network")
    parser.add_argument(
        "--label-column", metavar="NAME", help="of Parquet shards, metadata.csv or metadata.jsonl; default: label"
    )
    parser.add_argument("--out", type=Path, default=Path("look.html"), metavar="FILE", help="default: look.html")
    parser.add_argument(
        "--serve", action="store_true", help="then open the visualizer; its files are in a folder named as the page"
    )
    parser.add_argument("--port", type=int, help=f"of the visualizer; default: {_PORT}")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write all images as a table, most suspect first")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the suspects and write the page.

    Raises:
        InputError: see `look`; or a file would be in FOLDER.
    """
    arguments = make_parser().parse_args(argv)
    project: Path = arguments.out.with_suffix("")
    files = [("--out", arguments.out, ".html"), ("--csv", arguments.csv, ".csv")]
    for option, file, suffix in files:
        if file is not None:
            _check_file(option, file, suffix, arguments.folder)
    port: int = _PORT if arguments.port is None else arguments.port
    if arguments.port is not None and not arguments.serve:
        raise InputError(f"--port: {port} is of the visualizer; add --serve, or leave it out")
    if arguments.serve:
        # From the extra `viz`.
        from viz.security import LOOPBACK, check_port

        _check_outside("--out", project, arguments.folder)
        check_project_folder(project)
        check_port(LOOPBACK, port, name="--port")
    try:
        result = look(
            arguments.folder,
            network=arguments.network,
            weights=arguments.weights,
            label_column=arguments.label_column,
            progress=True,
        )
    except InputError as error:
        raise _naming_options(error) from None
    written = [result.save(file) for _, file, _ in files if file is not None]
    print("\n".join(_text(result)))
    for file in written:
        print(f"{file}: written, {file.stat().st_size / 1e6:.1f} MB")
    return _serve(result, project, port) if arguments.serve else 0


def _serve(result: Look, project: Path, port: int) -> int:
    from viz.commands import serve

    write_look(result, project)
    options = ["--params", f"{project / 'params.yaml'}", "--data", f"{project / 'data'}"]
    print(f"{project}: decisions are saved there; to open it again: batchsieve viz {shlex.join(options)}", flush=True)
    return serve.main([*options, "--port", str(port)])


def _check_file(option: str, file: Path, suffix: str, folder: Path) -> None:
    if file.suffix.lower() != suffix:
        raise InputError(f"{option}: {file} does not end in {suffix}; give a name that does")
    if file.is_dir() or not file.parent.is_dir():
        raise InputError(f"{option}: {file} cannot be written there; give a file in a folder that exists")
    if not os.access(file.parent, os.W_OK):
        raise InputError(f"{option}: {file.parent} cannot be written to; give a file in another folder")
    _check_outside(option, file, folder)


def _check_outside(option: str, file: Path, folder: Path) -> None:
    if file.resolve().is_relative_to(expand_home(folder).resolve()):
        raise InputError(f"{option}: {file} would be in {folder}, into which nothing is written; give another path")


def _text(result: Look) -> list[str]:
    classes = len(set(result.issues.label.tolist()))
    suspects = len(result.suspects())
    lines = [f"{result.name}: {len(result):,} images of {classes} classes", result.network]
    for path, reason in list(result.unreadable.items())[:_SHOWN]:
        lines.append(f"left out: {path}: {reason}")
    if len(result.unreadable) > _SHOWN:
        lines.append(f"left out: {plural(len(result.unreadable) - _SHOWN, 'more unreadable file')}")
    lines.append(f"{result.headline}; {suspects:,} {'has' if suspects == 1 else 'have'} another suggested label")
    same, different = (result.duplicates(same_label=same) for same in (True, False))
    if len(same) + len(different):
        lines.append(f"near duplicates: {len(different):,} with different labels, {len(same):,} with the same")
        lines += [f"  {result.path[one]} and {result.path[other]}" for one, other in different[:_SHOWN]]
    if suspects:
        lines += ["", *result.lines(_SHOWN), ""]
    return lines


def _naming_options(error: InputError) -> InputError:
    key, colon, text = str(error).partition(": ")
    for phrase, option in _OPTIONS.items():
        text = text.replace(phrase, option) if " " in phrase else text
    return InputError(f"{_OPTIONS.get(key, key)}{colon}{text}")


def write_look(look: Look, folder: Path) -> None:
    """Write params.yaml and data/ of the visualizer; decisions of an earlier look in data/overrides.csv stay.

    Raises:
        InputError: the folder has other files; or its decisions are about images that are not there.
    """
    check_project_folder(folder)
    file, network = data_paths(folder).overrides, look.extractor
    class_names = [str(name) for name in look.class_names]
    number = {name: code for code, name in enumerate(look.class_names.tolist())}
    codes = np.array([number[label] for label in look.issues.label.tolist()], dtype=np.int64)
    paths, sha256 = look.path.tolist(), look.sha256.tolist()
    decided = read_overrides(file) if file.exists() else []
    overrides = locate_overrides(decided, file=file, paths=paths, sha256=sha256, class_names=class_names)
    inputs = ScorerInputs(
        labels=codes,
        embeddings=look.coordinates[None],
        components=look.components,
        neighbors=look.neighbors,
        probabilities=look.probabilities,
    )
    config = FilterConfig.model_validate(_FILTER)
    context = FilterContext(network=network, class_names=class_names, overrides=overrides)
    filtered = apply_filter(inputs, config, context, fix="give more images")
    images = pa.table(
        {
            "sample_id": np.arange(len(look)),
            "path": pa.array(paths, pa.string()),
            "sha256": pa.array(sha256, pa.string()),
            "label": codes,
            "label_name": pa.array([class_names[code] for code in codes], pa.string()),
            "predicted": pa.array(look.probabilities.argmax(axis=1)),
            "confidence": pa.array(look.probabilities.max(axis=1)),
        }
    )
    write_project(
        folder,
        VisualizerProject(
            parameters=project_parameters(
                network,
                look.name,
                reduce={"n_neighbors": look.neighbors.shape[1]},
                filter_=_FILTER,
                source="look",
            ),
            network=network,
            class_names=class_names,
            images=thumbnail_pixels(look.thumbnails, PICTURE_SIDE),
            inputs=inputs,
            points=points_table(images, inputs, filtered, class_names),
            metrics=filter_metrics(inputs, filtered, config, context),
            command="batchsieve look --serve",
        ),
    )
