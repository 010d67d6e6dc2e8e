"""Splits, class names and labels in tables of images, as in folders cloned from the Hugging Face hub.

Splits are named by files and folders, class names by the data set card. The classes of a column are numbered, and its
splits chosen for training and testing.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor

from pipeline.artifacts.prepared import PLANTED_COLUMN
from pipeline.config.yaml_reading import check_limits
from pipeline.datasets.file_tree import check_name
from pipeline.datasets.image_set import Sample
from pipeline.datasets.labels import class_name
from pipeline.errors import InputError

# Words for splits in the names of files and folders, as in the library `datasets` (data_files.py).
_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "dev": "validation",
    "val": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
_SHARD = re.compile(r"(?P<split>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(-.*)?")
# The card of ImageNet-21k has 44,000 values.
_MAX_CARD_VALUES = 100_000
_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)^---\s*$", re.DOTALL | re.MULTILINE)

LabelValue = int | str | None
"""A class number, a class name, or None for no label."""

DEFAULT_COLUMN = "label"

_UNLABELED = -1
"""Number that `datasets` gives images without a label, e.g. those of a hidden test set."""


class _TextConstructor(SafeConstructor):
    """Reads scalars as they are written: a class may be called 08, 1e3 or true."""

    def text(self, node: Any) -> str:
        # Values that YAML refuses stay refused.
        SafeConstructor.yaml_constructors[node.tag](self, node)
        return str(node.value)

    yaml_constructors = SafeConstructor.yaml_constructors | dict.fromkeys(
        (f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int", "null", "timestamp")), text
    )


def split_of(name: str, source: str) -> str | None:
    """Return the split of a shard: `train`, `validation`, `test`, another one that its shards name, or None.

    `data/train-00000-of-00002.parquet` is a shard of `train`. In other names the first of these decides: the outermost
    folder whose whole name is a split, a word of the file's name, a word of a folder's name, from the innermost.
    `valid/0001.parquet` and `food_val.parquet` belong to `validation`.

    Args:
        source: name of the data in messages.

    Raises:
        InputError: the name that decides has the words of several splits.
    """
    *folders, stem = PurePosixPath(name).with_suffix("").parts
    shard = _SHARD.fullmatch(stem)
    if shard:
        return _SPLIT_WORDS.get(shard["split"].lower(), shard["split"])
    return _split_by_names(folders, (stem, *reversed(folders)), f"{source}: {name}")


def split_of_folders(name: str, source: str) -> str | None:
    """Return the split of a file by its folders, as `split_of`; the file's own name does not count."""
    folders = PurePosixPath(name).parts[:-1]
    return _split_by_names(folders, folders[::-1], f"{source}: {name}")


def _split_by_names(folders: Sequence[str], others: Sequence[str], where: str) -> str | None:
    for folder in folders:
        if split := folder_split(folder):
            return split
    for part in others:
        words = re.split(r"[-._ 0-9]+", part.lower())
        splits = list(dict.fromkeys(_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS))
        if len(splits) > 1:
            raise InputError(f"{where}: the name {part} is of several splits ({', '.join(splits)}); rename it")
        if splits:
            return splits[0]
    return None


def folder_split(folder: str) -> str | None:
    """Return the split whose name a folder has; None for other folders."""
    return _SPLIT_WORDS.get(folder.lower())


def missing_shard(names: Sequence[str]) -> str | None:
    """Return the name of a shard that the names of the others count but that is not among them."""
    present, checked = set(names), set()
    for name in names:
        path = PurePosixPath(name)
        shard = _SHARD.fullmatch(path.stem)
        # A hash after the numbers differs from shard to shard.
        if shard is None or shard[4] or (group := (path.parent, shard["split"], shard["count"])) in checked:
            continue
        checked.add(group)
        for number in range(int(shard["count"])):
            other = str(path.with_name(f"{shard['split']}-{number:05d}-of-{shard['count']}{path.suffix}"))
            if other not in present:
                return other
    return None


