"""Lengths of training, always with their unit in the key."""

from typing import Annotated, Self

from pydantic import AfterValidator, model_validator

from pipeline.config.base import Int, NonNegativeFloat, Section


class Duration(Section):
    """Exactly one of `epochs` (may be fractional), `steps` or `examples`."""

    epochs: NonNegativeFloat | None = None
    steps: Int | None = None
    examples: Int | None = None

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        given = [value for value in (self.epochs, self.steps, self.examples) if value is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of epochs, steps or examples")
        if given[0] < 0:
            raise ValueError("a duration cannot be negative")
        return self


def _more_than_nothing(duration: Duration) -> Duration:
    if not (duration.epochs or duration.steps or duration.examples):
        raise ValueError("must be more than 0")
    return duration


Budget = Annotated[Duration, AfterValidator(_more_than_nothing)]
