"""What all sections of params.yaml share: models, durations, messages."""

import difflib
import json
from collections.abc import Iterator
from typing import Annotated, Any, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

# What all sections of params.yaml share: strict types, closed keys, frozen values.


class Section(BaseModel):
    """A part of params.yaml. Unknown keys are errors and nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _float_to_int(value: Any) -> Any:
    """Let `1e4` stand where an integer is expected; YAML reads it as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int = Annotated[int, BeforeValidator(_float_to_int)]
Positive = Annotated[Int, Field(gt=0)]
NonNegative = Annotated[Int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
UnitFraction = Annotated[float, Field(ge=0, lt=1)]
MAX_SEED = 2**32 - 1
"""The largest that NumPy's legacy generators, which openTSNE uses, take."""
Seed = Annotated[Int, Field(ge=0, le=MAX_SEED)]


# Lengths of training, always with their unit in the key.


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


# Pydantic's validation errors as one line a person can act on.


def describe_validation_error(error: ValidationError, tree: Any, model: type[BaseModel]) -> str:
    """The first problem of `error` as `key.path: value is wrong: mend`.

    Args:
        error: raised when `model` was validated on `tree`.
    """
    # A misspelt key is also a missing one; its own name says more.
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    places = [_written_keys(problem["loc"], tree, missing=problem["type"] == "missing") for problem in problems]
    problem, keys = problems[0], places[0]
    where = ".".join(str(key) for key in keys) or "(top level)"
    # A value that fits no member of a union has one problem for each of them.
    same = [other for other, place in zip(problems, places, strict=True) if place == keys]
    more = f" (and {len(problems) - len(same)} more)" if len(problems) > len(same) else ""
    match problem["type"]:
        case "extra_forbidden":
            return f"{where}: unknown key{_suggestion(keys, model)}{more}"
        case "missing":
            return f"{where}: missing; add it{more}"
        case "union_tag_not_found":
            return f"{where}: says no {problem['ctx']['discriminator']}; add it{more}"
        case "value_error":
            return f"{where}: {problem['msg'].removeprefix('Value error, ')}{more}"
        case _:
            value = json.dumps(problem["input"], default=str)[:80]
            mend = ", or ".join(dict.fromkeys(other["msg"] for other in same))
            return f"{where}: {value} is not allowed: {mend}{more}"


def _written_keys(location: tuple[int | str, ...], tree: Any, *, missing: bool) -> list[int | str]:
    """The parts of a location that stand in the file; pydantic adds the names of union members."""
    keys: list[int | str] = []
    for part in location:
        written = part in tree if isinstance(tree, dict) else isinstance(tree, list) and isinstance(part, int)
        if written:
            keys.append(part)
            tree = tree[part]
    return [*keys, location[-1]] if missing else keys


def _suggestion(keys: list[int | str], model: type[BaseModel]) -> str:
    candidates = [model]
    for key in keys[:-1]:
        candidates = [
            inner
            for candidate in candidates
            for inner in _models_in(
                candidate.model_fields[str(key)].annotation if str(key) in candidate.model_fields else candidate
            )
        ]
    known = sorted({name for candidate in candidates for name in candidate.model_fields})
    if str(keys[-1]) in known:
        return "; it does not belong to the variant that this section names"
    close = difflib.get_close_matches(str(keys[-1]), known, n=1)
    return f"; did you mean `{close[0]}`?" if close else f"; known here: {', '.join(known)}"


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """All section models that a type annotation speaks of, in unions and containers too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
