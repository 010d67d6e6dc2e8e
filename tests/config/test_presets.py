"""Every preset is valid, and the paper's says of each value where it is from."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.config.params import load_params

_FOLDER = Path(__file__).parents[2] / "presets"
_PAPER = _FOLDER / "paper.yaml"


@pytest.mark.parametrize("path", sorted(_FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_preset_is_valid_and_names_the_schema(path: Path) -> None:
    load_params(path)
    assert path.read_text().startswith("# yaml-language-server: $schema=params.schema.json\n# ")


def test_paper_preset_holds_what_the_paper_states() -> None:
    params = load_params(_PAPER)
    assert params.networks == ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
    assert params.prepare.dataset == "cifar10"
    assert params.finetune.weights == "imagenet"
    assert isinstance(params.filter.drop_share, dict)
    # Table I, in images.
    assert {name: round(50_000 * share) for name, share in params.filter.drop_share.items()} == {
        "resnet18": 3105, "resnet34": 3275, "resnet50": 3667, "resnet101": 2562, "resnet152": 620,
    }  # fmt: skip
    assert params.train.simulated_workers == 8
    assert params.train.decay_norm_and_bias
    for study in params.studies.values():
        recipe = study.effective_recipe(params.train)
        assert recipe.augmentation.crop_size == 28
        assert recipe.optimizer.name == "sgd"
        assert study.filter_network == "resnet101"
        assert study.budget.epochs == 50
        assert len(study.seeds) == 4
    sizes = params.studies["fig5"].batch_sizes
    assert (min(sizes), max(sizes)) == (16, 20480)
    assert params.studies["fig6"].weight_decays == (0.005, 0.01, 0.012, 0.0135)
    assert {6272, 10368} <= set(params.studies["fig7"].batch_sizes)


# What the text does not state, or states in two ways.
_OPEN = {
    "batch_size",
    "learning_rate",
    "learning_rates",
    "weight_decay",
    "schedule",
    "lr_scaling",
    "decay_norm_and_bias",
    "label_smoothing",
    "stem",
    "weights",
    "pca",
    "tsne",
    "min_samples",
    "match",
}


def test_every_value_of_the_paper_preset_says_where_it_is_from() -> None:
    lines = _PAPER.read_text().splitlines()
    values = list(_values(YAML().load(_PAPER)))
    assert len(values) > 70
    for key, number in values:
        comment = lines[number].partition(" # ")[2]
        assert re.match(r"paper\b|our choice\b", comment), f"line {number + 1}: {lines[number]}"
        if key in _OPEN:
            assert comment.startswith("our choice"), f"line {number + 1}: {key} is not stated by the paper"


def test_open_values_of_stated_keys_are_marked_too() -> None:
    """The optimizer is stated and its momentum is not; the crop is stated and the flip is not."""
    for line in _PAPER.read_text().splitlines():
        if line.strip().startswith(("optimizer:", "augmentation:")):
            assert "paper" in line
            assert line.endswith("our choice")


def _values(node: Any) -> Iterator[tuple[str, int]]:
    """Key and line of everything that is written on one line; sections hold such lines."""
    for key, value in node.items():
        if hasattr(value, "fa") and not value.fa.flow_style() and hasattr(value, "items"):
            yield from _values(value)
        else:
            yield key, node.lc.key(key)[0]
