"""`python -m pipeline filter-features`: the filter on features made elsewhere, without images or training.

Any array (N, D) does, e.g. of another pretrained network. Labels are optional: without them all rows
are one group, and scorers that compare no labels find what lies alone. The sections `reduce` and
`filter` of the parameters apply as they do to the project's own features.

    python -m pipeline filter-features --features f.npy --labels y.csv --out suspects
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from pipeline.artifacts.arrays import open_array, write_array
from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import write_csv, write_parquet
from pipeline.config.params import Params, load_params
from pipeline.errors import InputError
from pipeline.fanout import fan_out
from pipeline.filtering.mapping import map_images
from pipeline.filtering.sieve import Labelling, sieve
from pipeline.filtering.tables import filter_metrics, kept_and_dropped, points_table
from pipeline.reduction.checks import check_features
from pipeline.run_log import standard_log
from pipeline.selection.evidence import Evidence
from pipeline.selection.linear_probe import cross_validated_probabilities
from pipeline.selection.scorers import SCORERS

_PROBE_FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the files say of N rows.

    Attributes:
        labels: (N,) indices into `names`.
        paths: as the file of labels has them; None if it has none.
        probabilities: (N, C); None if none were given.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    names: list[str]
    paths: list[str] | None
    probabilities: NDArray[np.float32] | None


def main(argv: Sequence[str]) -> int:
    """Write the same tables as the stage, and say how many rows stay."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline filter-features",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--features", type=Path, required=True, help=".npy, float (N, D)")
    parser.add_argument("--labels", type=Path, help="CSV with N rows and a column label; a column path is passed on")
    parser.add_argument("--probabilities", type=Path, help=".npy, float32 (N, C), classes in alphabetical order")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    arguments = parser.parse_args(argv)
    params = load_params(arguments.params)
    if isinstance(params.filter.drop_share, dict):
        raise InputError(f"{arguments.params}: filter.drop_share: is by network, and there is none; give one number")
    _run(_read(arguments), params, arguments)
    return 0


def _read(arguments: argparse.Namespace) -> Given:
    features = _features(arguments.features)
    check_features(features, str(arguments.features))
    labels, names, paths = np.zeros(len(features), dtype=np.int64), ["all"], None
    if arguments.labels:
        labels, names, paths = _labels(arguments.labels, len(features))
    return Given(
        features=features,
        labels=labels,
        names=names,
        paths=paths,
        probabilities=_probabilities(arguments.probabilities, len(features), len(names)),
    )


def _features(path: Path) -> NDArray[np.float32]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"--features {path}: no such file") from None
    except (ValueError, OSError) as error:
        raise InputError(f"--features {path}: not a sound .npy file ({error}); write it by numpy.save") from None
    if array.ndim != 2 or array.dtype.kind != "f" or 0 in array.shape:
        raise InputError(f"--features {path}: is {array.dtype} {array.shape}; give floats of shape (N, D)")
    # Single precision is mapped as it is; anything else fits into memory or does not.
    return np.asanyarray(array, dtype=np.float32)


def _labels(path: Path, n: int) -> tuple[NDArray[np.int64], list[str], list[str] | None]:
    convert = pyarrow.csv.ConvertOptions(column_types={"label": pa.string(), "path": pa.string()})
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    try:
        table = pyarrow.csv.read_csv(path, convert_options=convert, parse_options=parse)
    except FileNotFoundError:
        raise InputError(f"--labels {path}: no such file") from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--labels {path}: not readable as CSV ({reason}); mend that line") from None
    if "label" not in table.column_names:
        raise InputError(f"--labels {path}: has the columns {table.column_names}; give a column label")
    if len(table) != n:
        raise InputError(
            f"--labels {path}: has {len(table)} rows for {n} rows of features; give one for each, in order"
        )
    given = table["label"].to_pylist()
    if "" in given:
        raise InputError(f"--labels {path}: line {given.index('') + 2} has no label; give one, or leave the row out")
    names = sorted(set(given))
    number = {name: index for index, name in enumerate(names)}
    paths = table["path"].to_pylist() if "path" in table.column_names else None
    return np.array([number[name] for name in given], dtype=np.int64), names, paths


