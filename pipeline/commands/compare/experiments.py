"""Read an experiment from a folder or a git revision: its runs, its filters and its test images."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.artifacts.files import open_array
from pipeline.artifacts.prepared import PLANTED_COLUMN, count_planted
from pipeline.artifacts.recorded import check_recorded
from pipeline.artifacts.runs import COMPARED_COLUMNS, Row, check_run_values
from pipeline.artifacts.stage_inputs import comparison_inputs
from pipeline.artifacts.tables import read_csv, read_parquet, restore_cells
from pipeline.artifacts.untrusted import read_untrusted_json
from pipeline.errors import DataError, InputError
from pipeline.paths import DataPaths
from pipeline.stats.formatting import count

_MANIFEST_COLUMNS = {"sha256": pa.string(), "label_name": pa.string()}

_KEPT_COLUMNS = {"sample_id": pa.int64(), "path": pa.string(), "label_name": pa.string()}
_PREPARED = ("test.parquet", "provenance.json", "metrics.json")
_PATHS = ("train", "filter", *(f"prepare/{name}" for name in _PREPARED), "report/provenance.json")
"""Files and folders of a revision's data/ that `read_experiment` uses."""


def fetch(
    revision: str,
    paths: Iterable[str],
    is_wanted: Callable[[Path], bool],
    target: Path,
    *,
    is_optional: Callable[[Path], bool],
) -> None:
    """Copy files in data/ of a git revision from DVC's cache to the data folder `target`, without a checkout.

    Files that dvc.yaml declares and the revision's dvc.lock lacks are skipped.

    Args:
        revision: what git or DVC resolves: a commit, a branch, a tag, `HEAD~1`, an experiment of `dvc exp`.
        paths: folders in data/, searched recursively, or single files.
        is_wanted: whether to copy a file.
        target: data folder to write.
        is_optional: whether to skip a file that is neither in the cache nor in a remote.

    Raises:
        InputError: no such revision, or a file that is not optional is neither in DVC's cache nor in a remote.
    """
    # Imported here: it takes two seconds, and folders are compared without it.
    from dvc.api import DVCFileSystem
    from dvc.exceptions import DvcException

    try:
        files = DVCFileSystem(rev=revision)
        listed = [file for path in paths for file in files.find(f"/data/{path}")]
    except DvcException as error:
        raise InputError(f"{revision}: neither a folder nor a git revision that DVC can read: {error}") from None
    for path in listed:
        if not is_wanted(Path(path)) or _never_run(files.info(path)):
            continue
        destination = target / Path(path).relative_to("/data")
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            files.get_file(path, str(destination))
        except FileNotFoundError:
            if is_optional(Path(path)):
                continue
            raise InputError(
                f"{revision}: {path.removeprefix('/')} is not in DVC's cache; run `dvc pull --all-commits`"
            ) from None


def _never_run(entry: Mapping[str, Any]) -> bool:
    """Return whether dvc.yaml declares the file and dvc.lock lacks it: its stage had not run."""
    output = entry.get("dvc_info")
    return output is not None and output.get("md5") is None


@dataclass(frozen=True, kw_only=True)
class EvaluationImages:
    """The test images of one experiment.

    Accuracies on different images differ by the same amount in every seed, which a paired test would report as an
    effect. The settings and columns of runs do not identify the images.

    Attributes:
        images: number of images by (sha256, label_name), independent of file names.
        unknown: study -> why its runs may have been tested on other images; empty if all are known.
    """

    images: Counter[tuple[str, str]]
    unknown: Mapping[str, str]


