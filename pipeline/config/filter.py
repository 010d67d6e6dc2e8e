"""`filter`: which images to drop."""

from typing import Literal, Self

from pydantic import model_validator

from pipeline.config.base import PositiveFloat, Section, Share
from pipeline.config.scorers import LabelOddsScorer, Scorer


class FilterConfig(Section):
    """The `filter` section: how suspect each image is, and how many go.

    Exactly one of `drop_share`, `eps` and `threshold` is given.

    Attributes:
        scorer: says how suspect each image is.
        drop_share: share of all images to drop; one for all networks, or network -> share.
        quota: how `drop_share` is divided. `overall`: the most suspect go, whatever their class;
            `per_class`: each class loses that share; `balanced`: what is left is as even over the
            classes as their sizes allow.
        eps: radius of the scorer dbscan, the same for all classes: a number, in units of the map or of
            the principal components; `knee` of the k-distance curve; or `tuned`, the radius that best
            finds images planted in other classes.
        threshold: for the other scorers: drop what exceeds it, in the scorer's own unit.
        allow_empty: whether a class may lose all its images.
    """

    scorer: Scorer = LabelOddsScorer(name="label_odds")
    drop_share: Share | dict[str, Share] | None = None
    quota: Literal["overall", "per_class", "balanced"] = "overall"
    eps: PositiveFloat | Literal["knee", "tuned"] | None = None
    threshold: PositiveFloat | None = None
    allow_empty: bool = False

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        given = [key for key in ("drop_share", "eps", "threshold") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(
                "give exactly one of `drop_share` (e.g. 0.0512), `eps` (a radius for dbscan) and `threshold` (for "
                f"other scorers); there are {given or 'none'}"
            )
        wrong = {"eps": self.scorer.name != "dbscan", "threshold": self.scorer.name == "dbscan"}
        if wrong.get(given[0]):
            other = {"eps": "threshold", "threshold": "eps"}[given[0]]
            raise ValueError(f"{given[0]} is not a rule of {self.scorer.name}; give `{other}` or `drop_share`")
        if self.quota != "overall" and self.drop_share is None:
            raise ValueError(f"quota: {self.quota} divides a drop_share; give one, or remove quota")
        return self
