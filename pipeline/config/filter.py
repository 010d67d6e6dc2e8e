"""The `filter` section: scorers and thresholds that decide which images are dropped."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import Positive, PositiveFloat, Section, Seed, UnitFraction


class _Clustering(Section):
    """Scorers on `space`: `embedding` (t-SNE) or `components` (PCA)."""

    space: Literal["embedding", "components"] = "embedding"


class DbscanScorer(_Clustering):
    """DBSCAN per class: the smallest radius at which the image is not noise.

    `min_samples` is DBSCAN's parameter; an image counts itself.
    """

    name: Literal["dbscan"]
    min_samples: Positive = 5


class HdbscanScorer(_Clustering):
    """1 - membership strength in HDBSCAN's clusters per class; above 1 for noise.

    `min_cluster_size` should exceed the number of wrong labels that one class has in another: that many form a
    cluster.
    """

    name: Literal["hdbscan"]
    min_cluster_size: Annotated[Positive, Field(ge=2)] = 20
    min_samples: Positive = 5


class KnnAgreementScorer(Section):
    """Share of the `k` nearest neighbors that have another label; `k` is at most `reduce.n_neighbors`."""

    name: Literal["knn_agreement"]
    k: Positive = 25


class KnnDistanceScorer(Section):
    """Distance to the `k`-th nearest neighbor of the same class."""

    name: Literal["knn_distance"]
    k: Positive = 10


class CentroidScorer(Section):
    """Distance to the mean of the class."""

    name: Literal["centroid"]


class SelfConfidenceScorer(Section):
    """1 - predicted probability of the label."""

    name: Literal["self_confidence"]


class SmoothedConfidenceScorer(Section):
    """1 - probability of the label, averaged over the image and its `k` nearest neighbors; `k` is at most
    `reduce.n_neighbors`.
    """

    name: Literal["smoothed_confidence"]
    k: Positive = 25


class MeanConfidenceScorer(Section):
    """1 - mean probability of the label over the second half of training, or its last two epochs if they are more.

    It is in sample, with `finetune.folds` too: the mean over the networks that trained on the image.
    """

    name: Literal["mean_confidence"]


class LabelOddsScorer(Section):
    """Ratio of the probability of the strongest other class to that of the label.

    The label's probability is the mean of the trained network's prediction and of the predictions during training.
    With `finetune.folds` all probabilities are those of the network that did not train on the image, and no record of
    the training is needed.
    """

    name: Literal["label_odds"]


class AumScorer(Section):
    """Ratio of the strongest other class to the label, averaged over training: exp(-AUM).

    AUM, the area under the margin, is the mean over all epochs of the label's logit minus the largest other one
    (Pleiss et al. 2020).
    """

    name: Literal["aum"]


class ForgettingScorer(Section):
    """Number of epochs in which the network forgot the label (Toneva et al. 2019); infinite if it never learned it."""

    name: Literal["forgetting"]


class MarginScorer(Section):
    """(1 + q - p) / 2, 0 to 1, with p the probability of the label and q that of the strongest other class.

    cleanlab has the reverse as normalized margin.
    """

    name: Literal["margin"]


class ConfidentLearningScorer(Section):
    """cleanlab's `find_label_issues`: above 1/2 for the images that it names, ordered by 1 - p within both halves."""

    name: Literal["confident_learning"]


class El2nScorer(Section):
    """EL2N: the L2 norm of the error vector, probabilities minus the one-hot label, over its maximum √2; 0 to 1."""

    name: Literal["el2n"]


class GridScorer(Section):
    """Stratified sampling over the cells of a grid on the embedding. `cells`: number along each side."""

    name: Literal["grid"]
    cells: Positive = 20
    seed: Seed = 0


class RandomScorer(Section):
    """Uniform random scores."""

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
    | AumScorer
    | ForgettingScorer
    | MarginScorer
    | ConfidentLearningScorer
    | El2nScorer
    | GridScorer
    | RandomScorer
)
SingleScorer = Annotated[_Single, Field(discriminator="name")]


class EnsembleScorer(Section):
    """Mean rank over `scorers`.

    A scorer that uses the embedding counts once, with the mean of its ranks over all embeddings, those of
    `reduce.extra_embeddings` included.
    """

    name: Literal["ensemble"]
    scorers: Annotated[tuple[SingleScorer, ...], Field(min_length=1)]


class CcsScorer(Section):
    """Coverage-centric coreset selection (Zheng et al. 2023), for keeping few images: of every difficulty equally many.

    The share `beta` of the most suspect images by `scorer` is dropped first. The others are divided into `bins` strata
    of its values, and random images of each are kept, equally many of each as far as they have them. `drop_fraction` is
    the share that is not kept. The paper orders images by `aum`, which needs a record of training; the default `margin`
    does not.
    """

    name: Literal["ccs"]
    scorer: SingleScorer = MarginScorer(name="margin")
    beta: UnitFraction = 0.1
    bins: Positive = 50
    seed: Seed = 0


ScorerConfig = Annotated[_Single | EnsembleScorer | CcsScorer, Field(discriminator="name")]