def read_evaluation_images(data: DataPaths, studies: Iterable[str]) -> EvaluationImages:
    """Read data/prepare/test.parquet and check that the studies were trained with the files next to it.

    Raises:
        InputError: a file is damaged.
    """
    manifest = data.manifest("test")
    if not manifest.exists():
        reason = (
            f"{manifest.relative_to(data.root).as_posix()} is missing (that of a revision: `dvc pull --all-commits`)"
        )
        return EvaluationImages(images=Counter(), unknown=dict.fromkeys(studies, reason))
    table = read_parquet(manifest, _MANIFEST_COLUMNS)
    prepared = _recorded(data, "prepare", None, "outputs", "")
    unknown = {}
    for study in studies:
        trained_with = _recorded(data, "train", study, "inputs", "../prepare/")
        if trained_with[0] and not trained_with[1]:
            unknown[study] = "it was trained before the labels were recorded with it; train it again (`dvc repro`)"
        elif None in (*prepared, *trained_with):
            unknown[study] = "a provenance file that names them, of prepare or of the study, is missing"
        elif prepared != trained_with:
            unknown[study] = "data/prepare has changed since the study was trained"
    pairs = zip(table["sha256"].to_pylist(), table["label_name"].to_pylist(), strict=True)
    return EvaluationImages(images=Counter(pairs), unknown=unknown)


def incomparable_reason(study: str, a: EvaluationImages, b: EvaluationImages) -> str | None:
    """Return why accuracies of a study in A and B cannot be compared, as the end of a sentence; None if they can."""
    unknown = [f"of {name}, {of.unknown[study]}" for name, of in (("A", a), ("B", b)) if study in of.unknown]
    if unknown:
        return f"it is not known whether both were tested on the same images: {'; '.join(unknown)}"
    if a.images == b.images:
        return None
    both = (a.images & b.images).total()
    return (
        f"they were tested on different images: A on {count(a.images.total())}, B on {count(b.images.total())}, "
        f"of which {count(both)} are the same with the same label"
    )


def _recorded(data: DataPaths, stage: str, item: str | None, role: str, folder: str) -> list[str | None]:
    """Return SHA-256 of pixels and labels in `folder` from a stage's provenance, None if it did not record them."""
    path = data.provenance(stage, item)
    files = _read_object(path, role) if path.exists() else {}
    return [files.get(folder + name) for name in ("test.npy", "test.parquet")]


def _read_object(path: Path, *keys: str) -> Mapping[str, Any]:
    """Read an object of a JSON file, or the one under `keys`; empty if a key is missing."""
    value = read_untrusted_json(path, may_be_link=True)
    for key in keys:
        value = value.get(key, {}) if isinstance(value, dict) else None
    if not isinstance(value, dict):
        raise InputError(f"{path}: {'.'.join(keys) or 'its content'} is no object; run `dvc repro --force`")
    return value


@dataclass(frozen=True, kw_only=True)
class KeptImages:
    """Paths of the images that one network's filter kept, out of `n_total` images."""

    paths: frozenset[str]
    n_total: int


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The results of one experiment.

    Attributes:
        name: from the command line.
        studies: study -> its runs.
        filters: network -> the images that its filter kept.
        n_images: number of test images; 1 if no run finished.
        evaluation_images: the test images.
        n_planted: number of training labels changed on purpose; None if zero or unknown.
        margin: `report.margin` of its report, in percentage points; None without one.
        confidence: `report.confidence` of its report; None without one.
        unrecorded: stages without a provenance file, whose files are not compared with it.
    """

    name: str
    studies: Mapping[str, list[Row]]
    filters: Mapping[str, KeptImages]
    n_images: int
    evaluation_images: EvaluationImages
    n_planted: int | None
    margin: float | None
    confidence: float | None
    unrecorded: Sequence[str] = ()


def is_margin(points: object) -> bool:
    """Return whether a value is a valid margin of top-1, in percentage points."""
    return isinstance(points, int | float) and 0 < points < 100


def read_experiment(name: str) -> Experiment:
    """Read a folder with data/, a data folder, or a git revision; a folder takes precedence over a revision.

    Raises:
        InputError: there is neither, it has no results, they are not in DVC's cache, or a file is damaged or is not
            what its stage wrote.
    """
    folder = Path(name)
    if folder.is_dir():
        return _read(name, folder / "data" if (folder / "data").is_dir() else folder)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "data"
        fetch(name, _PATHS, _is_wanted, root, is_optional=_is_optional)
        try:
            return _read(name, root)
        except DataError as error:
            # The command that it names writes the file where the revision is checked out.
            raise DataError(f"{str(error).replace(temporary, name)} in a checkout of {name}") from None
        except InputError as error:
            # Name the revision, not the temporary folder.
            raise InputError(str(error).replace(temporary, name)) from None


def _is_wanted(path: Path) -> bool:
    """Return whether `_read` reads the file."""
    is_of_report = path.parent.name == "report" or path.name.endswith("provenance.json")
    is_wanted_name = path.name in ("kept.csv", "metrics.json") or path.name.endswith(".correct.npy")
    return is_wanted_name or _is_study(path) or is_of_report or _is_prepared(path)


def _is_optional(path: Path) -> bool:
    """Return whether a revision may lack the file: prepared images, and the record of a filter."""
    return _is_prepared(path) or (path.name == "provenance.json" and "filter" in path.parts)


def _is_prepared(path: Path) -> bool:
    return path.parent.name == "prepare"


def _is_study(path: Path) -> bool:
    """Return whether a path is `train/<study>.parquet`. A filter's points.parquet is a folder deeper."""
    return path.parent.name == "train" and path.suffix == ".parquet" and not path.stem.endswith(".history")


