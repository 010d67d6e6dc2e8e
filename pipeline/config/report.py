"""`report`: what the page shows."""

from typing import Annotated

from pydantic import Field

from pipeline.config.base import Positive, Section


class ReportConfig(Section):
    """The `report` section.

    Attributes:
        confidence: of the intervals.
        gallery_images: dropped images shown per network, the most suspect first.
    """

    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    gallery_images: Positive = 60
