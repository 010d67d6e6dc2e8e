"""Names of extractors and of their replicates."""

import copy
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from pipeline.config.extractors import Architecture, base_architecture, replicate_number
from pipeline.config.params import check_params
from pipeline.errors import InputError
from pipeline.models import NETWORKS
from tests.fixtures.printed_errors import key_within
from tests.fixtures.schema import schema_errors

_DIGITS: dict[str, Any] = YAML(typ="safe").load(Path(__file__).parents[3] / "tests" / "params.yaml")


def _with_networks(networks: list[str], filter_network: str, **seeds: int) -> dict[str, Any]:
    tree = copy.deepcopy(_DIGITS)
    tree["networks"] = networks
    tree["studies"]["digits"]["filter_network"] = filter_network
    tree["finetune"]["seed"] = seeds.get("finetune", 0)
    tree["reduce"]["tsne"]["random_state"] = seeds.get("tsne", 0)
    return tree


@given(architecture=st.sampled_from(get_args(Architecture)), number=st.integers(1, 99))
def test_a_replicate_is_of_its_architecture_and_has_its_number(architecture: str, number: int) -> None:
    name = f"{architecture}-r{number}"
    assert (base_architecture(name), replicate_number(name)) == (architecture, number)
    assert (base_architecture(architecture), replicate_number(architecture)) == (architecture, 0)
    params = check_params(_with_networks([architecture, name], name), source="p")
    assert params.networks == (architecture, name)
    assert params.studies["digits"].filter_network == name


def test_every_architecture_can_be_built() -> None:
    assert set(get_args(Architecture)) <= set(NETWORKS)


@pytest.mark.parametrize(
    "name", ["resnet20", "resnet18-r0", "resnet18-r100", "resnet18-r01", "resnet18-1", "small_cnn", ""]
)
def test_other_names_are_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(InputError) as raised:
        check_params(_with_networks([name], "resnet18"), source="p")
    assert str(raised.value).startswith(f'p: networks.0: "{name}" ')
    with pytest.raises(InputError) as raised:
        check_params(_with_networks(["resnet18"], name), source="p")
    assert key_within(raised.value, "p") == "studies.digits.filter_network"
    assert schema_errors(_with_networks([name], "resnet18")) != []


def test_a_replicate_may_be_listed_without_the_first() -> None:
    tree = _with_networks(["resnet18-r1", "resnet18-r2"], "resnet18-r2")
    assert check_params(tree, source="p").networks == ("resnet18-r1", "resnet18-r2")
    assert schema_errors(tree) == []
    tree["studies"]["digits"]["filter_network"] = "resnet18"
    with pytest.raises(InputError) as raised:
        check_params(tree, source="p")
    assert key_within(raised.value, "p") == "studies.digits.filter_network"


@pytest.mark.parametrize("section", ["finetune", "tsne"])
def test_seeds_of_replicates_stay_in_range(section: str) -> None:
    largest = 2**32 - 1
    check_params(_with_networks(["resnet18"], "resnet18", **{section: largest}), source="p")
    check_params(_with_networks(["resnet18-r9"], "resnet18-r9", **{section: largest - 9}), source="p")
    with pytest.raises(InputError) as raised:
        check_params(_with_networks(["resnet18-r9"], "resnet18-r9", **{section: largest}), source="p")
    key = {"finetune": "finetune.seed", "tsne": "reduce.tsne.random_state"}[section]
    assert key_within(raised.value, "p") == key
    assert str(raised.value).endswith(f" {largest - 9}"), "the largest seed that fits"
