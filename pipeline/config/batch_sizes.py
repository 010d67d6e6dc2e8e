"""Batch sizes of a study that are not only numbers: `largest`, and those of the test of the effective batch.

The train stage finds the number of `largest`, and all else reads it. The test compares the filtered arm at batch s^2 B
with the full arm at batch B, at equal steps.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pipeline.artifacts.provenance import read_provenance
from pipeline.config.base import Positive, Section
from pipeline.errors import DataError, InputError
from pipeline.paths import DataPaths

if TYPE_CHECKING:
    from pipeline.config.params import Params

LARGEST: Literal["largest"] = "largest"
BatchSize = Annotated[Positive, Field(ge=2)] | Literal["largest"]
TREATED, CONTROL = "filtered", "full"
TEST_ARMS = (TREATED, CONTROL)
"""Arms of the test of the effective batch."""


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
        trained = _trained_sizes(path)
        found = [size for size in trained if size not in study.batch_sizes]
        # With other stated sizes the study has changed since. A size that is stated, too, was found where none is left.
        if set(trained) - set(found) == set(stated_sizes(study.batch_sizes)) and len(found) <= 1:
            params = with_found_size(params, name, found[0] if found else max(trained))
    return params


def _trained_sizes(path: Path) -> list[int]:
    """Return the batch sizes of a study's provenance.

    Raises:
        DataError: the file is damaged.
    """
    study = read_provenance(path)["parameters"].get("study")
    sizes = study.get("batch_sizes") if isinstance(study, dict) else None
    if not isinstance(sizes, list) or not all(isinstance(size, int) for size in sizes):
        raise DataError(f"{path}: its batch sizes are missing or damaged; run the stage that writes it again")
    return sizes


class EquivalentBatch(Section):
    """Test whether the filtered arm at batch s^2 B is worth the full arm at batch B, at equal steps.

    The law that it tests: symmetric wrong labels, a share a of all over K classes, multiply the mean gradient by
    1 - aK / (K - 1) and leave its variance about the same, so that the effective batch is (1 - aK / (K - 1))^2 B (after
    Rolnick et al. 2017, arXiv 1705.10694). The test adds the runs of the filtered arm at batch s^2 B to the grid. They
    have the steps, the warm-up and the schedule of the full arm at batch B, in steps. `lr_scaling: sqrt` also gives
    them s times its rate, so that by the law the updates of SGD have equal mean and equal noise.

    Attributes:
        gradient_scale: s, the factor of the full arm, 1 - aK / (K - 1), divided by that of the filtered arm, which is
            1 if the filter drops all wrong labels. With a fifth of the labels of ten classes wrong, s is 0.778.
        batch_sizes: B, of the study's batch sizes; null: all of them. s^2 B is rounded to the nearest multiple of
            `simulated_workers` and need not be one of the study's sizes.
    """

    gradient_scale: Annotated[float, Field(gt=0, lt=1)]
    batch_sizes: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None

    def sizes(self, batch_sizes: tuple[int, ...], simulated_workers: int) -> dict[int, int]:
        """Return B -> s^2 B, rounded; both of the global batch.

        Args:
            batch_sizes: of the study.

        Raises:
            ValueError: s^2 B is rounded to B itself.
        """
        chosen = self.batch_sizes or batch_sizes
        rounded = {
            size: max(1, round(self.gradient_scale**2 * size / simulated_workers)) * simulated_workers
            for size in chosen
        }
        for size, smaller in rounded.items():
            if smaller >= size:
                raise ValueError(
                    f"gradient_scale: {self.gradient_scale:g} squared times batch {size} is {smaller} in whole images "
                    f"of {simulated_workers} simulated workers; use a larger batch, fewer workers or a smaller scale"
                )
        return rounded