def _read(name: str, root: Path) -> Experiment:
    data = DataPaths(root=root)
    studies = sorted(path.stem for path in (root / "train").glob("*.parquet") if _is_study(path))
    # Those of timm are a folder deeper.
    networks = sorted(str(path.parent.relative_to(root / "filter")) for path in (root / "filter").rglob("kept.csv"))
    if not studies:
        raise InputError(
            f"{name}: no study in {root / 'train'}; use a folder with data/, or a git revision whose dvc.lock has some"
        )
    unrecorded = check_recorded(data, comparison_inputs(studies, networks, data))
    return Experiment(
        name=name,
        unrecorded=unrecorded,
        studies={study: _read_study(data.runs(study)) for study in studies},
        filters={network: _read_filter(data, network) for network in networks},
        n_images=_count_images(data, studies),
        evaluation_images=read_evaluation_images(data, studies),
        n_planted=count_planted(data) if data.prepare_metrics.exists() else None,
        margin=_read_report_parameter(data.provenance("report"), "margin", is_margin, "above 0 and below 100"),
        confidence=_read_report_parameter(
            data.provenance("report"), "confidence", _is_confidence, "above 0.5 and below 1"
        ),
    )


def _count_images(data: DataPaths, studies: Sequence[str]) -> int:
    widths = [open_array(data.correct(study), dtype=np.bool_, ndim=2).shape[1] for study in studies]
    return max(1, *map(int, widths))


def _read_study(path: Path) -> list[Row]:
    table = read_parquet(path)
    missing = [name for name in COMPARED_COLUMNS if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: has no column {missing[0]}; another version wrote it; run `dvc repro --force`")
    rows: list[Row] = table.to_pylist()
    check_run_values(rows, path)
    return rows


def _read_filter(data: DataPaths, network: str) -> KeptImages:
    kept, metrics = data.kept(network), data.filter_metrics(network)
    table = restore_cells(read_csv(kept, _KEPT_COLUMNS, optional=[PLANTED_COLUMN]))
    paths = frozenset(table["path"].to_pylist())
    n_total = _read_object(metrics).get("n_total")
    if not isinstance(n_total, int) or not len(paths) <= n_total:
        raise InputError(f"{metrics}: n_total {n_total} for {len(paths)} images in {kept}; run `dvc repro --force`")
    return KeptImages(paths=paths, n_total=n_total)


def _is_confidence(value: object) -> bool:
    return isinstance(value, float) and 0.5 < value < 1


def _read_report_parameter(path: Path, key: str, is_valid: Callable[[object], bool], valid: str) -> float | None:
    """Read a parameter of the report's provenance, since params.yaml may have been edited after seeing the results."""
    if not path.exists():
        return None
    value: float | None = _read_object(path, "parameters", "report").get(key)
    if value is not None and not is_valid(value):
        raise InputError(f"{path}: report.{key} {value} is not a number {valid}; run `dvc repro --force`")
    return value
