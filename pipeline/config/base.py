"""Base models, durations and error messages of all sections of params.yaml."""

import difflib
import json
from collections.abc import Iterator
from typing import Annotated, Any, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator


class Section(BaseModel):
    """A section of params.yaml: strict types, unknown keys are errors, values are frozen after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _float_to_int(value: Any) -> Any:
    """Accept `1e4` as an integer; YAML reads it as a float."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(whole, int) and abs(whole) >= 2**63:
        raise ValueError("is larger than integers of 64 bits; give a smaller number")
    return whole


Int = Annotated[int, BeforeValidator(_float_to_int)]
Positive = Annotated[Int, Field(gt=0)]
NonNegative = Annotated[Int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
UnitFraction = Annotated[float, Field(ge=0, lt=1)]
KeyOfSize = Annotated[int, BeforeValidator(lambda key: int(key) if str(key).isdecimal() else key), Field(gt=0)]
"""A positive integer as a key of a mapping, which JSON writes as text."""

MAX_SEED = 2**32 - 1
"""The largest seed of NumPy's legacy generators, which openTSNE uses."""
Seed = Annotated[Int, Field(ge=0, le=MAX_SEED)]


class Duration(Section):
    """A length of training, the unit as the key: exactly one of `epochs` (may be fractional), `steps`, `examples`."""

    epochs: NonNegativeFloat | None = None
    steps: Int | None = None
    examples: Int | None = None

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        values = [value for value in (self.epochs, self.steps, self.examples) if value is not None]
        if len(values) != 1:
            raise ValueError("give exactly one of epochs, steps or examples")
        if values[0] < 0:
            raise ValueError("a duration cannot be negative")
        return self


def _check_positive(duration: Duration) -> Duration:
    if not (duration.epochs or duration.steps or duration.examples):
        raise ValueError("must be more than 0")
    return duration


Budget = Annotated[Duration, AfterValidator(_check_positive)]


def describe_validation_error(error: ValidationError, tree: Any, model: type[BaseModel]) -> str:
    """Describe the first problem of a pydantic error in one line: `key.path: value is not allowed: fix`.

    Args:
        error: raised when `tree` was validated as `model`.
    """
    # A misspelled key is also a missing one; the unknown name is the better message.
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    paths = [_written_keys(problem["loc"], tree, missing=problem["type"] == "missing") for problem in problems]
    problem, keys = problems[0], paths[0]
    where = ".".join(str(key) for key in keys) or "(top level)"
    # A value that fits no member of a union has one problem for each of them.
    same = [other for other, path in zip(problems, paths, strict=True) if path == keys]
    more = f" (and {len(problems) - len(same)} more)" if len(problems) > len(same) else ""
    match problem["type"]:
        case "extra_forbidden":
            return f"{where}: unknown key{_suggestion(keys, model)}{more}"
        case "missing":
            return f"{where}: missing; add it{more}"
        case "union_tag_not_found":
            return f"{where}: has no {problem['ctx']['discriminator']}; add it{more}"
        case "value_error":
            return f"{where}: {_shortened(problem['msg'].removeprefix('Value error, '))}{more}"
        case _:
            value = json.dumps(problem["input"], default=str)[:80]
            fix = ", or ".join(dict.fromkeys(other["msg"] for other in same))
            return f"{where}: {value} is not allowed: {fix}{more}"


def _shortened(message: str) -> str:
    """Return a message without its middle if that quotes a long list; the fix is at the end."""
    return message if len(message) <= 500 else f"{message[:250]} ... {message[-200:]}"


def _written_keys(location: tuple[int | str, ...], tree: Any, *, missing: bool) -> list[int | str]:
    """Return the parts of a location that are keys of the file; pydantic adds the names of union members."""
    keys: list[int | str] = []
    for part in location:
        # A missing item of a list is not written.
        written = part in (tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ())
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
    names = sorted({name for candidate in candidates for name in candidate.model_fields})
    if str(keys[-1]) in names:
        return "; it does not belong to the variant named in this section"
    close = difflib.get_close_matches(str(keys[-1]), names, n=1)
    return f"; did you mean `{close[0]}`?" if close else f"; allowed here: {', '.join(names)}"


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield all section models in a type annotation, including those in unions and containers."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
