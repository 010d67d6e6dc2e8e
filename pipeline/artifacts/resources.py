"""Read and check records of time, memory and energy. They are no results, so a damaged one stops nothing."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pipeline.artifacts.untrusted import read_untrusted_json
from pipeline.errors import DataError, InputError

_MAX_BYTES = 1_000_000
# Sums of the largest values are finite.
_Amount = Annotated[float, Field(ge=0, le=1e15)]


class _Joules(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    gpu: _Amount | None = None
    cpu: _Amount | None = None
    memory: _Amount | None = None


class _Record(BaseModel):
    """What a stage's last run took: seconds, MB and joules. Earlier versions wrote fewer keys."""

    model_config = ConfigDict(strict=True, extra="ignore")

    wall_s: _Amount
    peak_memory_mb: _Amount = 0.0
    peak_gpu_memory_mb: _Amount = 0.0
    images: Annotated[int, Field(ge=0, le=2**62)] = 0
    images_per_s: _Amount = 0.0
    joules: _Joules | None = None
    arms_wall_s: dict[str, _Amount] = {}
    arms_joules: dict[str, _Joules | None] = {}
    python: str = ""


_RECORD: TypeAdapter[Any] = TypeAdapter(_Record)
_RECORDS: TypeAdapter[Any] = TypeAdapter(dict[str, _Record])


def read_resources(paths: Mapping[str, Path], log: Callable[[str], object]) -> dict[str, dict[str, Any]]:
    """Read the records of stages that exist; a damaged one is left out.

    Args:
        paths: name of the stage -> its record.
        log: takes a note of one line for each damaged record.

    Returns:
        Name of the stage -> the whole record.
    """
    records = {}
    for name, path in paths.items():
        if path.exists():
            try:
                records[name] = _read(path, _RECORD)
            except DataError as error:
                log(f"{error}; left out of the costs, and the next run of the stage writes it again")
    return records


def read_costs(path: Path) -> dict[str, dict[str, Any]]:
    """Read the records of all stages in one file, which the report writes.

    Raises:
        DataError: it is missing or damaged.
    """
    hint = "run `python -m pipeline.stages.report`"
    if not path.exists():
        raise DataError(f"{path}: missing; {hint}")
    try:
        return _read(path, _RECORDS)
    except DataError as error:
        raise DataError(f"{error}; delete it and {hint}") from None


def _read(path: Path, kind: TypeAdapter[Any]) -> dict[str, Any]:
    """Read and check a file; the message of an error ends before its fix."""
    try:
        tree: dict[str, Any] = read_untrusted_json(path, max_bytes=_MAX_BYTES, may_be_link=True)
    except InputError as error:
        raise DataError(str(error).rpartition(";")[0]) from None
    try:
        kind.validate_python(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "record"
        raise DataError(f"{path}: {where}: {first['msg']}") from None
    return tree
