"""What all sections of params.yaml share: strict types, closed keys, frozen values."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """A part of params.yaml. Unknown keys are errors and nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _whole_number(value: Any) -> Any:
    """Let `1e4` stand where an integer is expected; YAML reads it as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int = Annotated[int, BeforeValidator(_whole_number)]
Positive = Annotated[Int, Field(gt=0)]
NonNegative = Annotated[Int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
LARGEST_SEED = 2**32 - 1
"""The largest that NumPy's legacy generators, which openTSNE uses, take."""
Seed = Annotated[Int, Field(ge=0, le=LARGEST_SEED)]
