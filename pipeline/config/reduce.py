"""`reduce`: PCA and one joint t-SNE of all classes."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import NonNegative, NonNegativeFloat, Positive, PositiveFloat, Section, Seed, Share


class PcaConfig(Section):
    """`n_components`: dimensions kept before t-SNE; null feeds the features to it as they are."""

    n_components: Annotated[Positive, Field(ge=2)] | None = 50


class TsneConfig(Section):
    """Every parameter of `openTSNE.TSNE`, by its own name and with its own default.

    Only `n_jobs` and `random_state` differ: both decide the map's bits, so neither is left to the
    machine. The map of 1 job is not that of 2, but repeats with the same number are equal. The number
    of a replicate is added to `random_state`.
    """

    perplexity: PositiveFloat = 30.0
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
    initial_momentum: Share = 0.8
    final_momentum: Share = 0.8
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
        neighbors: nearest neighbours in feature space recorded for every image.
    """

    pca: PcaConfig = PcaConfig()
    tsne: TsneConfig = TsneConfig()
    neighbors: Positive = 10

    @model_validator(mode="after")
    def _neighbours_within_reach(self) -> Self:
        reach = int(3 * self.tsne.perplexity)
        if self.neighbors > reach:
            raise ValueError(
                f"neighbors: {self.neighbors} is more than the {reach} (3 x perplexity) that t-SNE searches"
            )
        return self
