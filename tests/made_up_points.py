"""Made-up artefacts of `prepare` and `filter`, as the visualizer reads them."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from made_up import sha256_of
from numpy.typing import NDArray

from pipeline.artifacts.arrays import write_array
from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.tables import write_parquet
from pipeline.paths import DataPaths

NETWORK = "resnet18"

# As hostile as folder names can be: markup, an address to fetch, a formula, an entry that legends hide.
CLASS_NAMES = ("<script>alert(1)</script>", '</script><img src="http://evil.example/x.png">', "=1+1", "_ship")


def write_points(
    data: DataPaths, images: NDArray[np.uint8], *, labels: NDArray[np.int64], n_going: int = 6,
    class_names: Sequence[str] = CLASS_NAMES, n_neighbours: int = 3,
) -> None:  # fmt: skip
    """All that `viz.data.Source` reads of these (N, H, W, 3) images; the last `n_going` of them go.

    Classes are blobs on the map. Scores ascend with the row; the network sees the label in all but what goes.
    """
    n, rng = len(images), np.random.default_rng(0)
    going = np.arange(n) >= n - n_going
    angles = 2 * np.pi * labels / len(class_names)
    xy = 10 * np.column_stack([np.cos(angles), np.sin(angles)]) + rng.normal(size=(n, 2))
    paths = [f"{class_names[label]}/{row}.png" for row, label in enumerate(labels)]
    identity = {
        "sample_id": np.arange(n),
        "path": paths,
        "label": labels,
        "label_name": [class_names[label] for label in labels],
        "sha256": [sha256_of(path) for path in paths],
    }
    write_array(data.images("train"), images)
    write_parquet(data.manifest("train"), pa.table(identity))
    write_json(data.prepare_metrics, {"class_names": list(class_names), "image_size": images.shape[1]})
    # An odd number of halves of a millionth: what rounds by other rules differs.
    scores = np.concatenate([np.linspace(0.0078125, 0.46875, n - n_going), np.linspace(0.53125, 1, n_going)])
    filtered = {
        "predicted": np.where(going, (labels + 1) % len(class_names), labels),
        "confidence": np.full(n, 0.9, dtype=np.float32),
        "x": xy[:, 0].astype(np.float32),
        "y": xy[:, 1].astype(np.float32),
        "cluster": np.where(going, -1, np.arange(n) % 2).astype(np.int32),
        "is_noise": going,
        "eps": np.full(n, 1.5),
        "score": scores,
        "reason": [f'3 of 5 neighbours are "{class_names[1]}", row {row}' for row in range(n)],
        "neighbours": ((np.arange(n)[:, None] + np.arange(1, n_neighbours + 1)) % n).tolist(),
        "keep": ~going,
    }
    write_parquet(data.points(NETWORK), pa.table({**identity, **filtered}))
    scorer = {"name": "dbscan", "space": "map", "min_samples": 5}
    write_json(data.filter_metrics(NETWORK), {"eps": 1.5, "settings": {"scorer": scorer}})