def scorer_names(scorer: _Single | EnsembleScorer | CcsScorer) -> list[str]:
    """Return the name of a scorer; of an ensemble and of `ccs` those of the scorers that they combine."""
    if isinstance(scorer, CcsScorer):
        return [scorer.scorer.name]
    return [member.name for member in scorer.scorers] if isinstance(scorer, EnsembleScorer) else [scorer.name]


NEEDS_TRAINING = ("aum", "forgetting", "label_odds", "mean_confidence")
"""Scorers that need what fine-tuning records of each label, some only without folds, see `needs_training`."""
_ONLY_WITHOUT_FOLDS = ("label_odds",)


def needs_training(scorer: str, *, folds: int) -> bool:
    """Return whether a scorer needs what fine-tuning records of each label.

    Args:
        folds: `finetune.folds`; with more than one, `label_odds` reads out-of-fold probabilities alone.
    """
    return scorer in NEEDS_TRAINING and not (folds > 1 and scorer in _ONLY_WITHOUT_FOLDS)


class TunedEps(Section):
    """The radius of the scorer dbscan with the highest F1 on images that the search plants in other classes.

    The search assumes that `planted_fraction` of the labels is wrong: a larger one gives a smaller radius, which drops
    more. `tuned` alone stands for 0.05.
    """

    name: Literal["tuned"]
    planted_fraction: Annotated[float, Field(gt=0, lt=0.5)] = 0.05


_FractionOrEstimated = UnitFraction | Literal["estimated"]


class FilterConfig(Section):
    """The `filter` section: which images are removed.

    Set exactly one of `drop_fraction`, `eps` and `threshold`.

    Attributes:
        scorer: computes a suspicion score for each image.
        drop_fraction: fraction of all images to drop, 0 to less than 1, or `estimated`: the share of wrong labels that
            the network's probabilities suggest, best out of fold (`finetune.folds`). One for all networks, or
            network -> fraction.
        allocation: how `drop_fraction` is divided among the classes. `overall`: the highest scores, regardless of
            class; `per_class`: the same fraction of each class; `balanced`: the remaining class counts are as equal
            as the class sizes allow.
        eps: radius of the scorer dbscan, the same for all classes: a number, in units of the embedding or of the
            principal components; `knee` of the k-distance curve; or `tuned`, the radius that best detects images
            planted in other classes, which assumes a noise of 5 %; `{name: tuned, planted_fraction: 0.1}` assumes 10 %.
        threshold: for the other scorers: drop images with a higher score, in the scorer's unit.
        near_duplicates: what is done about images that are nearly equal, by the features and by small gray pictures.
            `report` lists the pairs among the training images, and with the test images. `drop` also drops the
            training images that nearly equal a test image, and of pairs of training images the more suspect one. null:
            they are not searched for. `filter-features` and `batchsieve.sieve` do not search.
        allow_empty: whether a class may lose all its images.
    """

    scorer: ScorerConfig = LabelOddsScorer(name="label_odds")
    drop_fraction: _FractionOrEstimated | dict[str, _FractionOrEstimated] | None = None
    allocation: Literal["overall", "per_class", "balanced"] = "overall"
    eps: PositiveFloat | Literal["knee", "tuned"] | TunedEps | None = None
    threshold: PositiveFloat | None = None
    near_duplicates: Literal["report", "drop"] | None = None
    allow_empty: bool = False

    @property
    def planted_fraction(self) -> float | None:
        """Fraction of images that a tuned `eps` plants in other classes; None for other rules."""
        eps = TunedEps(name="tuned") if self.eps == "tuned" else self.eps
        return eps.planted_fraction if isinstance(eps, TunedEps) else None

    def drop_fraction_for(self, network: str) -> float | None:
        """Return `drop_fraction` of a network; None if it is estimated or there is another rule."""
        fraction = self._drop_fraction(network)
        return None if fraction == "estimated" else fraction

    def estimates_drop_fraction(self, network: str) -> bool:
        """Return whether the fraction of a network's images to drop is estimated."""
        return self._drop_fraction(network) == "estimated"

    def _drop_fraction(self, network: str) -> _FractionOrEstimated | None:
        return self.drop_fraction[network] if isinstance(self.drop_fraction, dict) else self.drop_fraction

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        rules = [key for key in ("drop_fraction", "eps", "threshold") if getattr(self, key) is not None]
        if len(rules) != 1:
            raise ValueError(
                "give exactly one of `drop_fraction` (e.g. 0.0512), `eps` (a radius for dbscan) and `threshold` (for "
                f"other scorers); there are {rules or 'none'}"
            )
        wrong = {"eps": self.scorer.name != "dbscan", "threshold": self.scorer.name == "dbscan"}
        if wrong.get(rules[0]):
            other = {"eps": "threshold", "threshold": "eps"}[rules[0]]
            raise ValueError(f"{rules[0]} is not a rule of {self.scorer.name}; give `{other}` or `drop_fraction`")
        if self.allocation != "overall" and self.drop_fraction is None:
            raise ValueError(f"allocation: {self.allocation} divides a drop_fraction; give one, or remove allocation")
        return self
