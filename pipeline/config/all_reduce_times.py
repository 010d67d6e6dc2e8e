"""Files of measured all-reduces, to which the simulator's constants are fitted."""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from pipeline.config.base import Int, Positive, PositiveFloat, Section
from pipeline.config.messages import describe
from pipeline.errors import InputError


class AllReduceTime(Section):
    """One all-reduce of `n_bytes` over `workers` in `seconds`."""

    n_bytes: Positive
    workers: Annotated[Int, Field(ge=2)]
    seconds: PositiveFloat


class AllReduceTimes(Section):
    """Measured over links of one kind: on one node, or with one worker on each node.

    Attributes:
        algorithm: that the library used.
    """

    algorithm: Literal["ring", "tree"]
    points: Annotated[tuple[AllReduceTime, ...], Field(min_length=2)]


def load_all_reduce_times(path: Path) -> AllReduceTimes:
    """Read and check a file of measured points.

    Raises:
        InputError: naming the file, the key path, the value and the mend.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; give measured all-reduces, in the form docs/reference/files.md shows")
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error}); write it anew") from None
    try:
        return AllReduceTimes.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        raise InputError(f"{path}: {describe(error, tree, AllReduceTimes)}") from None
