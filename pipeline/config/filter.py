"""`filter`: which images to drop."""

from typing import Literal, Self

from pydantic import model_validator

from pipeline.config.base import Positive, PositiveFloat, Section, Share


class FilterConfig(Section):
    """The `filter` section: DBSCAN on each class's part of the joint map.

    Exactly one of `eps` and `drop_share` is given.

    Attributes:
        min_samples: DBSCAN's; an image counts itself.
        eps: radius in map units, the same for all classes.
        drop_share: share of all images to drop; the eps that reaches it is computed.
        allow_empty: whether a class may lose all its images.
    """

    method: Literal["dbscan"] = "dbscan"
    min_samples: Positive = 5
    eps: PositiveFloat | None = None
    drop_share: Share | None = None
    allow_empty: bool = False

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if (self.eps is None) == (self.drop_share is None):
            raise ValueError("give exactly one of `eps` (a radius on the map) and `drop_share` (e.g. 0.0512)")
        return self
