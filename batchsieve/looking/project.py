"""The result of `look` as a folder that the visualizer opens: the pipeline's artifacts of one network."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from batchsieve.looking.result import Look
from batchsieve.looking.sources import thumbnail_pixels
from pipeline.artifacts.overrides import locate_overrides, read_overrides
from pipeline.config.filter import FilterConfig
from pipeline.filtering.apply import FilterContext, sieve
from pipeline.filtering.tables import filter_metrics, points_table
from pipeline.filtering.visualizer_project import (
    PICTURE_SIDE,
    VisualizerProject,
    check_project_folder,
    data_paths,
    project_parameters,
    write_project,
)
from pipeline.scoring.base import ScorerInputs

# Of the scorers that need no record of a training, the one whose order is closest to `label_odds`.
_FILTER = {"scorer": {"name": "margin"}, "drop_fraction": "estimated", "allow_empty": True}


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
    filtered = sieve(inputs, config, context, fix="give more images")
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
