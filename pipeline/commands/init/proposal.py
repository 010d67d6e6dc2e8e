"""Look at a folder of images, and propose params.yaml for it: the preset `own-images`, with sizes that fit the folder.

The readers of the stage `prepare` count images, sizes, broken files and exact duplicates.
"""

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from pipeline.config.params import Params, check_params
from pipeline.config.prepare import PrepareConfig
from pipeline.config.yaml_reading import parse_yaml
from pipeline.datasets.decode import UnreadableError, brightest_of, decode_files
from pipeline.datasets.image_folder import open_image_folder
from pipeline.datasets.image_set import (
    SPLITS,
    DatasetOptions,
    ImageSet,
    ProgressFactory,
    UnreadableImage,
    check_classes,
)
from pipeline.datasets.store import find_duplicates
from pipeline.errors import InputError

_DECODED_SIZE = 8

# A study from scratch at the network's 224 pixels takes days without a GPU.
_LARGEST_SIDE_WITHOUT_GPU = 96
# ResNet-9 keeps the resolution of small images; above this side it costs more than a ResNet-18.
_LARGEST_SIDE_OF_RESNET9 = 48
_SMALLEST_SIDE_OF_RESNET9 = 9
_SMALLEST_SIDE = 8
_MANY_IMAGES = 5000
_FROM_SCRATCH: Mapping[str, Any] = {
    "optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": True},
    "schedule": {"name": "cosine", "warmup": {"epochs": 2}},
    "lr_scaling": {"rule": "linear", "reference_batch_size": 256},
    "label_smoothing": 0.1,
    "decay_norm_and_bias": False,
}


@dataclass(frozen=True, kw_only=True)
class FolderSurvey:
    """What a folder or archive of images holds.

    Attributes:
        class_names: sorted.
        train: readable training images of each class.
        test: readable test images of each class, held out with `test_size` if the folder has no test split.
        test_size: fraction of each class that was held out; None for a folder with a test split.
        unreadable: reason by path.
        duplicates: number of images that are copies of an earlier one, by `within_train`, `within_test`, `across`.
        contradictions: pairs of paths with equal content and different classes.
        short_side: median over the readable images of the shorter side in pixels.
        description: how the labels were read; empty for class folders.
        label_column: of Parquet shards, metadata.csv or metadata.jsonl; None for `label`, or without a table.
        brightest_16_bit: value of the brightest pixel of all 16-bit grays, 0 to 65,535; None without such images.
    """

    class_names: tuple[str, ...]
    train: tuple[int, ...]
    test: tuple[int, ...]
    test_size: float | None
    unreadable: dict[str, str]
    duplicates: dict[str, int]
    contradictions: tuple[tuple[str, str], ...]
    short_side: int
    description: str
    label_column: str | None = None
    brightest_16_bit: int | None = None

    @property
    def n_train(self) -> int:
        """Number of training images."""
        return sum(self.train)

    @property
    def n_test(self) -> int:
        """Number of test images."""
        return sum(self.test)


def survey_folder(
    path: Path,
    *,
    choose_test_size: Callable[[int], float],
    progress: ProgressFactory,
    label_column: str | None = None,
) -> FolderSurvey:
    """Decode every image of a folder or archive once, and count.

    Args:
        label_column: of Parquet shards, metadata.csv or metadata.jsonl; None for `label`.
        choose_test_size: from the number of images to the fraction to hold out, if there is no test split.

    Raises:
        InputError: it is no data set, or a class has too few readable images.
    """
    options = DatasetOptions(
        path=path,
        image_size=_DECODED_SIZE,
        test_size=None,
        max_megapixels=PrepareConfig.model_fields["max_megapixels"].default,
        seed=0,
        downloads=Path(),
        progress=progress,
        label_column=label_column,
    )
    options = replace(options, test_size=_test_size(options, choose_test_size))
    images = open_image_folder(options)
    sha256: dict[str, str] = {}
    sides: dict[str, int] = {}
    unreadable: dict[str, str] = {}
    brightest: int | None = None
    with progress(f"look at {path}", len(images.train) + len(images.test), "images") as bar:
        files = _measured(images.read(), sides)
        for image in decode_files(files, _DECODED_SIZE, max_megapixels=options.max_megapixels):
            if isinstance(image, UnreadableImage):
                unreadable[image.path] = image.reason
            else:
                sha256[image.path] = image.sha256
                brightest = brightest_of(brightest, image.brightest_16_bit)
            bar.update()
    # Without the unreadable files, since leaving them out changes the split.
    images = open_image_folder(replace(options, exclude=frozenset(unreadable)))
    check_classes(images, str(path))
    hashes = {split: [sha256[sample.path] for sample in images.samples(split)] for split in SPLITS}
    pairs = find_duplicates({split: images.samples(split) for split in SPLITS}, hashes)
    return FolderSurvey(
        class_names=images.class_names,
        train=_counts(images, "train"),
        test=_counts(images, "test"),
        test_size=options.test_size,
        unreadable=dict(sorted(unreadable.items())),
        duplicates={name: int(found["count"]) for name, found in pairs.items()},
        contradictions=_contradictions(images, sha256),
        short_side=int(np.median([sides[name] for name in sides.keys() & sha256.keys()])),
        description=images.description,
        label_column=label_column,
        brightest_16_bit=brightest,
    )


