"""The `prepare` section: the data set, the image size and the splits."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import Positive, Section, Seed
from pipeline.paths import expand_home

# 12 GB for a million images.
_THUMBNAIL_SIZE = 64


Storage = Literal["array", "files"]


BUILT_IN = ("digits", "cifar10", "cifar100")


class LabelNoiseConfig(Section):
    """Training labels to change on purpose. Test labels and the files of the data set do not change.

    Attributes:
        fraction: fraction of the training labels to change, rounded to an integer number of images.
        kind: `symmetric` assigns any other class, each equally likely. `pair` assigns the next class. `instance`
            assigns a class that depends on the pixels, by a random projection for each class (Xia et al. 2020,
            arXiv 2006.07836).
        seed: of the random choice of labels.
        on_own_data: true allows this on your own images (`dataset: image_folder`).
    """

    fraction: Annotated[float, Field(gt=0, lt=1)]
    kind: Literal["symmetric", "pair", "instance"]
    seed: Seed = 0
    on_own_data: bool = False


class PrepareConfig(Section):
    """The `prepare` section.

    Attributes:
        dataset: `digits` (scikit-learn's 1,797 images), `cifar10`, `cifar100` (downloaded, or the archive at `path`),
            or `image_folder` (the folder or archive at `path`: class folders, images with metadata.csv or
            metadata.jsonl, or the Parquet shards of a data set cloned from the Hugging Face hub; recognized by
            content).
        path: a local folder or archive; required by `image_folder`, not allowed for `digits`.
        label_column: column of the labels in Parquet shards, metadata.csv or metadata.jsonl. Null: `label`.
        label_file: a CSV with the columns path (as in data/prepare/train.parquet) and label (a class name) that
            replaces the labels of the training images it lists, to audit an annotator's labels. Test images keep
            their labels. DVC tracks neither this file nor `path`: after a change, run `dvc repro --force prepare`.
            Null: no such file.
        plant_label_noise: changes training labels on purpose, to measure how many the filter detects. The manifest
            has the true labels (`true_label`). Null: no label is changed.
        image_size: side of the square images that later stages use, in pixels.
        storage: `array` decodes every image once to that size, into one memory-mapped file. `files` leaves large
            images in the folder `path`: networks decode random-resized crops of them in training and center crops
            otherwise; the report and the visualizer show thumbnails.
        test_size: fraction of each class that becomes the test split; for `digits` and an `image_folder` without
            train/ and test/, null otherwise.
        train_size: fraction of each class's training images to use; with one seed, a smaller subset is part of a larger
            one. Null: all.
        val_size: fraction of each class's training images flagged `val` for tuning.
        unreadable: `error` raises for unreadable files; `skip` excludes them and lists them in the metrics.
        max_megapixels: larger images are rejected before decoding. Pillow rejects more than 178 megapixels.
        seed: of the splits.
    """

    dataset: Literal["digits", "cifar10", "cifar100", "image_folder"]
    path: str | None = None
    label_column: Annotated[str, Field(min_length=1)] | None = None
    label_file: Annotated[str, Field(min_length=1)] | None = None
    plant_label_noise: LabelNoiseConfig | None = None
    image_size: Annotated[Positive, Field(ge=8, le=512)]
    test_size: Annotated[float, Field(gt=0, lt=1)] | None = None
    train_size: Annotated[float, Field(gt=0, lt=1)] | None = None
    val_size: Annotated[float, Field(gt=0, lt=1)] = 0.1
    storage: Storage = "array"
    unreadable: Literal["error", "skip"] = "error"
    max_megapixels: Annotated[float, Field(gt=0, le=178)] = 64.0
    seed: Seed = 0

    @property
    def folder(self) -> Path | None:
        """`path` as a path."""
        return expand_home(self.path) if self.path else None

    @property
    def label_path(self) -> Path | None:
        """`label_file` as a path."""
        return expand_home(self.label_file) if self.label_file else None

    @property
    def stored_size(self) -> int:
        """Side in pixels of the images in data/prepare, which are thumbnails with `storage: files`."""
        return self.image_size if self.storage == "array" else min(_THUMBNAIL_SIZE, self.image_size)

    @model_validator(mode="after")
    def _fits_dataset(self) -> Self:
        if self.dataset == "image_folder" and not self.path:
            raise ValueError("dataset image_folder needs `path`: a folder or a .tar, .tar.xz or .zip of one")
        if self.storage == "files" and self.dataset != "image_folder":
            raise ValueError(f"storage files needs dataset image_folder, not {self.dataset}: use storage: array")
        if self.label_column and self.dataset != "image_folder":
            raise ValueError(f"label_column needs dataset image_folder, not {self.dataset}: remove it")
        if self.dataset == "digits" and self.path is not None:
            raise ValueError("dataset digits is built in: remove `path`")
        if self.dataset == "digits" and self.test_size is None:
            raise ValueError("dataset digits has no test split: give `test_size`, e.g. 0.2")
        if self.dataset in ("cifar10", "cifar100") and self.test_size is not None:
            raise ValueError(f"dataset {self.dataset} has a test split: remove `test_size`")
        return self

    @model_validator(mode="after")
    def _has_labels_to_plant_on(self) -> Self:
        noise = self.plant_label_noise
        if noise and self.label_file:
            raise ValueError(
                "plant_label_noise needs correct labels, and those of `label_file` are not audited yet: remove one"
            )
        if noise and self.dataset not in BUILT_IN and not noise.on_own_data:
            raise ValueError(
                f"plant_label_noise makes training labels wrong on purpose, and {self.path} has your own images: "
                "remove it, or set its on_own_data: true"
            )
        return self
