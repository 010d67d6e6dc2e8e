"""Names of extractors and of their replicates."""

import copy
import os
from pathlib import Path
from typing import Any, get_args

import pytest
import timm
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from pipeline.config.extractors import Architecture, base_architecture, is_timm, replicate_number
from pipeline.config.params import check_params
from pipeline.errors import InputError
from pipeline.models import NETWORKS
from pipeline.paths import DataPaths
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


@given(
    model=st.from_regex(r"[a-z0-9_]{1,20}(\.[a-z0-9_]{1,20})?", fullmatch=True),
    number=st.none() | st.integers(1, 99),
)
def test_a_timm_name_may_have_a_tag_and_a_number_and_is_a_path(model: str, number: int | None) -> None:
    name = f"timm/{model}" if number is None else f"timm/{model}-r{number}"
    if (
        model.rpartition(".")[2] in {"test", "pca", "maps", "confidence", "probabilities", "provenance"}
        and "." in model
    ):
        return
    tree = _with_networks([name], name)
    assert check_params(tree, source="p").networks == (name,)
    assert schema_errors(tree) == []
    assert (base_architecture(name), replicate_number(name)) == (f"timm/{model}", number or 0)
    assert is_timm(name)
    data = DataPaths()
    for path in (data.extractor(name), data.features(name), data.points(name)):
        assert path == Path(os.path.normpath(path))
        assert path.parts[2] == "timm"


def test_every_name_of_timm_is_a_name_here() -> None:
    names = [f"timm/{name}" for name in (*timm.list_models(), *timm.list_pretrained())]
    assert check_params(_with_networks(names, names[0]), source="p").networks == tuple(names)


def test_no_network_has_the_files_of_another() -> None:
    """`timm/x.test` would have the features of the test images of `timm/x`."""
    data, files = DataPaths(), ["test", "pca", "maps", "confidence", "probabilities", "provenance"]
    assert data.features("timm/x.test") == data.features("timm/x", "test")
    for ending in files:
        for name in (f"timm/x.{ending}", f"timm/x.{ending}-r1"):
            with pytest.raises(InputError):
                check_params(_with_networks([name], name), source="p")
            assert schema_errors(_with_networks([name], name)) != []


def test_weights_and_revisions_fit_the_networks() -> None:
    tree = _with_networks(["timm/x", "resnet18", "timm/x-r1"], "timm/x")
    tree["finetune"] |= {"weights": "pretrained", "revisions": {"timm/x": "0" * 40}}
    assert check_params(tree, source="p").finetune.revisions == {"timm/x": "0" * 40}
    assert schema_errors(tree) == []
    for key, changes in (
        ("finetune.weights", {"weights": "imagenet"}),
        ("finetune.weights", {"stem": "cifar"}),
        ("finetune.revisions", {"revisions": {"timm/y": "0" * 40}}),
        ("finetune.revisions.timm/x", {"revisions": {"timm/x": "main"}}),
    ):
        with pytest.raises(InputError) as raised:
            check_params({**tree, "finetune": {**tree["finetune"], **changes}}, source="p")
        assert key_within(raised.value, "p") == key


@pytest.mark.parametrize(
    "name", ["timm/", "timm/X", "timm/../x", "timm/a/b", "timm/.x", "timm/x.", "timm/x.y.z", "timm/x-r0", "TIMM/x"]
)
def test_names_that_are_no_safe_path_are_refused(name: str) -> None:
    with pytest.raises(InputError) as raised:
        check_params(_with_networks([name], "resnet18"), source="p")
    assert key_within(raised.value, "p") == "networks.0"
    assert schema_errors(_with_networks([name], "resnet18")) != []


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
