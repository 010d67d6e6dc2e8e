"""`open_results`: what `dvc repro` wrote in a project, for notebooks and scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from batchsieve.study_results import StudyResults, read_study
from pipeline.arms import arm_mask
from pipeline.artifacts.metrics import CurveKeys, FinetuneKeys, ReduceKeys, read_metrics
from pipeline.artifacts.prepared import PreparedData, count_planted, load_prepared, planted_note
from pipeline.artifacts.recorded import check_with_note
from pipeline.artifacts.resources import read_costs
from pipeline.artifacts.stage_inputs import network_results
from pipeline.artifacts.tables import list_column, read_parquet
from pipeline.config.params import Params, load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths

if TYPE_CHECKING:
    import pandas as pd

_PARAMS = "params.yaml"


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkResults:
    """One network and its filter; arrays have a row for each of N training images.

    Attributes:
        name: in params.yaml.
        scorer: name of the filter's scorer.
        finetune, reduce, filter: the metrics of these stages, as in their files.
        points: the filter's table, points.parquet.
        coordinates: (N, 2) float32, the embedding.
        test_coordinates: (N_test, 2) float32, of the test images.
        labels, predicted: (N,) int64, indices into the class names: the label, and the network's prediction.
        score: (N,) 0 to 1, higher is more suspect.
        is_noise: (N,) the filter's decision before overrides.
        keep: (N,) its decision with them.
        points_file: the file of `points`.
    """

    name: str
    scorer: str
    finetune: Mapping[str, Any]
    reduce: Mapping[str, Any]
    filter: Mapping[str, Any]
    points: pa.Table
    coordinates: NDArray[np.float32]
    test_coordinates: NDArray[np.float32]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    score: NDArray[np.float64]
    is_noise: NDArray[np.bool_]
    keep: NDArray[np.bool_]
    points_file: Path

    def __len__(self) -> int:
        """Return the number of training images."""
        return len(self.labels)

    def __repr__(self) -> str:
        return f"NetworkResults({self.name}: {len(self) - int(self.keep.sum()):,} of {len(self):,} images dropped)"

    @cached_property
    def neighbors(self) -> NDArray[np.int32]:
        """Rows (N, k) of the most similar images, most similar first.

        Raises:
            InputError: the file has no neighbors, which an archive of results may leave out.
        """
        rows: NDArray[np.int32] = list_column(self.points, "neighbours", self.points_file)
        return rows

    def dropped(self) -> NDArray[np.int64]:
        """Return the rows of the dropped images, the most suspect first."""
        rows = np.flatnonzero(~self.keep)
        return rows[np.argsort(-self.score[rows], kind="stable")]

    def random_keep(self, seed: int) -> NDArray[np.bool_]:
        """Return the keep mask (N,) of the random arm with a seed: as many images of each class as the filter keeps."""
        return arm_mask("random", self.labels, self.keep, seed=seed)

    def to_pandas(self) -> "pd.DataFrame":
        """Return `points` as a data frame, the most suspect image first."""
        frame: pd.DataFrame = self.points.to_pandas()
        return frame.iloc[np.argsort(-self.score, kind="stable")]


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """The results of a project.

    Attributes:
        params: its parameters.
        data: paths of its files.
    """

    params: Params
    data: DataPaths

    def __repr__(self) -> str:
        return f"Results({self.data.root}: networks {', '.join(self.networks)}; studies {', '.join(self.studies)})"

    @property
    def networks(self) -> tuple[str, ...]:
        """Names of the networks."""
        return self.params.networks

    @property
    def studies(self) -> tuple[str, ...]:
        """Names of the studies."""
        return tuple(self.params.studies)

    @cached_property
    def prepared(self) -> PreparedData:
        """The images: `train` and `test` with `images` (N, H, W, 3), uint8, and `labels` (N,); and `class_names`.

        Raises:
            InputError: a file is missing or damaged.
        """
        return load_prepared(self.data, folder=self.params.prepare.folder)

    @cached_property
    def planted_note(self) -> str | None:
        """The number of training labels that were changed on purpose, as a sentence; None if none was.

        Raises:
            InputError: a file is missing or damaged.
        """
        n_planted = count_planted(self.data)
        return None if n_planted is None else planted_note(n_planted)

    @cached_property
    def costs(self) -> Mapping[str, Mapping[str, Any]]:
        """Stage -> what its last run took: `wall_s`, and where known `images_per_s` and `peak_memory_mb`.

        Raises:
            InputError: the file is missing or damaged.
        """
        return read_costs(self.data.resources)

    def network(self, name: str | None = None) -> NetworkResults:
        """Read the results of a network; None for the first one.

        Raises:
            InputError: there is no such network, or a file is missing, damaged or not what its stage wrote.
        """
        name = _chosen(name, self.networks, "network")
        check_with_note(self.data, network_results(name, self.data))
        path = self.data.points(name)
        points, test = read_parquet(path), read_parquet(self.data.embedding(name, "test"), ["x", "y"])
        columns = {column: points[column].to_numpy() for column in ("label", "predicted", "score", "is_noise", "keep")}
        return NetworkResults(
            name=name,
            scorer=self.params.filter.scorer.name,
            finetune=read_metrics(self.data.finetune_metrics(name), FinetuneKeys),
            reduce=read_metrics(self.data.reduce_metrics(name), ReduceKeys),
            filter=read_metrics(self.data.filter_metrics(name), CurveKeys),
            points=points,
            coordinates=_coordinates(points),
            test_coordinates=_coordinates(test),
            labels=columns["label"],
            predicted=columns["predicted"],
            score=columns["score"],
            is_noise=columns["is_noise"],
            keep=columns["keep"],
            points_file=path,
        )

    def study(self, name: str | None = None) -> StudyResults:
        """Read the results of a study; None for the first one.

        Raises:
            InputError: there is no such study, or a file is missing, damaged or not what its stage wrote.
        """
        return read_study(_chosen(name, self.studies, "study"), self.params, self.data)


def open_results(folder: Path | str | None = None) -> Results:
    """Open the results of a project.

    Args:
        folder: of the project, with params.yaml and data/. None: the working directory, or the nearest folder above it
            that has a params.yaml.

    Raises:
        InputError: params.yaml is missing or wrong. Missing files of data/ raise it when they are read.

    Example:
        >>> from batchsieve import open_results
        >>> results = open_results()
        >>> results
        Results(...data: networks resnet18, resnet34; studies digits)
        >>> network = results.network("resnet18")
        >>> network
        NetworkResults(resnet18: 6 of 80 images dropped)
        >>> suspects = network.to_pandas().head(20)  # the most suspect first
        >>> study = results.study()
        >>> study
        StudyResults(digits: ... runs finished)
        >>> differences = study.difference_table()  # the arms, compared at each setting
    """
    root = _nearest_project() if folder is None else Path(folder)
    params = load_params(root / _PARAMS, accept_old_keys=True)
    return Results(params=params, data=DataPaths(root=root / "data"))


def _nearest_project() -> Path:
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / _PARAMS).exists()), here)


def _chosen(name: str | None, names: Sequence[str], key: str) -> str:
    if name is not None and name not in names:
        raise InputError(f"{key}: {name} is not in params.yaml; give one of {', '.join(names)}")
    return name or names[0]


def _coordinates(table: pa.Table) -> NDArray[np.float32]:
    return np.column_stack([table["x"].to_numpy(), table["y"].to_numpy()])
