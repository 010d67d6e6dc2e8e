"""Bad parameter files get one line that names file, key, value and fix."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.config.params import check_params, load_params
from pipeline.errors import InputError
from tests.fixtures.golden import check_golden, setting
from tests.fixtures.params import PRESET, digits_tree, digits_with
from tests.fixtures.printed_errors import key_within

_DIGITS = digits_tree()
_LOOKS = {**_DIGITS["studies"]["digits"], "looks": [2, 3]}
_LOW_RANK = {"compression": "powersgd", "powersgd_rank": 2, "overlap": False}
_BETWEEN_NODES = {"compression": "bf16", "hierarchical": True}

# Each: what is written where, and the keys that the one line names after the file.
_BAD = [
    ("finetun", {}, "finetun"),
    ("train.learning_rate", 0.1, "train.learning_rate"),
    ("finetune.learning_rate", ..., "finetune.learning_rate"),
    ("finetune.learning_rate", "fast", "finetune.learning_rate"),
    ("finetune.learning_rate", 0, "finetune.learning_rate"),
    ("finetune.learning_rate", float("nan"), "finetune.learning_rate"),
    (
        "train.workers",
        "all",
        "train.workers",
    ),
    ("report.margin", ..., "report.margin"),
    ("report.margin", 0, "report.margin"),
    ("report.primary", "filtered", "report.primary"),
    ("train.workers", 3, "train.workers"),
    ("train.schedule", {"name": "linear"}, "train.schedule"),
    ("train.schedule", {"warmup": {"steps": 1}}, "train.schedule"),
    ("train.schedule.milestones", [{"epochs": 3}], "train.schedule.milestones"),
    (
        "studies.digits.recipe",
        {"schedule": {"name": "constant", "warmup": {"steps": 41}}},
        "studies.digits.recipe.schedule.warmup",
    ),
    ("finetune.budget", {"epochs": 0.5}, "finetune.schedule.warmup"),
    ("train.schedule.warmup", {"steps": 1, "epochs": 1}, "train.schedule.warmup"),
    ("train.schedule.warmup", {"stepz": 1}, "train.schedule.warmup.stepz"),
    ("train.schedule.warmup", {"steps": -1}, "train.schedule.warmup"),
    ("train.augmentation.crop_size", 17, "train.augmentation.crop_size"),
    ("train.augmentation.crop_padding", 16, "train.augmentation.crop_padding"),
    ("train.simulated_workers", 5, "studies.digits.batch_sizes"),
    ("finetune.batch_size", 1, "finetune.batch_size"),
    ("studies", {}, "studies"),
    (
        "studies.Digits",
        _DIGITS["studies"]["digits"],
        "studies.Digits",
    ),
    ("studies.digits.batch_sizes", [32, 1], "studies.digits.batch_sizes.1"),
    ("studies.digits.arms", ["full", "ful"], "studies.digits.arms.1"),
    ("studies.digits.seeds", [1, 1], "studies.digits"),
    ("studies.digits.looks", [6, 12], "studies.digits: looks"),
    ("studies.digits.looks", [3, 2], "studies.digits: looks"),
    ("studies.digits.looks", [], "studies.digits.looks"),
    ("studies.digits.looks", [1, 3], "studies.digits.looks.0"),
    ("studies.digits", _LOOKS | {"filter_replicates": 2}, "studies.digits: looks"),
    ("studies.digits", _LOOKS | {"seeds": [2, 1, 0]}, "studies.digits: looks"),
    ("studies.digits", _LOOKS | {"arms": ["full", "random"]}, "studies.digits.looks"),
    ("studies.digits", _LOOKS | {"arms": ["full", "filtered"]}, "studies.digits.looks"),
    ("studies.digits.filter_network", "resnet50", "studies.digits.filter_network"),
    (
        "studies.digits.needs",
        "prepare",
        "studies.digits: needs",
    ),
    (
        "studies.digits.needs",
        "filter/resnet34",
        "studies.digits: needs",
    ),
    (
        "studies.digits",
        _DIGITS["studies"]["digits"] | {"needs": "filter/resnet18", "filter_replicates": 2},
        "studies.digits: needs",
    ),
    (
        "studies.digits",
        _DIGITS["studies"]["digits"] | {"batch_sizes": ["largest"], "recipe": {"concurrent_runs": 2}},
        "studies.digits.batch_sizes",
    ),
    ("studies.digits.models", ["torchvision/vgg61"], "studies.digits.models"),
    ("studies.digits.models", ["torchvision/vgg16"], "studies.digits.models"),
    ("studies.digits.plan", {"question": " "}, "studies.digits.plan.question"),
    ("studies.digits.recipe", {"stemm": "cifar"}, "studies.digits.recipe.stemm"),
    ("studies.digits.recipe", {"stem": "vgg"}, "studies.digits.recipe.stem"),
    ("studies.digits.recipe", {"augmentation": {"crop_size": 20}}, "studies.digits.recipe.augmentation.crop_size"),
    ("networks", ["resnet18", "resnet18"], "(top level)"),
    ("networks", "resnet18", "networks"),
    ("filter.eps", 0.5, "filter"),
    ("filter.drop_fraction", 1.0, "filter.drop_fraction"),
    ("filter.drop_fraction", "guessed", "filter.drop_fraction"),
    ("filter.drop_fraction", {"resnet18": 0.05, "resnt34": 0.1}, "filter.drop_fraction"),
    ("reduce.n_neighbors", 0, "reduce.n_neighbors"),
    ("reduce.landmarks", "some", "reduce.landmarks"),
    ("reduce.landmarks", 3, "reduce.landmarks"),
    ("reduce.extra_embeddings", [{"perplexiti": 5.0}], "reduce.extra_embeddings[0].perplexiti"),
    ("reduce.extra_embeddings", [{"theta": 0.1}, {"dof": -1.0}], "reduce.extra_embeddings[1].dof"),
    ("reduce.extra_embeddings", [{"random_state": 0}], "reduce.extra_embeddings[0]"),
    ("reduce.extra_embeddings", [{"theta": 0.1}] * 2, "reduce.extra_embeddings[1]"),
    ("dask.scheduler", "cluster", "dask.scheduler"),
    ("dask.scheduler", "tcp://host", "dask.scheduler"),
    ("dask.workers", 0, "dask.workers"),
    ("reduce.pca.n_components", 1, "reduce.pca.n_components"),
    ("prepare.dataset", "mnist", "prepare.dataset"),
    ("prepare.dataset", "image_folder", "prepare"),
    ("prepare.dataset", "cifar10", "prepare"),
    ("prepare.path", "images", "prepare"),
    ("prepare.label_file", "", "prepare.label_file"),
    ("prepare.label_column", "species", "prepare"),
    ("prepare.test_size", None, "prepare"),
    ("prepare.image_size", True, "prepare.image_size"),
    ("prepare.image_size", 16.5, "prepare.image_size"),
    ("prepare.storage", "files", "prepare"),
    ("train.augmentation.crop_area", 0.5, "train.augmentation.crop_area"),
    ("train", {"compile": True, "reduction": "exact"}, "train: compile"),
    ("train", {"compile": True, "isa": "avx2"}, "train: isa"),
    ("finetune.isa", "avx2", "finetune.isa"),
    ("train.isa", "avx512", "train.isa"),
    ("train", {"communication": {"compression": "bf16"}, "reduction": "exact"}, "train: communication"),
    ("train", {"communication": {"library": "horovod"}, "reduction": "exact"}, "train: communication"),
    ("train", {"simulated_workers": 8, "workers": 9, "reduction": "exact"}, "train.workers"),
    ("train.reduction", "tree", "train.reduction"),
    ("train", {"post_local_sgd": {"start": {"steps": 1}, "period": 2}, "reduction": "exact"}, "train: reduction"),
    ("train.communication", {"bucket_mib": 0}, "train.communication.bucket_mib"),
    ("train.communication", {"compression": "topk"}, "train.communication.compression"),
    (
        "train.communication",
        {"compression": "powersgd", "overlap": False},
        "train.communication: powersgd_rank",
    ),
    ("train.communication", {"powersgd_rank": 2}, "train.communication: powersgd_rank"),
    (
        "train.communication",
        {"compression": "powersgd", "powersgd_rank": 2},
        "train.communication: overlap",
    ),
    (
        "train.communication",
        {"overlap": False, "bucket_mib": 5},
        "train.communication: bucket_mib",
    ),
    *(
        (
            "train.communication",
            {"library": "horovod", **other},
            f"train.communication: {next(iter(other))}",
        )
        for other in ({"overlap": False}, {"hierarchical": True}, {"compression": "bf16"}, {"bucket_mib": 5})
    ),
    (
        "train.communication",
        {"compression": "bf16", "hierarchical": True},
        "train.communication: workers_per_node",
    ),
    *(
        ("train.communication", {**change, "workers_per_node": 2}, "train.communication: workers_per_node")
        for change in ({"compression": "bf16"}, {"hierarchical": True}, {})
    ),
    (
        "train",
        {"communication": {"compression": "bf16"}},
        "train: communication.compression",
    ),
    (
        "train",
        {"communication": {"compression": "bf16"}, "simulated_workers": 4, "workers": 2},
        "train: communication.compression",
    ),
    *(
        (
            "train",
            {"communication": {**_BETWEEN_NODES, "workers_per_node": of}, "simulated_workers": 4, "workers": "auto"},
            "train: communication.workers_per_node",
        )
        for of in (3, 4, 8)
    ),
    (
        "train",
        {"communication": {"compression": "bf16"}, "simulated_workers": 2, "noise_scale_steps": 5},
        "train: noise_scale_steps",
    ),
    (
        "train",
        {"communication": _LOW_RANK, "simulated_workers": 2, "precision": "fp16"},
        "train: precision",
    ),
    ("report", [], "report"),
    (
        "studies.digits",
        _DIGITS["studies"]["digits"]
        | {"keep_checkpoints": True, "recipe": {"post_local_sgd": {"start": {"steps": 1}, "period": 2}}},
        "studies.digits.keep_checkpoints",
    ),
    ("studies.digits.relabel_above", 0.5, "studies.digits: relabel_above"),
    ("studies.digits.relabel_above", 1.0, "studies.digits.relabel_above"),
]


def test_images_in_files_have_no_padding() -> None:
    tree = digits_with("prepare", {"dataset": "image_folder", "path": "x", "image_size": 64, "storage": "files"})
    for section in ("finetune", "train"):
        tree[section] = {**tree[section], "augmentation": {"crop_area": 0.2}}
    assert check_params(tree, source="params.yaml").train.augmentation.crop_area == 0.2
    tree["train"] = {**tree["train"], "augmentation": {"crop_padding": 4}}
    with pytest.raises(InputError) as raised:
        check_params(tree, source="params.yaml")
    assert key_within(raised.value, "params.yaml") == "train.augmentation.crop_padding"


@pytest.mark.parametrize(("path", "value", "keys"), _BAD, ids=[f"{path}={value}"[:60] for path, value, _ in _BAD])
def test_bad_value_gets_one_line(path: str, value: Any, keys: str) -> None:
    with pytest.raises(InputError) as raised:
        check_params(digits_with(path, value), source="params.yaml")
    assert str(raised.value).startswith(f"params.yaml: {keys}: ")
    assert "\n" not in str(raised.value)


def test_bad_values_are_explained() -> None:
    """With value and fix, as far as the words are not pydantic's, which differ between its versions."""
    lines = []
    for path, value, _ in _BAD:
        with pytest.raises(InputError) as raised:
            check_params(digits_with(path, value), source="params.yaml")
        lines.append(f"{setting(path, value)} -> {raised.value}\n")
    check_golden("params_errors.txt", "".join(line for line in lines if " is not allowed: " not in line))


