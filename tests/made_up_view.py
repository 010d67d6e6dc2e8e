"""What tests of the visualizer share: parts of the page as text, events, and points without files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
from made_up import NETWORK
from made_up_report import write_evidence, write_network, write_prepared
from numpy.typing import NDArray

from pipeline.artifacts.overrides import Override, write_overrides
from pipeline.paths import DataPaths
from pipeline.selection.budgets import score
from viz.data import Points, Source
from viz.remembered import Remembered


def view_data(folder: Path) -> DataPaths:
    """The finished artefacts of `NETWORK` in `folder`, with what all judges need."""
    data = DataPaths(root=folder / "data")
    write_prepared(data)
    write_network(data, NETWORK)
    write_evidence(data, NETWORK)
    return data


def text_of(component: Any) -> str:
    """All that a part of the page holds, as the browser gets it."""
    parts = component if isinstance(component, list) else [component]
    return json.dumps([part.to_plotly_json() for part in parts], default=lambda inner: inner.to_plotly_json())


def event_at(row: Any) -> dict[str, Any]:
    """Plotly's, of hovering over or clicking on the point of a row."""
    return {"points": [{"customdata": row, "bbox": {"x0": 1, "x1": 2, "y0": 3, "y1": 4}}]}


def decide(data: DataPaths, points: Points, decisions: Mapping[int, str]) -> None:
    """data/overrides.csv with a decision for each of some rows."""
    write_overrides(
        data.overrides,
        [
            Override(
                path=points.paths[row].as_py(),
                sha256=points.sha256[row].as_py(),
                decision=cast("Any", decision),
                note="",
                timestamp="2026-01-01T00:00:00+00:00",
                line=0,
            )
            for row, decision in decisions.items()
        ],
    )


def points_of(
    coordinates: NDArray[np.float64],
    labels: NDArray[np.int64],
    *,
    values: NDArray[np.float64] | None = None,
    thresholds: NDArray[np.float64] | None = None,
    n_classes: int | None = None,
) -> Points:
    """Of the filter that drops what has `values` (N,) above `thresholds` (N,); the network sees every label."""
    n = len(labels)
    values = np.zeros(n) if values is None else values
    thresholds = np.ones(n) if thresholds is None else thresholds
    names = pa.chunked_array([[f"train/{row}.png" for row in range(n)]])
    classes = int(labels.max()) + 1 if n_classes is None else n_classes
    noise = values > thresholds
    return Points(
        network="made-up",
        paths=names,
        sha256=names,
        coordinates=coordinates,
        labels=labels,
        predicted=labels,
        confidence=np.ones(n),
        clusters=np.where(noise, -1, 0).astype(np.int32),
        is_noise=noise,
        thresholds=thresholds,
        scores=score(values, thresholds),
        reasons=pa.chunked_array([["none"] * n]),
        kept=~noise,
        neighbours=(np.arange(n)[:, None] + np.array([1, 2])) % n,
        scorer={"name": "dbscan", "space": "map", "min_samples": 5},
        eps=None,
        class_names=tuple(f"class {label}" for label in range(classes)),
        images=np.zeros((n, 2, 2, 3), dtype=np.uint8),
        images_stamp="images",
        stamp="stamp",
    )


def source_of(points: Points, by_hand: Mapping[int, str] | None = None) -> Source:
    """A source of these points and decisions alone, which reads no file."""
    decided = {
        row: SimpleNamespace(decision=decision, note="", timestamp="") for row, decision in (by_hand or {}).items()
    }
    return cast(
        "Source",
        SimpleNamespace(
            remembered=Remembered(2**30),
            verdicts=Remembered(2**27),
            points=lambda network: points,
            by_hand=lambda points: decided,
            decisions_stamp=lambda points: "stamp",
        ),
    )


def rows_of(parts: Sequence[Any]) -> list[int]:
    """Rows of the pictures in a grid."""
    return [int(part.to_plotly_json()["props"]["data-row"]) for part in parts]