def _test_size(options: DatasetOptions, choose: Callable[[int], float]) -> float | None:
    """Return the fraction to hold out; None if there is a test split."""
    try:
        open_image_folder(options)
    except InputError as error:
        if error.key != "prepare.test_size":
            raise
        images = open_image_folder(replace(options, test_size=0.5))
        return choose(len(images.train) + len(images.test))
    return None


def _counts(images: ImageSet, split: str) -> tuple[int, ...]:
    return tuple(np.bincount(images.labels(split), minlength=len(images.class_names)).tolist())


def _contradictions(images: ImageSet, sha256: dict[str, str]) -> tuple[tuple[str, str], ...]:
    first: dict[str, tuple[str, int]] = {}
    found: list[tuple[str, str]] = []
    for split in SPLITS:
        for sample in images.samples(split):
            path, label = first.setdefault(sha256[sample.path], (sample.path, sample.label))
            if label != sample.label:
                found.append((min(path, sample.path), max(path, sample.path)))
    return tuple(sorted(found))


def _measured(
    files: Iterable[tuple[str, bytes | UnreadableError]], sides: dict[str, int]
) -> Iterator[tuple[str, bytes | UnreadableError]]:
    """Yield the files, and note the shorter side of each image by its path."""
    for path, content in files:
        if isinstance(content, bytes):
            # Damaged bytes raise nearly anything; decoding says what is wrong.
            with suppress(Exception), Image.open(io.BytesIO(content)) as image:
                sides[path] = min(image.size)
        yield path, content


@dataclass(frozen=True, kw_only=True)
class ProposedParams:
    """A parameter file and its content.

    Attributes:
        text: YAML, without the line for editors.
        params: the same, checked.
    """

    text: str
    params: Params


def default_test_size(n_images: int) -> float:
    """Return the fraction of each class to hold out."""
    return 0.2 if n_images < _MANY_IMAGES else 0.1


def propose(
    survey: FolderSurvey, preset: str, *, path: str, weights: Mapping[str, Any] | None, input_size: int, gpu: bool
) -> ProposedParams:
    """Return the parameters for a folder.

    Args:
        preset: text of the preset `own-images`.
        path: of the folder, as params.yaml names it.
        weights: keys of the section `finetune` that name the weights; None proposes a network from scratch.
        input_size: side of the images that the pretrained network reads, in pixels.
        gpu: whether the machine has one.

    Raises:
        InputError: the proposal is not valid, which is an error in the preset.
    """
    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 4096, True
    tree = yaml.load(preset)
    _fit_prepare(tree, survey, path, input_size if gpu else min(input_size, _LARGEST_SIDE_WITHOUT_GPU))
    _fit_sizes(tree, survey)
    if weights is None:
        _from_scratch(tree)
    else:
        _set(tree["finetune"], "weights", weights["weights"], "of ImageNet")
        if "revisions" in weights:
            tree["finetune"].insert(1, "revisions", _flow(weights["revisions"]))
        _set(tree["finetune"], "folds", min(5, *survey.train), "each image is scored by a probe that did not see it")
    buffer = io.StringIO()
    yaml.dump(tree, buffer)
    text = f"{_head(survey, path, gpu=gpu)}\n{_body(buffer.getvalue())}"
    return ProposedParams(text=text, params=check_params(parse_yaml(text, source="params.yaml"), source="params.yaml"))