def card_class_names(card: str, column: str, source: str) -> tuple[str, ...] | None:
    """Return the class names that the front matter of a data set card gives a label column; None without any.

    Args:
        card: text of README.md.
        source: name of the file in messages.

    Raises:
        InputError: the front matter is not YAML, exceeds the limits of `check_limits`, has a list or mapping as a name,
            or gives the column several lists of names.
    """
    # Some editors of Windows begin a file with a byte order mark.
    matter = _FRONT_MATTER.match(card.removeprefix("\ufeff").replace("\r\n", "\n"))
    if matter is None:
        return None
    try:
        check_limits(matter[1], source=f"{source}: its front matter", max_values=_MAX_CARD_VALUES)
        yaml = YAML(typ="safe", pure=True)
        yaml.Constructor = _TextConstructor
        tree = yaml.load(matter[1])
        found = {names for feature in _features(tree) if (names := _names(feature, column, source)) is not None}
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - not only YAMLError: constructors also pass on errors of int() and dicts
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise InputError(f"{source}: its front matter is not YAML ({reason}); fix it") from None
    if len(found) > 1:
        raise InputError(
            f"{source}: dataset_info gives the column {column} several lists of class names; leave one of them"
        )
    return checked_class_names(next(iter(found)), source) if found else None


def _features(tree: Any) -> list[Any]:
    """Return the features of `dataset_info`, which is one mapping, or a list with one for each subset."""
    info = tree.get("dataset_info") if isinstance(tree, Mapping) else None
    infos = info if isinstance(info, list) else [info]
    lists = [each.get("features") for each in infos if isinstance(each, Mapping)]
    return [feature for features in lists if isinstance(features, list) for feature in features]


def _names(feature: Any, column: str, source: str) -> tuple[str, ...] | None:
    if not isinstance(feature, Mapping) or feature.get("name") != column:
        return None
    kind = feature.get("dtype")
    label = kind.get("class_label") if isinstance(kind, Mapping) else None
    names = label.get("names") if isinstance(label, Mapping) else None
    if isinstance(names, Mapping):
        # {'0': cat, '1': dog}, in any order
        names = [names.get(str(number)) for number in range(len(names))]
    if not isinstance(names, list) or not names or None in names:
        return None
    for number, name in enumerate(names):
        # A list or mapping of aliases may be exponentially long as text.
        if not isinstance(name, str):
            raise InputError(f"{source}: the name of class {number} of the column {column} is not text; correct it")
    return tuple(names)


def checked_class_names(names: Sequence[str], source: str) -> tuple[str, ...]:
    """Return class names in canonical form.

    Raises:
        InputError: a name is empty, occurs twice or holds a line break.
    """
    canonical = tuple(class_name(name) for name in names)
    seen: set[str] = set()
    for name in canonical:
        check_name(name, source.removeprefix("prepare.path: "))
        if not name or name in seen:
            raise InputError(f"{source}: the class name {name!r} is empty or occurs twice; give each class its own")
        seen.add(name)
    return canonical


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


def refuse_planted(columns: Sequence[str], where: str) -> None:
    """Refuse a table that `export` wrote of a project whose labels were changed on purpose.

    Args:
        columns: of the table.
        where: the table, in the message.

    Raises:
        InputError: one of the columns says so.
    """
    if PLANTED_COLUMN in columns:
        raise InputError(
            f"{where}: has the column {PLANTED_COLUMN}: its labels are wrong on purpose, by "
            "prepare.plant_label_noise of the project that exported it; put the labels of the source back"
        )


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
    missing = {split: _missing_rows(rows, names or ()) for split, rows in splits.items()}
    labeled = {split: rows for split, rows in splits.items() if len(missing[split]) < len(rows.values)}
    for split, rows in labeled.items():
        _refuse_missing(rows, missing[split])
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


def _missing_rows(rows: LabeledRows, names: Sequence[str]) -> list[int]:
    """Return the rows without a label; the text -1 is one where a class has that name."""
    empty = {"", str(_UNLABELED)} - set(names)
    return [
        index
        for index, value in enumerate(rows.values)
        if value is None or value == _UNLABELED or (isinstance(value, str) and value.strip() in empty)
    ]


def _refuse_missing(rows: LabeledRows, missing: Sequence[int]) -> None:
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
