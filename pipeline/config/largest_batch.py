"""`largest` among the batch sizes of a study: the train stage finds the number, and all else reads it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pipeline.artifacts.files import read_json
from pipeline.config.base import Positive
from pipeline.errors import InputError
from pipeline.paths import DataPaths

if TYPE_CHECKING:
    from pipeline.config.params import Params

LARGEST: Literal["largest"] = "largest"
BatchSize = Annotated[Positive, Field(ge=2)] | Literal["largest"]


def stated_sizes(sizes: Sequence[int | Literal["largest"]]) -> tuple[int, ...]:
    """Return the batch sizes that are numbers."""
    return tuple(size for size in sizes if isinstance(size, int))


def check_largest(sizes: Sequence[int | Literal["largest"]], others: Mapping[str, object]) -> None:
    """Check that no key of a study needs the number of `largest` before it is found.

    Args:
        others: keys that depend on batch sizes, with their values.

    Raises:
        ValueError: one is set.
    """
    if LARGEST not in sizes:
        return
    for key, value in others.items():
        if value is not None:
            raise ValueError(f"{key}: needs the batch size that largest stands for; give numbers in batch_sizes")


def known_sizes(sizes: Sequence[int | Literal["largest"]]) -> tuple[int, ...]:
    """Return the batch sizes if all are numbers.

    Raises:
        InputError: `largest` is among them.
    """
    if LARGEST in sizes:
        raise InputError(
            "batch_sizes: largest is not known before the train stage has found it; run the stage, or give a number"
        )
    return stated_sizes(sizes)


def with_found_size(params: "Params", study: str, size: int) -> "Params":
    """Return the parameters with a number in place of a study's `largest`; a number that it states stays once."""
    config = params.studies[study]
    sizes = tuple(dict.fromkeys(size if stated == LARGEST else stated for stated in config.batch_sizes))
    studies = {**params.studies, study: config.model_copy(update={"batch_sizes": sizes})}
    return params.model_copy(update={"studies": studies})


def with_recorded_sizes(params: "Params", data: DataPaths) -> "Params":
    """Return the parameters with the sizes that finished studies have found, from their provenance."""
    for name, study in params.studies.items():
        path = data.provenance("train", name)
        if LARGEST not in study.batch_sizes or not path.exists():
            continue
        trained = read_json(path)["parameters"]["study"]["batch_sizes"]
        found = [size for size in trained if size not in study.batch_sizes]
        # With other stated sizes the study has changed since. A size that is stated, too, was found where none is left.
        if set(trained) - set(found) == set(stated_sizes(study.batch_sizes)) and len(found) <= 1:
            params = with_found_size(params, name, found[0] if found else max(trained))
    return params
