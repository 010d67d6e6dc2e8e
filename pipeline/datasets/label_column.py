"""Labels from a column of a table: number the classes, and choose the splits for training and testing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.datasets.hub_names import checked_class_names
from pipeline.datasets.image_set import Sample
from pipeline.datasets.labels import class_name
from pipeline.errors import InputError

LabelValue = int | str | None
"""A class number, a class name, or None for no label."""

DEFAULT_COLUMN = "label"

_UNLABELED = -1
"""Number that `datasets` gives images without a label, e.g. those of a hidden test set."""


@dataclass(frozen=True, kw_only=True)
class LabeledRows:
    """Images of one split with the values of their label column.

    Attributes:
        paths: in the order of the rows; unique within the data set.
        values: their labels.
        where: from a row's index to its place, for messages.
    """

    paths: Sequence[str]
    values: Sequence[LabelValue]
    where: Callable[[int], str]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Images by split, with their class numbers.

    Attributes:
        class_names: by class number.
        splits: `train` and `test`; or the empty name alone if the images are to be split.
        notes: how splits were chosen, for the log.
    """

    class_names: tuple[str, ...]
    splits: dict[str, list[Sample]]
    notes: tuple[str, ...] = ()


def list_images(splits: Mapping[str, LabeledRows], names: Sequence[str] | None, source: str) -> Listing:
    """Number the classes of all splits, and choose the training and the test split.

    The test split is `test`, or `validation` if there is no `test` with labels. A split without any label is left out.

    Args:
        splits: rows by name of the split; the empty name alone if the images have no splits.
        names: class names by number, if they are known; else the distinct labels, sorted, are the classes.
        source: name of the data in messages.

    Raises:
        InputError: a label is missing among others, out of range, or of another type; or no split is for training.
    """
    labeled = {split: rows for split, rows in splits.items() if not all(map(_is_missing, rows.values))}
    for rows in labeled.values():
        _refuse_missing(rows)
    chosen, notes = _choose(splits, labeled, source)
    if names is None:
        names = _distinct_names([rows.values for rows in chosen.values()], source)
        number = {name: i for i, name in enumerate(names)}
        return Listing(
            class_names=tuple(names),
            splits={
                split: [
                    Sample(path=path, label=number[class_name(str(value))])
                    for path, value in zip(rows.paths, rows.values, strict=True)
                ]
                for split, rows in chosen.items()
            },
            notes=notes,
        )
    return Listing(
        class_names=tuple(names),
        splits={split: _numbered(rows, names) for split, rows in chosen.items()},
        notes=notes,
    )


def _is_missing(value: LabelValue) -> bool:
    return value is None or value == _UNLABELED or (isinstance(value, str) and value.strip() in ("", str(_UNLABELED)))


def _refuse_missing(rows: LabeledRows) -> None:
    missing = [index for index, value in enumerate(rows.values) if _is_missing(value)]
    if missing:
        value = rows.values[missing[0]]
        more = f" (and {len(missing) - 1} more rows)" if len(missing) > 1 else ""
        raise InputError(f"{rows.where(missing[0])} has no label ({value!r}){more}; label it, or leave it out")


def _choose(
    splits: Mapping[str, LabeledRows], labeled: Mapping[str, LabeledRows], source: str
) -> tuple[dict[str, LabeledRows], tuple[str, ...]]:
    """Return the rows of the splits to use, as `train` and `test` or by the empty name, and notes on the others."""
    if not labeled:
        raise InputError(f"{source}: no image has a label; add labels")
    if "" in labeled:
        return {"": labeled[""]}, ()
    if "train" not in labeled:
        raise InputError(f"{source}: has no split train with labels, but {', '.join(splits)}; rename one")
    test = next((split for split in ("test", "validation") if split in labeled), None)
    notes = [f"{test} is the test split"] if test not in (None, "test") else []
    notes += [
        f"split {split} is not used{'' if split in labeled else ': it has no labels'}"
        for split in splits
        if split not in ("train", test)
    ]
    if test is None:
        return {"": labeled["train"]}, tuple(notes)
    return {"train": labeled["train"], "test": labeled[test]}, tuple(notes)


def _distinct_names(columns: Sequence[Sequence[LabelValue]], source: str) -> tuple[str, ...]:
    """Return the distinct labels as text: whole numbers in their order, others in alphabetical order."""
    distinct = {class_name(str(value)) for column in columns for value in column}
    try:
        ordered = sorted(distinct, key=lambda text: (int(text), text))
    except ValueError:
        ordered = sorted(distinct)
    return checked_class_names(ordered, source)


def _numbered(rows: LabeledRows, names: Sequence[str]) -> list[Sample]:
    """Return the samples of one split with known class names; labels are numbers, numbers as text, or names."""
    number: dict[LabelValue, int] = {key: i for i in range(len(names)) for key in (i, str(i))}
    # Names take precedence: a class may be called 7 and be number 0.
    number |= {name: i for i, name in enumerate(names)}
    samples = []
    for index, (path, value) in enumerate(zip(rows.paths, rows.values, strict=True)):
        label = number.get(class_name(value) if isinstance(value, str) else value)
        if label is None:
            raise InputError(
                f"{rows.where(index)} has the label {value!r}, and there are the {len(names)} classes 0 to "
                f"{len(names) - 1}, {names[0]} to {names[-1]}; correct the label, or the class names"
            )
        samples.append(Sample(path=path, label=label))
    return samples