def _fit_prepare(tree: Any, survey: FolderSurvey, path: str, largest_side: int) -> None:
    prepare = tree["prepare"]
    _set(prepare, "path", path, "relative to this file, or absolute")
    side = max(_SMALLEST_SIDE, min(largest_side, survey.short_side))
    _set(prepare, "image_size", side, "the extractor enlarges images to the size that it reads")
    if survey.label_column is not None:
        _set(prepare, "label_column", survey.label_column, "the column of the labels")
    if survey.test_size is None:
        del prepare["test_size"]
    else:
        _set(prepare, "test_size", survey.test_size, "of each class; a folder with train/ and test/ has its own")
    if survey.unreadable:
        _set(prepare, "unreadable", "skip", f"files of this folder that cannot be read: {len(survey.unreadable)}")
    tree["train"]["augmentation"]["crop_padding"] = max(1, side // 14)
    small = _SMALLEST_SIDE_OF_RESNET9 <= side <= _LARGEST_SIDE_OF_RESNET9
    (study,) = tree["studies"].values()
    study["models"] = _flow(["resnet9" if small else "resnet18"])


def _fit_sizes(tree: Any, survey: FolderSurvey) -> None:
    n_train, rarest = survey.n_train, min(survey.train)
    tree["reduce"]["pca"]["n_components"] = max(2, min(50, n_train - 1))
    # t-SNE needs more images than three times the perplexity.
    tree["reduce"]["tsne"]["perplexity"] = float(max(1, min(30, (n_train - 1) // 3)))
    tree["reduce"]["n_neighbors"] = min(25, n_train - 1)
    # More neighbors than the other images of a class would always include other classes.
    tree["filter"]["scorer"]["k"] = max(1, min(10, rarest - 1))
    sizes = batch_sizes(n_train)
    (study,) = tree["studies"].values()
    study["batch_sizes"] = _flow(sizes)
    tree["finetune"]["batch_size"] = sizes[0]
    tree["report"]["margin"] = max(1.0, math.ceil(200 / survey.n_test) / 2)
    tree["report"].yaml_add_eol_comment(
        "percentage points of top-1, at least one test image; smaller differences do not matter", "margin"
    )


def batch_sizes(n_train: int) -> list[int]:
    """Return one or two batch sizes of which an arm of four fifths of the images has three or more.

    Args:
        n_train: training images, 4 or more.
    """
    largest = 2 ** int(math.log2(max(2, n_train * 4 // 5 // 3)))
    largest = min(largest, 64 if n_train < _MANY_IMAGES else 256)
    return sorted({max(2, largest // 4), largest})


def _from_scratch(tree: Any) -> None:
    (study,) = tree["studies"].values()
    (network,) = study["models"]
    tree["networks"] = _flow([network])
    study["filter_network"] = network
    study["needs"] = f"filter/{network}"
    finetune = tree["finetune"]
    for key in ("trainable", "folds"):
        del finetune[key]
    _set(finetune, "weights", "none", "from scratch: no pretrained weights were found")
    finetune["weight_decay"] = study["weight_decays"][0]
    for key, value in _FROM_SCRATCH.items():
        finetune[key] = _flow(value) if isinstance(value, dict) else value
    finetune["augmentation"] = _flow(dict(tree["train"]["augmentation"]))
    tree["filter"]["scorer"] = _flow({"name": "label_odds"})
    tree["filter"].yaml_add_eol_comment("reads the predictions during training too", "scorer")
    # In sample an estimated share is too low.
    _set(tree["filter"], "drop_fraction", 0.05, "the true share of wrong labels is unknown: inspect the suspects")


def _head(survey: FolderSurvey, path: str, *, gpu: bool) -> str:
    text = (
        f"Proposed by `batchsieve init` for {path}: {survey.n_train:,} training and {survey.n_test:,} test images of "
        f"{len(survey.class_names)} classes, and a machine {'with' if gpu else 'without'} a GPU. `dvc repro` lists the "
        "suspects in data/filter/ and says in data/report/ whether training without them is better. Editors explain "
        "every key by params.schema.json."
    )
    return textwrap.fill(text, 118, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def _body(text: str) -> str:
    """Return the text from its first key on, with a blank line before each section alone."""
    lines = [line for line in text.splitlines() if line.strip()]
    start = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    return "".join(line + "\n" if line.startswith((" ", "#")) else f"\n{line}\n" for line in lines[start:])


def _set(section: Any, key: str, value: Any, comment: str) -> None:
    section[key] = value
    section.yaml_add_eol_comment(comment, key)


def _flow(value: Any) -> Any:
    """Return a list or mapping that is written on one line."""
    if isinstance(value, dict):
        written = CommentedMap({key: _flow(part) for key, part in value.items()})
        written.fa.set_flow_style()
        return written
    if isinstance(value, list):
        listed = CommentedSeq(value)
        listed.fa.set_flow_style()
        return listed
    return value
