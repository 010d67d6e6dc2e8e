"""The `reduce` section: PCA and one joint t-SNE of all classes."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.config.base import NonNegative, NonNegativeFloat, Positive, PositiveFloat, Section, Seed, UnitFraction

AUTO_ABOVE = 200_000
"""Number of points above which `auto` uses landmarks."""

AUTO_COUNT = 100_000
"""Number of landmarks of `auto`."""


class PcaConfig(Section):
    """`n_components`: dimensions kept before t-SNE; null applies t-SNE to the features."""

    n_components: Annotated[Positive, Field(ge=2)] | None = 50


class TsneConfig(Section):
    """Every parameter of `openTSNE.TSNE`, with its name and default.

    Only `n_jobs` and `random_state` have other defaults: both change the bits of the embedding, so neither may depend
    on the machine. Repeats with the same number of jobs are equal. A replicate adds its number to `random_state`.
    """

    perplexity: Annotated[float, Field(ge=1)] = 30.0
    learning_rate: PositiveFloat | Literal["auto"] = "auto"
    early_exaggeration_iter: NonNegative = 250
    early_exaggeration: PositiveFloat | Literal["auto"] = "auto"
    n_iter: NonNegative = 500
    exaggeration: PositiveFloat | None = None
    dof: PositiveFloat = 1.0
    theta: NonNegativeFloat = 0.5
    n_interpolation_points: Positive = 3
    min_num_intervals: Positive = 50
    ints_in_interval: PositiveFloat = 1.0
    initialization: Literal["pca", "spectral", "random"] = "pca"
    metric: str = "euclidean"
    metric_params: dict[str, float] | None = None
    initial_momentum: UnitFraction = 0.8
    final_momentum: UnitFraction = 0.8
    max_grad_norm: PositiveFloat | None = None
    max_step_norm: PositiveFloat | None = 5.0
    n_jobs: Positive = 2
    neighbors: Literal["auto", "exact", "annoy", "pynndescent", "hnsw"] = "auto"
    knn_kwargs: dict[str, bool | int | float | str] | None = None
    negative_gradient_method: Literal["auto", "bh", "fft"] = "auto"
    random_state: Seed = 0


class ReduceConfig(Section):
    """The `reduce` section.

    Attributes:
        n_neighbors: nearest neighbors in PCA space, recorded for every training image.
        landmarks: training images to which t-SNE is fitted, the same fraction of every class; the others are embedded
            relative to them. `auto`: 100,000 if there are more than 200,000 images, otherwise all; `none`: all.
        extra_embeddings: further embeddings of the training images, each the `tsne` section updated with these keys,
            to measure stability and for ensembles.
    """

    pca: PcaConfig = PcaConfig()
    tsne: TsneConfig = TsneConfig()
    n_neighbors: Positive = 25
    landmarks: Literal["auto", "none"] | Annotated[Positive, Field(ge=4)] = "auto"
    extra_embeddings: tuple[dict[str, Any], ...] = ()

    def embedding_settings(self, number: int) -> TsneConfig:
        """Return the settings of the main embedding, number 0, or of `extra_embeddings[number - 1]`."""
        if number == 0:
            return self.tsne
        merged = {**self.tsne.model_dump(mode="json"), **self.extra_embeddings[number - 1]}
        return TsneConfig.model_validate_json(json.dumps(merged))


def landmark_count(landmarks: str | int, n: int) -> int | None:
    """Return the number of landmarks among `n` points for the setting `auto`, `none` or a number; None for none."""
    if landmarks == "none" or (landmarks == "auto" and n <= AUTO_ABOVE):
        return None
    return AUTO_COUNT if landmarks == "auto" else int(landmarks)