def test_several_problems_are_counted() -> None:
    tree = digits_with("finetun", {}) | {"reportt": {}}
    with pytest.raises(InputError) as raised:
        check_params(tree, source="params.yaml")
    assert re.findall(r"\d+", str(raised.value)) == ["1"], "how many more there are"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prepare: [", ""),
        ("a: 1\na: 2\n", "line 2"),
        ("", "(top level): null"),
        ("- 1\n", "(top level): [1]"),
        ("? [1, 2]\n: 3\n", ""),
        ("x: !!python/object:os.system {}\n", ""),
    ],
)
def test_unreadable_yaml_gets_one_line(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        load_params(path)
    assert raised.value.key == str(path)
    assert expected in str(raised.value)


def test_missing_or_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    for content in (None, b"\xff\xfe\x00"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError) as raised:
            load_params(path)
        assert raised.value.key == str(path)
        assert content is not None or "`batchsieve init`" in str(raised.value)


@pytest.mark.parametrize("written", ["1e-3", "1.0e-3", "0.001", "1E-3"])
def test_numbers_may_be_written_as_powers_of_ten(tmp_path: Path, written: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(re.sub(r"learning_rate: \S+", f"learning_rate: {written}", PRESET.read_text(), count=1))
    assert load_params(path).finetune.learning_rate == 1e-3


def test_whole_floats_are_integers_and_fractions_are_not() -> None:
    assert check_params(digits_with("studies.digits.batch_sizes", [1e2]), source="").studies["digits"].batch_sizes == (
        100,
    )
    with pytest.raises(InputError) as raised:
        check_params(digits_with("studies.digits.batch_sizes", [100.5]), source="p")
    assert key_within(raised.value, "p") == "studies.digits.batch_sizes.0"


def test_params_do_not_change_after_validation() -> None:
    params = check_params(digits_tree(), source="")
    with pytest.raises(ValidationError) as raised:
        params.train.stem = "cifar"
    assert [problem["type"] for problem in raised.value.errors()] == ["frozen_instance"]


def test_every_single_key_may_be_misspelt() -> None:
    """Closed on every level: a letter too many is never ignored."""

    def misspellings(node: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        if not isinstance(node, dict):
            return []
        here = [] if path == ("studies",) else [(*path, key) for key in node]
        return here + [deeper for key, value in node.items() for deeper in misspellings(value, (*path, key))]

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
