"""Bad parameter files get one line that names file, key, value and mend."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from ruamel.yaml import YAML

from pipeline.config.params import check_params, load_params
from pipeline.config.scorers import WITH_TRAINING
from pipeline.config.study import TrainConfig
from pipeline.errors import InputError
from pipeline.selection.scorers import SCORERS

_PRESET = Path(__file__).parents[2] / "presets" / "digits.yaml"


def _tree() -> dict[str, Any]:
    tree: dict[str, Any] = YAML(typ="safe").load(_PRESET)
    return tree


_DIGITS = _tree()


def _with(path: str, value: Any) -> dict[str, Any]:
    """The digits preset with one key set, or removed where `value` is ..."""
    tree = copy.deepcopy(_DIGITS)
    *parents, last = path.split(".")
    node = tree
    for key in parents:
        node = node[key]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return tree


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
    ("studies.Digits", _DIGITS["studies"]["digits"], 'studies.Digits: "Digits" is not allowed: String should match'),
    ("studies.digits.batch_sizes", [32, 1], "studies.digits.batch_sizes.1: 1 is not allowed"),
    ("studies.digits.arms", ["full", "ful"], 'studies.digits.arms.1: "ful" is not allowed'),
    ("studies.digits.seeds", [1, 1], "studies.digits: seeds names a value twice: [1, 1]"),
    ("studies.digits.filter_network", "resnet50", "studies.digits.filter_network: resnet50 is not one of networks"),
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
    tree = _with("prepare", {"dataset": "image_folder", "path": "x", "image_size": 64, "storage": "files"})
    for section in ("finetune", "train"):
        tree[section] = {**tree[section], "augmentation": {"crop_area": 0.2}}
    assert check_params(tree, source="params.yaml").train.augmentation.crop_area == 0.2
    tree["train"] = {**tree["train"], "augmentation": {"crop_padding": 4}}
    with pytest.raises(InputError, match=r"^params.yaml: train.augmentation.crop_padding: 4, but with prepare.storage"):
        check_params(tree, source="params.yaml")


@pytest.mark.parametrize(("path", "value", "expected"), _BAD, ids=[f"{path}={value}"[:60] for path, value, _ in _BAD])
def test_bad_value_gets_one_line(path: str, value: Any, expected: str) -> None:
    with pytest.raises(InputError) as raised:
        check_params(_with(path, value), source="params.yaml")
    assert str(raised.value).startswith(f"params.yaml: {expected}")
    assert "\n" not in str(raised.value)


def test_several_problems_are_counted() -> None:
    tree = _with("finetun", {}) | {"reportt": {}}
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
    path.write_text(re.sub(r"learning_rate: \S+", f"learning_rate: {written}", _PRESET.read_text(), count=1))
    assert load_params(path).finetune.learning_rate == 1e-3


def test_whole_floats_are_integers_and_fractions_are_not() -> None:
    assert check_params(_with("studies.digits.batch_sizes", [1e2]), source="").studies["digits"].batch_sizes == (100,)
    with pytest.raises(InputError, match=r"batch_sizes\.0: 100\.5 is not allowed"):
        check_params(_with("studies.digits.batch_sizes", [100.5]), source="")


def test_params_do_not_change_after_validation() -> None:
    params = check_params(_DIGITS, source="")
    with pytest.raises(ValidationError, match="frozen"):
        params.train.stem = "cifar"


def test_a_duration_in_another_unit_replaces_that_of_train() -> None:
    tree = _with("studies.digits.recipe", {"schedule": {"warmup": {"epochs": 0.5}}})
    assert tree["train"]["schedule"]["warmup"] == {"steps": 5}
    params = check_params(tree, source="")
    schedule = params.studies["digits"].effective_recipe(params.train).schedule
    assert schedule.name == "cosine"
    assert (schedule.warmup.epochs, schedule.warmup.steps) == (0.5, None)


def test_study_recipe_lies_over_train_key_by_key() -> None:
    recipe = {"label_smoothing": 0.1, "schedule": {"name": "step", "milestones": [{"epochs": 2}]}}
    params = check_params(_with("studies.digits.recipe", recipe), source="")
    effective = params.studies["digits"].effective_recipe(params.train)
    changed = {key for key in TrainConfig.model_fields if getattr(effective, key) != getattr(params.train, key)}
    assert changed == {"label_smoothing", "schedule"}
    assert effective.schedule.name == "step"


@given(workers=st.integers(1, 64), simulated=st.integers(1, 64))
def test_workers_are_accepted_exactly_if_they_divide(workers: int, simulated: int) -> None:
    tree = _with("train.workers", workers)
    tree["train"]["simulated_workers"] = simulated
    tree["studies"]["digits"]["batch_sizes"] = [2 * simulated]
    if simulated % workers:
        with pytest.raises(InputError, match=rf"train\.workers: {workers} does not divide"):
            check_params(tree, source="")
    else:
        assert check_params(tree, source="").train.workers == workers


@given(batch=st.integers(2, 200), simulated=st.integers(1, 20))
def test_batches_are_accepted_exactly_if_every_worker_gets_two_images(batch: int, simulated: int) -> None:
    tree = _with("train.simulated_workers", simulated)
    tree["studies"]["digits"]["batch_sizes"] = [batch]
    if batch % simulated == 0 and batch >= 2 * simulated:
        assert check_params(tree, source="").studies["digits"].batch_sizes == (batch,)
    else:
        with pytest.raises(InputError, match=rf"batch_sizes: {batch} does not split into {simulated}"):
            check_params(tree, source="")


def test_every_single_key_may_be_misspelt() -> None:
    """Closed on every level: a letter too many is never ignored."""

    def misspellings(node: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        if not isinstance(node, dict):
            return []
        found = [] if path == ("studies",) else [(*path, key) for key in node]
        return found + [deeper for key, value in node.items() for deeper in misspellings(value, (*path, key))]

    paths = misspellings(_DIGITS, ())
    assert len(paths) > 60
    for path in paths:
        tree = copy.deepcopy(_DIGITS)
        node = tree
        for key in path[:-1]:
            node = node[key]
        node[path[-1] + "z"] = node.pop(path[-1])
        with pytest.raises(InputError) as raised:
            check_params(tree, source="p")
        assert path[-1] in str(raised.value), path


def test_a_study_changes_single_keys_of_a_section() -> None:
    """Laying `flip` over an augmentation keeps its padding; another schedule replaces the old one whole."""
    tree = _tree()
    tree["train"]["augmentation"] = {"crop_padding": 3}
    tree["train"]["schedule"] = {"name": "step", "milestones": [{"steps": 3}]}
    tree["studies"]["digits"]["recipe"] = {"augmentation": {"flip": True}, "schedule": {"name": "constant"}}
    params = check_params(tree, source="params.yaml")
    recipe = params.studies["digits"].effective_recipe(params.train)
    assert (recipe.augmentation.crop_padding, recipe.augmentation.flip) == (3, True)
    assert recipe.schedule.name == "constant"


def test_imagenet_weights_need_their_stem() -> None:
    tree = _tree()
    tree["finetune"] |= {"weights": "imagenet", "stem": "cifar"}
    with pytest.raises(InputError, match=r"finetune: weights: imagenet .* set stem: imagenet"):
        check_params(tree, source="params.yaml")


def test_a_frozen_backbone_needs_weights() -> None:
    tree = _tree()
    tree["finetune"] |= {"weights": "none", "trained": "head"}
    with pytest.raises(InputError, match=r"finetune: trained: head .* weights: none is a random one; give weights"):
        check_params(tree, source="params.yaml")
    tree["finetune"]["weights"] = "own.pth"
    assert check_params(tree, source="params.yaml").finetune.trained == "head"


@pytest.mark.parametrize(
    "scorer", [{}, {"name": "mean_confidence"}, {"name": "ensemble", "of": [{"name": "label_odds"}]}]
)
def test_a_fitted_head_has_no_training_to_read(scorer: dict[str, Any]) -> None:
    tree = _tree()
    tree["finetune"] |= {"weights": "own.pth", "trained": "head"}
    tree["filter"].pop("scorer")
    tree["filter"] |= {"scorer": scorer} if scorer else {}
    with pytest.raises(InputError, match=r"filter\.scorer: \w+ reads .* head trains none; take smoothed_confidence"):
        check_params(tree, source="params.yaml")


def test_scorers_that_read_the_training_are_those_that_say_so() -> None:
    assert set(WITH_TRAINING) == {name for name, scorer in SCORERS.items() if "training_confidence" in scorer.needs}


def test_a_warm_up_is_compared_only_where_every_batch_and_data_set_agree() -> None:
    tree = _tree()
    study = tree["studies"]["digits"]
    study["budget"] = {"epochs": 2}
    study["recipe"] = {"schedule": {"name": "constant", "warmup": {"steps": 10_000}}}
    check_params(tree, source="p")
    growing = {"name": "constant", "warmup": {"epochs": 3}}  # at 64 and less it fits
    study["recipe"] = {"schedule": growing, "lr_scaling": {"rule": "legw", "reference_batch_size": 128}}
    check_params(tree, source="p")
    study["recipe"]["lr_scaling"]["rule"] = "linear"
    with pytest.raises(InputError, match="3 epochs, but the budget is 2 epochs"):
        check_params(tree, source="p")
