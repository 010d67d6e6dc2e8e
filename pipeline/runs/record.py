"""Read the files of a finished run, and check that they are whole and agree: anyone may have edited them."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.artifacts.files import check_regular, open_array, write_json
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.artifacts.untrusted import read_untrusted_json
from pipeline.errors import InputError

CHECKSUMS = "checksums.json"
WEIGHTS = "weights.pt"
"""The only file of a run that an archive of results leaves out."""
CHECKED_FILES = ("result.json", "correct.npy", "identity.json", "timing.json", WEIGHTS)
_MAX_JSON_BYTES = 64_000_000
_MAX_ARRAY_BYTES = 1_000_000_000
# Two billion parameters in float32, three times those of the largest network of torchvision.
_MAX_WEIGHTS_BYTES = 8_000_000_000
# As text, dates sort by time only in one format.
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$"

Count = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _History(_Model):
    epoch: NonNegative
    step: Annotated[Count, Field(ge=1)]
    examples: Count
    train_loss: float | None
    lr: float
    top1: Fraction | None = None
    test_loss: float | None = None


class _Link(_Model):
    step: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    groups: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = []


class _Result(_Model):
    """result.json; entries of earlier versions lack keys with a default."""

    status: Literal["finished", "diverged"]
    top1: Fraction | None
    balanced_accuracy: Fraction | None
    loss: NonNegative | None
    history: Annotated[list[_History], Field(min_length=1)]
    workers: Annotated[Count, Field(ge=1)]
    places: Annotated[list[str], Field(min_length=1)]
    skipped_steps: Count
    micro_batch: Count
    critical_batch: dict[str, float | int | str | None] | None
    links: list[_Link] = []
    imported_from: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _figures_fit_status(self) -> Self:
        for name in ("top1", "balanced_accuracy", "loss"):
            if (getattr(self, name) is not None) != (self.status == "finished"):
                raise ValueError(f"{name} is {getattr(self, name)} in a run that {self.status}")
        for name, records in (("history", self.history), ("links", self.links)):
            steps = [record.step for record in records]
            if steps != sorted(steps):
                raise ValueError(f"the steps of {name} are not ascending")
        return self


class _Timing(_Model):
    seconds: NonNegative
    joules: dict[Literal["gpu", "cpu", "memory"], NonNegative | None] | None = None
    recorded: Annotated[str, Field(pattern=_DATE)] | None = None


def write_checksums(folder: Path) -> None:
    """Write the SHA-256 of each file of a run's folder."""
    digests = {name: sha256_of_file(folder / name) for name in CHECKED_FILES if (folder / name).exists()}
    write_json(folder / CHECKSUMS, digests)


def check_bounded(path: Path) -> None:
    """Check that a file of a run is a regular file of at most 64 MB, as an array 1 GB, as weights 8 GB.

    Raises:
        InputError: it is missing, something else, or larger.
    """
    limits = {"correct.npy": _MAX_ARRAY_BYTES, WEIGHTS: _MAX_WEIGHTS_BYTES}
    check_regular(path, max_bytes=limits.get(path.name, _MAX_JSON_BYTES))


def check_checksums(folder: Path, *, may_lack_weights: bool = False) -> None:
    """Check the files of a run against their checksums; entries of earlier versions have none.

    Args:
        may_lack_weights: whether recorded weights may be missing, as in an archive.

    Raises:
        InputError: a file is missing, too large, or has changed.
    """
    if not (folder / CHECKSUMS).exists():
        return
    digests = read_small_json(folder / CHECKSUMS)
    if not isinstance(digests, dict) or not digests.keys() >= {"result.json", "identity.json", "timing.json"}:
        raise damaged(folder, f"{CHECKSUMS} does not list its files")
    for name in CHECKED_FILES:
        path = folder / name
        if name == WEIGHTS and may_lack_weights and not path.exists():
            continue
        if path.exists() != (name in digests):
            raise damaged(folder, f"{name} is {'not listed' if path.exists() else 'missing'}")
        if path.exists():
            check_bounded(path)  # before it is read
            if sha256_of_file(path) != digests[name]:
                raise damaged(folder, f"{name} has changed since it was written")