def _probabilities(path: Path | None, n: int, n_classes: int) -> NDArray[np.float32] | None:
    if path is None:
        return None
    values = open_array(path, dtype=np.float32, ndim=2, rows=n)
    if values.shape[1] != n_classes or not np.isfinite(values).all() or abs(values.sum(axis=1) - 1).max() > 1e-3:
        raise InputError(
            f"--probabilities {path}: rows are no probabilities of {n_classes} classes; give {n_classes} columns, in "
            "the alphabetical order of the labels, that sum to 1"
        )
    return values


def _run(given: Given, params: Params, arguments: argparse.Namespace) -> None:
    out, config, log = arguments.out, params.filter, standard_log(None)
    out.mkdir(parents=True, exist_ok=True)
    with fan_out(params.dask.scheduler, workers=params.dask.workers, threads=params.reduce.tsne.n_jobs) as run:
        mapped = map_images(
            given.features, given.labels, params.reduce, components_file=out / "components.npy", log=log, run=run
        )
        probabilities, whose = _complete(given, config.scorer.model_dump(), mapped.components)
        evidence = Evidence(
            labels=given.labels,
            maps=mapped.coordinates,
            components=mapped.components,
            neighbours=mapped.neighbours.rows,
            probabilities=probabilities,
            each=run,
        )
        known = Labelling(network=arguments.features.stem, names=given.names, overrides={})
        sieved = sieve(evidence, config, known)
    points = points_table(_rows(given, probabilities), replace(evidence, each=map), sieved)
    kept, dropped = kept_and_dropped(points)
    metrics = filter_metrics(evidence, sieved, config, known)
    write_array(out / "maps.npy", mapped.coordinates)
    write_parquet(out / "points.parquet", points)
    write_csv(out / "kept.csv", kept)
    write_csv(out / "dropped.csv", dropped)
    write_json(out / "metrics.json", {**metrics, "probabilities": whose, "reduce": mapped.metrics})
    files = [path for path in (arguments.features, arguments.labels, arguments.probabilities) if path]
    write_provenance(
        out / "provenance.json",
        stage="filter-features",
        parameters={name: getattr(params, name).model_dump(mode="json") for name in ("reduce", "filter")},
        inputs=files,
        outputs=[out / name for name in ("points.parquet", "kept.csv", "dropped.csv", "metrics.json")],
    )
    if metrics["share_note"]:
        print(f"filter.drop_share: {metrics['share_note']}")
    print(f"{out}: {metrics['n_kept']} of {metrics['n_total']} kept ({metrics['kept_share']:.2%}); see dropped.csv")


def _complete(
    given: Given, scorer: Mapping[str, Any], components: NDArray[np.float32]
) -> tuple[NDArray[np.float32] | None, str | None]:
    """Class probabilities, and whose they are; of a linear probe where a scorer needs some and none were given."""
    if given.probabilities is not None:
        return given.probabilities, "given"
    needs = {need for member in (scorer, *scorer.get("of", ())) for need in SCORERS[member["name"]].needs}
    if "probabilities" not in needs or len(given.names) < 2:
        return None, None
    found = cross_validated_probabilities(
        components, given.labels, n_classes=len(given.names), n_folds=_PROBE_FOLDS, seed=0
    )
    return found, f"linear probe, {_PROBE_FOLDS}-fold cross-validated"


def _rows(given: Given, probabilities: NDArray[np.float32] | None) -> pa.Table:
    """The columns that the points begin with."""
    columns: dict[str, Any] = {"sample_id": np.arange(len(given.labels))}
    if given.paths is not None:
        columns["path"] = pa.array(given.paths, pa.string())
    columns["label"] = given.labels
    columns["label_name"] = pa.array([given.names[label] for label in given.labels], pa.string())
    if probabilities is not None:
        columns["predicted"] = probabilities.argmax(axis=1)
        columns["confidence"] = probabilities.max(axis=1)
    return pa.table(columns)
