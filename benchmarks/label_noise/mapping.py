"""The joint map of a case, as the stage `reduce` makes it."""

from pathlib import Path

import numpy as np

from pipeline.artifacts.arrays import write_array
from pipeline.config.reduce import ReduceConfig
from pipeline.reduction.checks import check_features
from pipeline.reduction.pca import fit_principal_axes
from pipeline.reduction.tsne import tsne_map


def write_map(features_file: Path, map_file: Path, config: ReduceConfig) -> None:
    """Principal components and t-SNE of float32 (N, D), written as float32 (N, 2)."""
    features = np.load(features_file)
    check_features(features, str(features_file))
    components = config.pca.n_components
    points = fit_principal_axes(features, components).project(features) if components else features
    mapped = tsne_map(points, config.tsne.model_dump(), n_neighbours=config.neighbors, report=lambda *_: None)
    write_array(map_file, mapped.coordinates)