def is_whole(folder: Path) -> bool:
    """Return whether the files of a run are there and sound; its weights may be missing."""
    try:
        check_checksums(folder, may_lack_weights=True)
        read_record(folder)
    except InputError:
        return False
    return (folder / "identity.json").exists()


def lacks_weights(folder: Path) -> bool:
    """Return whether a run was recorded with weights that are not in its folder.

    Raises:
        InputError: the checksums are damaged.
    """
    if not (folder / CHECKSUMS).exists() or (folder / WEIGHTS).exists():
        return False
    digests = read_small_json(folder / CHECKSUMS)
    return isinstance(digests, dict) and WEIGHTS in digests


def read_record(folder: Path) -> tuple[dict[str, Any], dict[str, Any], NDArray[np.bool_] | None]:
    """Read result.json, timing.json and correct.npy, without checksums.

    Returns:
        The two records with plain values, and (n_test,) bool per test image; None if the run diverged.

    Raises:
        InputError: a file is missing, not a regular file, too large or damaged, or top-1 is not that of correct.npy.
    """
    result = _validated(_Result, folder, "result.json")
    timing = _validated(_Timing, folder, "timing.json")
    if result["status"] != "finished":
        return result, timing, None
    path = folder / "correct.npy"
    check_bounded(path)
    correct = np.array(open_array(path, dtype=np.bool_, ndim=1))
    measured = float(correct.mean()) if len(correct) else math.nan
    # Numerically, since versions of NumPy may round differently.
    if not math.isclose(measured, result["top1"], abs_tol=1e-9):
        raise damaged(folder, f"top1 is {result['top1']:g}, and correct.npy has {measured:g}")
    return result, timing, correct


def check_against_labels(
    folder: Path, correct: NDArray[np.bool_], balanced_accuracy: float, labels: NDArray[np.int64]
) -> None:
    """Check that a finished run was evaluated on these test labels (n_test,).

    Raises:
        InputError: it has another number of images, or another balanced accuracy.
    """
    if len(correct) != len(labels):
        raise damaged(folder, f"correct.npy has {len(correct)} images, and there are {len(labels)} test images")
    measured = np.mean([correct[labels == label].mean() for label in np.unique(labels)])
    if not math.isclose(measured, balanced_accuracy, abs_tol=1e-9):
        raise damaged(folder, f"balanced_accuracy is {balanced_accuracy:g}, and correct.npy has {measured:g}")


def same_result(folder: Path, ours: Any, other: Path, theirs: Any) -> Any:
    """Return `ours`, if two `RunResult`s of a run, of the entries `folder` and `other`, are of one training.

    Test losses agree to five digits, since the passes of an evaluation round otherwise. Earlier versions recorded no
    hash chain.

    Raises:
        InputError: they have another status, hash chain, loss or test answer.
    """

    def links(result: Any) -> list[tuple[int, str]]:
        return [(link.step, link.sha256) for link in result.links]

    def losses(result: Any) -> list[tuple[int, float | None]]:
        return [(record.step, record.train_loss) for record in result.history]

    equal = {
        "status": ours.status == theirs.status,
        "hash chain": links(ours) == links(theirs) or not (ours.links and theirs.links),
        "training losses": losses(ours) == losses(theirs),
        "test answers": np.array_equal(ours.correct, theirs.correct),
        "test loss": math.isclose(ours.loss or 0.0, theirs.loss or 0.0, rel_tol=1e-5),
    }
    for name, is_equal in equal.items():
        if not is_equal:
            raise InputError(
                f"{other}: another {name} than the record of this run in {folder}; delete the one that is wrong"
            )
    return ours


def read_small_json(path: Path) -> Any:
    """Read a JSON file that is a regular file of bounded size.

    Raises:
        InputError: as `read_untrusted_json`.
    """
    return read_untrusted_json(path, max_bytes=_MAX_JSON_BYTES)


def damaged(folder: Path, reason: str) -> InputError:
    """Return the error for the folder of a run."""
    return InputError(f"{folder}: damaged entry ({reason}); delete this folder and run again")


def _validated(model: type[_Model], folder: Path, name: str) -> dict[str, Any]:
    tree = read_small_json(folder / name)
    try:
        return model.model_validate(tree).model_dump()
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        raise damaged(folder, f"{name}{': ' if where else ''}{where}: {message}"[:300]) from None
