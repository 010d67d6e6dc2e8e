"""Read and check the metrics of stages, which are JSON files, and the training dynamics of extractors.

Only the keys that other stages read are checked. The dynamics are in data/finetune/<network>.dynamics.parquet, with a
row for each training image.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.artifacts.untrusted import read_untrusted_json
from pipeline.errors import DataError, InputError

_Share = Annotated[float, Field(ge=0, le=1)]
_DYNAMICS_COLUMNS = {"sample_id": pa.int64(), "margin": pa.float32(), "forgetting": pa.float32()}


class _Metrics(BaseModel):
    # The files have more keys than other stages read.
    model_config = ConfigDict(strict=True, extra="ignore")


class OptionalKeys(_Metrics):
    """Of `prepare`: keys that are null or missing in most projects."""

    files_in: str | None = None
    n_planted: int | None = None


class ClassKeys(OptionalKeys):
    """Of `prepare`: what the filter reads."""

    class_names: list[str] = Field(min_length=1)


class PrepareKeys(ClassKeys):
    """Of `prepare`: what networks and reports need to know of the data set."""

    image_size: Annotated[int, Field(ge=1)]
    mean: list[float] = Field(min_length=3, max_length=3)
    std: list[float] = Field(min_length=3, max_length=3)


class AccuracyKeys(_Metrics):
    """Of `finetune`: what `iterate` compares."""

    top1: _Share


class FinetuneKeys(AccuracyKeys):
    """Of `finetune`: accuracies on the test images."""

    balanced_accuracy: _Share


class _Variance(_Metrics):
    explained_variance_ratio: float


class _LabelAccuracy(_Metrics):
    components: float
    map: float


class ReduceKeys(_Metrics):
    """Of `reduce`: quality of the embedding; `pca` is null if t-SNE was applied to the features."""

    pca: _Variance | None
    kl_divergence: float
    neighbour_preservation: float
    knn_label_accuracy: _LabelAccuracy


class _Tsne(_Metrics):
    requested: dict[str, Any]


class _Map(_Metrics):
    tsne: _Tsne


class MapKeys(_Metrics):
    """Of `reduce`: the settings of each embedding; the first is that of `reduce.tsne`."""

    maps: list[_Map] = Field(min_length=1)


class _Scorer(_Metrics):
    name: str


class _FilterSettings(_Metrics):
    scorer: _Scorer
    eps: Any


class _Curve(_Metrics):
    eps: list[float | None]
    share: list[float | None]


class CurveKeys(_Metrics):
    """Of `filter`: its threshold, and the share that it drops at others."""

    eps: float | None
    curve: _Curve


class FilterKeys(CurveKeys):
    """Of `filter`: its settings, threshold, and the share that it drops."""

    settings: _FilterSettings
    requested_share: float | None
    share_note: str | None
    stability_over_maps: list[float]


def read_metrics(
    path: Path,
    kind: type[_Metrics],
    *,
    translate: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
) -> dict[str, Any]:
    """Read a stage's metrics and check the keys of `kind`.

    Args:
        translate: returns files of earlier versions with the current keys.

    Returns:
        The whole file, translated.

    Raises:
        InputError: the file is missing or damaged, has a key twice or a number that is not finite, or lacks a key
            or has one of another type.
    """
    if not path.exists():
        raise InputError(f"{path}: missing; run `dvc repro`")
    metrics = read_untrusted_json(path, may_be_link=True)
    if not isinstance(metrics, dict):
        raise DataError(f"{path}: holds no metrics; delete it and run `dvc repro`")
    metrics = translate(metrics)
    try:
        kind.model_validate(metrics)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"{path}: {where}: {first['msg']}; delete it and run `dvc repro`") from None
    return metrics


def write_dynamics(path: Path, margin: NDArray[np.float32], forgetting: NDArray[np.float32]) -> None:
    """Write the averaged margins and the forgetting events, (N,) each, NaN where not recorded."""
    columns = {"sample_id": np.arange(len(margin)), "margin": margin, "forgetting": forgetting}
    write_parquet(path, pa.table(columns, schema=pa.schema(_DYNAMICS_COLUMNS)))


def read_dynamics(path: Path, n: int) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Read margins and forgetting events, (n,) each.

    Returns:
        None if nothing was recorded: by an earlier version, which wrote no such file, or of a head that was fitted.

    Raises:
        InputError: the file is damaged, or of other images.
    """
    if not path.exists():
        return None
    table = read_parquet(path, _DYNAMICS_COLUMNS)
    if not np.array_equal(table["sample_id"].to_numpy(), np.arange(n)):
        raise InputError(
            f"{path}: its {len(table)} rows are not those of the {n} training images; delete it and run `dvc repro`"
        )
    margin, forgetting = table["margin"].to_numpy(), table["forgetting"].to_numpy()
    if np.isinf(margin).any() or np.nanmin(forgetting, initial=0) < 0:
        raise InputError(f"{path}: has values that no training gives; delete it and run `dvc repro`")
    return None if np.isnan(margin).all() else (margin, forgetting)
