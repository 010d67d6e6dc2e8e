"""Made-up prepared images of which some labels were changed on purpose."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from pipeline.artifacts.json_file import read_json, write_json
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.paths import DataPaths


def say_planted(data: DataPaths, true_labels: Mapping[int, int]) -> None:
    """Make data/prepare say that these rows had other labels, as `prepare` would have written it.

    Args:
        true_labels: row -> its true label; the others have the true one.
    """
    manifest = read_parquet(data.manifest("train"))
    labels = manifest["label"].to_numpy().astype(np.int64)
    truth = labels.copy()
    truth[list(true_labels)] = list(true_labels.values())
    write_parquet(data.manifest("train"), manifest.append_column("true_label", pa.array(truth)))
    metrics = read_json(data.prepare_metrics)
    write_json(data.prepare_metrics, {**metrics, "n_planted": int((truth != labels).sum())})
