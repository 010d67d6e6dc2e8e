"""Bad parameter files get one line that names file, key, value and mend."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from made_up_params import PRESET, digits_tree, digits_with
from pydantic import ValidationError

from pipeline.config.params import check_params, load_params
from pipeline.errors import InputError

_DIGITS = digits_tree()
_LOOKS = {**_DIGITS["studies"]["digits"], "looks": [2, 3]}
_ASKED = "arms ['full', 'filtered', 'random'] of filter_network resnet18 and filter_draws"
_LOW_RANK = {"compression": "powersgd", "powersgd_rank": 2, "overlap": False}
_BETWEEN_NODES = {"compression": "bf16", "hierarchical": True}

# Each: what is written where, and what the one line must say after the file's name.
_BAD = [
    ("finetun", {}, "finetun: unknown key; did you mean `finetune`?"),
    ("train.learning_rate", 0.1, "train.learning_rate: unknown key; known here: "),
    ("finetune.learning_rate", ..., "finetune.learning_rate: missing; add it"),
    ("finetune.learning_rate", "fast", 'finetune.learning_rate: "fast" is not allowed: Input should be a valid number'),
    ("finetune.learning_rate", 0, "finetune.learning_rate: 0 is not allowed: Input should be greater than 0"),
    ("finetune.learning_rate", float("nan"), "finetune.learning_rate: NaN is not allowed"),
    (
        "train.workers",
        "all",
        'train.workers: "all" is not allowed: Input should be a valid integer, or Input should be',
    ),
    ("report.margin", ..., "report.margin: missing; add it"),
    ("report.margin", 0, "report.margin: 0 is not allowed: Input should be greater than 0"),
    ("report.primary", "filtered", 'report.primary: "filtered" is not allowed: Input should be'),
    ("train.workers", 3, "train.workers: 3 does not divide simulated_workers 1; use one of [1] or auto"),
    ("train.schedule", {"name": "linear"}, "train.schedule: {"),
    ("train.schedule", {"warmup": {"steps": 1}}, "train.schedule: says no 'name'; add it"),
    ("train.schedule.milestones", [{"epochs": 3}], "train.schedule.milestones: unknown key; it does not belong"),
    (
        "studies.digits.recipe",
        {"schedule": {"name": "constant", "warmup": {"steps": 41}}},
        "studies.digits.recipe.schedule.warmup: 41 steps, but the budget is 40 steps; ",
    ),
    ("finetune.budget", {"epochs": 0.5}, "finetune.schedule.warmup: 1 epochs, but the budget is 0.5 epochs; shorten"),
    ("train.schedule.warmup", {"steps": 1, "epochs": 1}, "train.schedule.warmup: give exactly one of epochs"),
    ("train.schedule.warmup", {"stepz": 1}, "train.schedule.warmup.stepz: unknown key; did you mean `steps`?"),
    ("train.schedule.warmup", {"steps": -1}, "train.schedule.warmup: a duration cannot be negative"),
    ("train.augmentation.crop_size", 17, "train.augmentation.crop_size: 17 is larger than prepare.image_size"),
    ("train.augmentation.crop_padding", 16, "train.augmentation.crop_padding: 16 leaves crops without image"),
    ("train.simulated_workers", 5, "studies.digits.batch_sizes: 32 does not split into 5 simulated workers"),
    ("finetune.batch_size", 1, "finetune.batch_size: 1 does not split into 1 simulated workers of 2 images"),
    ("studies", {}, "studies: {} is not allowed"),
    (
        "studies.Digits",
        _DIGITS["studies"]["digits"],
        'studies.Digits: "Digits" is not allowed: String should match',
    ),
    ("studies.digits.batch_sizes", [32, 1], "studies.digits.batch_sizes.1: 1 is not allowed"),
    ("studies.digits.arms", ["full", "ful"], 'studies.digits.arms.1: "ful" is not allowed'),
    ("studies.digits.seeds", [1, 1], "studies.digits: seeds names a value twice: [1, 1]"),
    ("studies.digits.looks", [6, 12], "studies.digits: looks: the last is 12 and seeds has 3"),
    ("studies.digits.looks", [3, 2], "studies.digits: looks: [3, 2] do not grow"),
    ("studies.digits.looks", [], "studies.digits.looks: [] is not allowed"),
    ("studies.digits.looks", [1, 3], "studies.digits.looks.0: 1 is not allowed"),
    ("studies.digits", _LOOKS | {"filter_draws": 2}, "studies.digits: looks: count seeds of one draw of the filter"),
    ("studies.digits", _LOOKS | {"seeds": [2, 1, 0]}, "studies.digits: looks: take the seeds in ascending order"),
    ("studies.digits", _LOOKS | {"arms": ["full", "random"]}, "studies.digits.looks: compare filtered with random"),
    ("studies.digits", _LOOKS | {"arms": ["full", "filtered"]}, "studies.digits.looks: compare filtered with random"),
    ("studies.digits.filter_network", "resnet50", "studies.digits.filter_network: resnet50 is not one of networks"),
    (
        "studies.digits.needs",
        "prepare",
        "studies.digits: needs: prepare is not what arms ['full', 'filtered', 'random']",
    ),
    (
        "studies.digits.needs",
        "filter/resnet34",
        f"studies.digits: needs: filter/resnet34 is not what {_ASKED} 1 need; write `needs: filter/resnet18`",
    ),
    (
        "studies.digits",
        _DIGITS["studies"]["digits"] | {"needs": "filter/resnet18", "filter_draws": 2},
        f"studies.digits: needs: filter/resnet18 is not what {_ASKED} 2 need; write `needs: filter`",
    ),
    ("studies.digits.plan", {"question": " "}, 'studies.digits.plan.question: " " is not allowed'),
    ("studies.digits.recipe", {"stemm": "cifar"}, "studies.digits.recipe.stemm: unknown key; did you mean `stem`?"),
    ("studies.digits.recipe", {"stem": "vgg"}, 'studies.digits.recipe.stem: "vgg" is not allowed'),
    ("studies.digits.recipe", {"augmentation": {"crop_size": 20}}, "studies.digits.recipe.augmentation.crop_size: 20"),
    ("networks", ["resnet18", "resnet18"], "(top level): networks names one twice"),
    ("networks", "resnet18", 'networks: "resnet18" is not allowed: Input should be a valid array'),
    ("filter.eps", 0.5, "filter: give exactly one of `drop_share`"),
    ("filter.drop_share", 1.0, "filter.drop_share: 1.0 is not allowed: Input should be less than 1"),
    ("reduce.neighbors", 0, "reduce.neighbors: 0 is not allowed"),
    ("reduce.landmarks", "some", 'reduce.landmarks: "some" is not allowed'),
    ("reduce.landmarks", 3, "reduce.landmarks: 3 is not allowed"),
    ("reduce.more_maps", [{"perplexiti": 5.0}], "reduce.more_maps[0].perplexiti: unknown key; did you mean `perple"),
    ("reduce.more_maps", [{"theta": 0.1}, {"dof": -1.0}], "reduce.more_maps[1].dof: -1.0 is not allowed"),
    ("reduce.more_maps", [{"random_state": 0}], "reduce.more_maps[0]: {'random_state': 0} makes a map that is there"),
    ("reduce.more_maps", [{"theta": 0.1}] * 2, "reduce.more_maps[1]: {'theta': 0.1} makes a map that is there"),
    ("dask.scheduler", "cluster", 'dask.scheduler: "cluster" is not allowed'),
    ("dask.scheduler", "tcp://host", 'dask.scheduler: "tcp://host" is not allowed'),
    ("dask.workers", 0, "dask.workers: 0 is not allowed"),
    ("reduce.pca.n_components", 1, "reduce.pca.n_components: 1 is not allowed"),
    ("prepare.dataset", "mnist", 'prepare.dataset: "mnist" is not allowed'),
    ("prepare.dataset", "image_folder", "prepare: dataset image_folder needs `path`"),
    ("prepare.dataset", "cifar10", "prepare: dataset cifar10 has its own test split: remove `test_share`"),
    ("prepare.path", "images", "prepare: dataset digits is built in: remove `path`"),
    ("prepare.labels", "", 'prepare.labels: "" is not allowed: String should have at least 1 character'),
    ("prepare.test_share", None, "prepare: dataset digits has no test split of its own"),
    ("prepare.image_size", True, "prepare.image_size: true is not allowed: Input should be a valid integer"),
    ("prepare.image_size", 16.5, "prepare.image_size: 16.5 is not allowed"),
    ("prepare.storage", "files", "prepare: storage files needs dataset image_folder, digits has none"),
    ("train.augmentation.crop_area", 0.5, "train.augmentation.crop_area: 0.5, but random-resized crops are of large"),
    ("train", {"compile": True, "reduction": "tree"}, "train: compile: reduction tree promises bits"),
    *(
        ("train", {"communication": change, "reduction": "tree"}, "train: communication: reduction tree has one way")
        for change in ({"overlap": False}, {"bucket_mib": 5}, {"hierarchical": True}, {"compression": "bf16"})
    ),
    ("train.communication", {"bucket_mib": 0}, "train.communication.bucket_mib: 0 is not allowed"),
    ("train.communication", {"compression": "topk"}, 'train.communication.compression: "topk" is not allowed'),
    (
        "train.communication",
        {"compression": "powersgd", "overlap": False},
        "train.communication: powersgd_rank: compression",
    ),
    ("train.communication", {"powersgd_rank": 2}, "train.communication: powersgd_rank: compression none has no rank"),
    (
        "train.communication",
        {"compression": "powersgd", "powersgd_rank": 2},
        "train.communication: overlap: powersgd compresses whole gradients, after the backward pass; set false",
    ),
    (
        "train.communication",
        {"overlap": False, "bucket_mib": 5},
        "train.communication: bucket_mib: without overlap all gradients are one message",
    ),
    *(
        (
            "train.communication",
            {"library": "horovod", **other},
            f"train.communication: {next(iter(other))}: horovod knows",
        )
        for other in ({"overlap": False}, {"hierarchical": True}, {"compression": "bf16"}, {"bucket_mib": 5})
    ),
    (
        "train.communication",
        {"compression": "bf16", "hierarchical": True},
        "train.communication: workers_per_node: bf16 between nodes depends on how many workers each has; give it",
    ),
    *(
        ("train.communication", {**change, "workers_per_node": 2}, "train.communication: workers_per_node: counts")
        for change in ({"compression": "bf16"}, {"hierarchical": True}, {})
    ),
    (
        "train",
        {"communication": {"compression": "bf16"}},
        "train: communication.compression: bf16, but a single worker sends nothing; remove it",
    ),
    (
        "train",
        {"communication": {"compression": "bf16"}, "simulated_workers": 4, "workers": 2},
        "train: communication.compression: 2 workers cannot stand in for simulated_workers 4, since each compresses",
    ),
    *(
        (
            "train",
            {"communication": {**_BETWEEN_NODES, "workers_per_node": of}, "simulated_workers": 4, "workers": "auto"},
            f"train: communication.workers_per_node: {of} does not make two or more equal nodes of 4 simulated_workers",
        )
        for of in (3, 4, 8)
    ),
    (
        "train",
        {"communication": {"compression": "bf16"}, "simulated_workers": 2, "noise_scale_steps": 5},
        "train: noise_scale_steps: samples whole gradients, and bf16 sends none; remove one of the two",
    ),
    (
        "train",
        {"communication": _LOW_RANK, "simulated_workers": 2, "precision": "fp16"},
        "train: precision: fp16 leaves out steps that are not finite, and powersgd would add",
    ),
    ("report", [], "report: [] is not allowed: Input should be an object"),
]


def test_images_in_files_have_no_padding() -> None:
    tree = digits_with("prepare", {"dataset": "image_folder", "path": "x", "image_size": 64, "storage": "files"})
    for section in ("finetune", "train"):
        tree[section] = {**tree[section], "augmentation": {"crop_area": 0.2}}
    assert check_params(tree, source="params.yaml").train.augmentation.crop_area == 0.2
    tree["train"] = {**tree["train"], "augmentation": {"crop_padding": 4}}
    with pytest.raises(InputError, match=r"^params.yaml: train.augmentation.crop_padding: 4, but with prepare.storage"):
        check_params(tree, source="params.yaml")


@pytest.mark.parametrize(("path", "value", "expected"), _BAD, ids=[f"{path}={value}"[:60] for path, value, _ in _BAD])
def test_bad_value_gets_one_line(path: str, value: Any, expected: str) -> None:
    with pytest.raises(InputError) as raised:
        check_params(digits_with(path, value), source="params.yaml")
    assert str(raised.value).startswith(f"params.yaml: {expected}")
    assert "\n" not in str(raised.value)


def test_several_problems_are_counted() -> None:
    tree = digits_with("finetun", {}) | {"reportt": {}}
    with pytest.raises(InputError, match=r"\(and 1 more\)$"):
        check_params(tree, source="params.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prepare: [", "not valid YAML at line"),
        ("a: 1\na: 2\n", "not valid YAML at line 2"),
        ("", "(top level): null is not allowed"),
        ("- 1\n", "(top level): [1] is not allowed"),
        ("? [1, 2]\n: 3\n", "cannot be read as plain keys and values"),
        ("x: !!python/object:os.system {}\n", "not valid YAML"),
    ],
)
def test_unreadable_yaml_gets_one_line(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        load_params(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert expected in str(raised.value)


def test_missing_or_binary_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_params(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        load_params(tmp_path / "params.yaml")


@pytest.mark.parametrize("written", ["1e-3", "1.0e-3", "0.001", "1E-3"])
def test_numbers_may_be_written_as_powers_of_ten(tmp_path: Path, written: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(re.sub(r"learning_rate: \S+", f"learning_rate: {written}", PRESET.read_text(), count=1))
    assert load_params(path).finetune.learning_rate == 1e-3


def test_whole_floats_are_integers_and_fractions_are_not() -> None:
    assert check_params(digits_with("studies.digits.batch_sizes", [1e2]), source="").studies["digits"].batch_sizes == (
        100,
    )
    with pytest.raises(InputError, match=r"batch_sizes\.0: 100\.5 is not allowed"):
        check_params(digits_with("studies.digits.batch_sizes", [100.5]), source="")


def test_params_do_not_change_after_validation() -> None:
    params = check_params(digits_tree(), source="")
    with pytest.raises(ValidationError, match="frozen"):
        params.train.stem = "cifar"


def test_every_single_key_may_be_misspelt() -> None:
    """Closed on every level: a letter too many is never ignored."""

    def misspellings(node: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        if not isinstance(node, dict):
            return []
        found = [] if path == ("studies",) else [(*path, key) for key in node]
        return found + [deeper for key, value in node.items() for deeper in misspellings(value, (*path, key))]

    paths = misspellings(digits_tree(), ())
    assert len(paths) > 60
    for path in paths:
        tree = copy.deepcopy(digits_tree())
        node = tree
        for key in path[:-1]:
            node = node[key]
        node[path[-1] + "z"] = node.pop(path[-1])
        with pytest.raises(InputError) as raised:
            check_params(tree, source="p")
        assert path[-1] in str(raised.value), path
