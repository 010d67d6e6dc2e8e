"""Which images are dropped: scorers and thresholds."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import Positive, PositiveFloat, Section, Seed, UnitFraction

# Scorers and their options; `selection/` computes them.


class _Clustering(Section):
    """`space`: `map` (t-SNE) or `components` (PCA)."""

    space: Literal["embedding", "components"] = "embedding"


class DbscanScorer(_Clustering):
    """Release radius of DBSCAN per class. `min_samples`: DBSCAN's; an image counts itself."""

    name: Literal["dbscan"]
    min_samples: Positive = 5


class HdbscanScorer(_Clustering):
    """1 - strength of membership in HDBSCAN's clusters per class; above 1 for its noise.

    `min_cluster_size` should be more than the wrong labels that one class has in another: as many as
    that make a cluster of their own.
    """

    name: Literal["hdbscan"]
    min_cluster_size: Annotated[Positive, Field(ge=2)] = 20
    min_samples: Positive = 5


class KnnAgreementScorer(Section):
    """Share of the `k` nearest neighbours that have another label; `k` is at most `reduce.n_neighbors`."""

    name: Literal["knn_agreement"]
    k: Positive = 25


class KnnDistanceScorer(Section):
    """Distance to the `k`-th nearest of the same class."""

    name: Literal["knn_distance"]
    k: Positive = 10


class CentroidScorer(Section):
    """Distance to the mean of the class."""

    name: Literal["centroid"]


class SelfConfidenceScorer(Section):
    """1 - probability that the network gives to the label."""

    name: Literal["self_confidence"]


class SmoothedConfidenceScorer(Section):
    """1 - probability of the label, averaged over the image and its `k` nearest neighbours; `k` is at most
    `reduce.n_neighbors`.
    """

    name: Literal["smoothed_confidence"]
    k: Positive = 25


class MeanConfidenceScorer(Section):
    """1 - mean probability of the label over the second half of training, or its last two epochs if they are more."""

    name: Literal["mean_confidence"]


class LabelOddsScorer(Section):
    """How many times more probable than the label the strongest other class is; of the label's probability, the mean of
    the trained network's and of that in training.
    """

    name: Literal["label_odds"]


class MarginScorer(Section):
    """By how much the network prefers another class."""

    name: Literal["margin"]


class ConfidentLearningScorer(Section):
    """cleanlab's `find_label_issues`."""

    name: Literal["confident_learning"]


class El2nScorer(Section):
    """Length of the network's error."""

    name: Literal["el2n"]


class GridScorer(Section):
    """Stratified sampling by the cells of a grid on the map. `cells`: along each side."""

    name: Literal["grid"]
    cells: Positive = 20
    seed: Seed = 0


class RandomScorer(Section):
    """Chance."""

    name: Literal["random"]
    seed: Seed = 0


_Single = (
    DbscanScorer
    | HdbscanScorer
    | KnnAgreementScorer
    | KnnDistanceScorer
    | CentroidScorer
    | SelfConfidenceScorer
    | SmoothedConfidenceScorer
    | MeanConfidenceScorer
    | LabelOddsScorer
    | MarginScorer
    | ConfidentLearningScorer
    | El2nScorer
    | GridScorer
    | RandomScorer
)
SingleScorer = Annotated[_Single, Field(discriminator="name")]


class EnsembleScorer(Section):
    """Mean rank over `scorers`.

    A scorer that uses the embedding takes part once with each embedding of `reduce.extra_embeddings` too.
    """

    name: Literal["ensemble"]
    scorers: Annotated[tuple[SingleScorer, ...], Field(min_length=1)]


ScorerConfig = Annotated[_Single | EnsembleScorer, Field(discriminator="name")]

NEEDS_TRAINING_CONFIDENCE = ("label_odds", "mean_confidence")
"""Names of those that read what `finetune` notes of the labels while it trains a network on them."""


# `filter`: which images to drop.


class FilterConfig(Section):
    """The `filter` section: how suspect each image is, and how many go.

    Exactly one of `drop_fraction`, `eps` and `threshold` is given.

    Attributes:
        scorer: says how suspect each image is.
        drop_fraction: share of all images to drop; one for all networks, or network -> share.
        allocation: how `drop_fraction` is divided. `overall`: the most suspect go, whatever their class;
            `per_class`: each class loses that share; `balanced`: what is left is as even over the
            classes as their sizes allow.
        eps: radius of the scorer dbscan, the same for all classes: a number, in units of the map or of
            the principal components; `knee` of the k-distance curve; or `tuned`, the radius that best
            finds images planted in other classes.
        threshold: for the other scorers: drop what exceeds it, in the scorer's own unit.
        allow_empty: whether a class may lose all its images.
    """

    scorer: ScorerConfig = LabelOddsScorer(name="label_odds")
    drop_fraction: UnitFraction | dict[str, UnitFraction] | None = None
    allocation: Literal["overall", "per_class", "balanced"] = "overall"
    eps: PositiveFloat | Literal["knee", "tuned"] | None = None
    threshold: PositiveFloat | None = None
    allow_empty: bool = False

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        given = [key for key in ("drop_fraction", "eps", "threshold") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(
                "give exactly one of `drop_fraction` (e.g. 0.0512), `eps` (a radius for dbscan) and `threshold` (for "
                f"other scorers); there are {given or 'none'}"
            )
        wrong = {"eps": self.scorer.name != "dbscan", "threshold": self.scorer.name == "dbscan"}
        if wrong.get(given[0]):
            other = {"eps": "threshold", "threshold": "eps"}[given[0]]
            raise ValueError(f"{given[0]} is not a rule of {self.scorer.name}; give `{other}` or `drop_fraction`")
        if self.allocation != "overall" and self.drop_fraction is None:
            raise ValueError(f"allocation: {self.allocation} divides a drop_fraction; give one, or remove allocation")
        return self
