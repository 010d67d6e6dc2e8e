"""Networks of timm: what they compute is what timm computes, and their BatchNorm is that of all networks here."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from pipeline.config.extractors import TIMM_PREFIX as PREFIX_IN_PARAMS
from pipeline.errors import InputError
from pipeline.models import build_network, feature_dimension, full_name, is_timm, set_batch_context, timm_networks
from pipeline.models.timm_networks import TIMM_PREFIX, TimmNetwork, check_trainable, load_timm_backbone, timm_format
from tests.fixtures.slow import quick_first

_SIDE = 160
# BatchNorm with and without activation, LayerNorm, tokens, and a head with hidden layers.
_FAMILIES = ("test_resnet", "test_efficientnet", "test_vit", "test_convnext", "mobilenetv3_small_050")
_SMALL = "timm/test_efficientnet"


def _build(network: str = _SMALL, n_classes: int = 4, seed: int = 0) -> TimmNetwork:
    model = build_network(network, n_classes, stem="imagenet", seed=seed)
    assert isinstance(model, TimmNetwork)
    return model


def _images(n: int = 4, side: int = _SIDE) -> Tensor:
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(1))


def _timm_model(name: str, n_classes: int = 1000) -> nn.Module:
    """Return a model of timm with statistics of BatchNorm that are not those of a fresh one."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model: nn.Module = timm.create_model(name, num_classes=n_classes)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    return model.eval()


def test_the_prefix_is_that_of_params_yaml() -> None:
    assert TIMM_PREFIX == PREFIX_IN_PARAMS


@pytest.mark.parametrize("name", _FAMILIES)
def test_features_are_those_of_timm_before_its_classifier(name: str) -> None:
    theirs, own = _timm_model(name), _build(f"timm/{name}")
    load_timm_backbone(own, f"timm/{name}", theirs.state_dict(), source="theirs")
    side = timm_format(f"timm/{name}").input_size
    # In float64, where sums of 10^4 numbers are off by 10^4 * 2^-53.
    images, theirs, own = _images(2, side).double(), theirs.double(), own.double()
    with torch.inference_mode():
        expected = theirs.forward_head(theirs.forward_features(images), pre_logits=True)  # type: ignore[operator]
        features = own.eval().features(images)
        assert features.shape == (2, feature_dimension(f"timm/{name}"))
        torch.testing.assert_close(features, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(own(images), own.head(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", quick_first(2, _FAMILIES))
def test_batch_norm_of_groups_is_that_of_separate_batches(name: str) -> None:
    model = _build(f"timm/{name}").double().train()
    images, keys = _images(6, timm_format(f"timm/{name}").input_size).double(), torch.arange(6)
    set_batch_context(model, group_sizes=(2, 4), keys=keys)
    together = model.features(images)
    separate = []
    for rows in (slice(0, 2), slice(2, 6)):
        set_batch_context(model, group_sizes=(len(images[rows]),), keys=keys[rows])
        separate.append(model.features(images[rows]))
    torch.testing.assert_close(together, torch.cat(separate), rtol=1e-10, atol=1e-10)


def test_training_keeps_running_statistics() -> None:
    model = _build().train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(_images(2))
    assert before.keys() == dict(model.named_buffers()).keys()
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_images_are_resized_to_the_networks_input_without_cropping() -> None:
    model, images = _build().eval(), _images(2, 32)
    resized = torch.nn.functional.interpolate(images, (_SIDE, _SIDE), mode="bicubic", antialias=True)
    with torch.inference_mode():
        torch.testing.assert_close(model.features(images), model.features(resized))


def test_seeds_decide_weights_and_the_global_generator_stays() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, same, other = (_build(seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_normalization_and_size_are_those_of_the_weights() -> None:
    """timm's documentation of three sets of weights."""
    lite = timm_format("timm/tf_efficientnet_lite0")
    assert (lite.name, lite.input_size, lite.interpolation) == ("timm/tf_efficientnet_lite0.in1k", 224, "bicubic")
    assert (lite.mean, lite.std, lite.hub_id) == ((0.5,) * 3, (0.5,) * 3, "timm/tf_efficientnet_lite0.in1k")
    assert timm_format("timm/resnet18.a1_in1k").mean == (0.485, 0.456, 0.406)
    assert timm_format("timm/convnext_tiny.in12k_ft_in1k_384").input_size == 384


def test_a_name_with_its_tag_says_which_weights() -> None:
    assert full_name("timm/resnet18") == "timm/resnet18.a1_in1k"
    assert full_name("timm/resnet18.tv_in1k") == "timm/resnet18.tv_in1k"
    assert full_name("timm/mixer_s16_224") == "timm/mixer_s16_224", "without published weights"
    assert full_name("resnet18") == "resnet18"
    assert not is_timm("resnet18")


@pytest.mark.parametrize(
    ("network", "names"),
    [
        ("timm/tf_eficientnet_lite0", "timm/tf_efficientnet_lite0"),
        ("timm/resnet18.no_such_tag", "resnet18.a1_in1k"),
        ("timm/qqqqqqqq", "timm.list_models()"),
    ],
)
def test_unknown_names_are_refused_with_similar_ones(network: str, names: str) -> None:
    with pytest.raises(InputError) as raised:
        timm_format(network)
    assert raised.value.key == "networks"
    assert network in str(raised.value)
    assert names in str(raised.value)


def test_a_network_whose_images_torch_cannot_resize_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = timm.data.config.resolve_data_config

    def with_lanczos(**given: Any) -> dict[str, Any]:
        return {**resolve(**given), "interpolation": "lanczos"}

    monkeypatch.setattr(timm.data.config, "resolve_data_config", with_lanczos)
    with pytest.raises(InputError) as raised:
        timm_format.__wrapped__("timm/resnet18")  # without the cache
    assert raised.value.key == "networks"
    assert "lanczos" in str(raised.value)


def test_weights_with_any_classifier_or_none_are_loaded() -> None:
    theirs = _timm_model("test_efficientnet", 7)
    headless = {name: tensor for name, tensor in theirs.state_dict().items() if not name.startswith("classifier")}
    for state in (theirs.state_dict(), headless):
        model = _build()
        head = model.head.weight.clone()
        load_timm_backbone(model, _SMALL, state, source="theirs")
        own = model.backbone.state_dict()
        assert own.keys() == headless.keys()
        assert all(torch.equal(own[name], headless[name]) for name in own)
        assert torch.equal(model.head.weight, head)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda state: state.pop("bn1.weight"), "bn1.weight"),
        (lambda state: state.update({"extra": torch.zeros(2)}), "extra"),
        (lambda state: state.update({"conv_stem.weight": torch.zeros(1)}), "conv_stem.weight"),
        (lambda state: state.update({"bn1.weight": state["bn1.weight"] / 0}), "NaN"),
    ],
)
@pytest.mark.parametrize("n_classes", [7, 1000])
def test_weights_of_another_network_are_refused(change: object, word: str, n_classes: int) -> None:
    state = dict(_timm_model("test_efficientnet", n_classes).state_dict())
    assert callable(change)
    change(state)
    with pytest.raises(InputError) as raised:
        load_timm_backbone(_build(), _SMALL, state, source="weights.pt")
    assert raised.value.key == "weights.pt"
    assert word in str(raised.value)


def test_a_network_that_depends_on_a_batchs_split_is_only_frozen() -> None:
    check_trainable(_build(), _SMALL)
    for model, layer in (
        (_build("timm/levit_128s"), "BatchNorm1d"),
        (_build("timm/nest_tiny"), "DropPath"),
        (_build("timm/ghostnet_050"), "layer backbone, a GhostNet"),  # by a function, not by a layer
        (nn.Sequential(nn.Dropout(0.0), nn.Dropout(0.1)), "layer 1, a Dropout"),
    ):
        with pytest.raises(InputError) as raised:
            check_trainable(model, "timm/x")
        assert layer in str(raised.value)
        assert "trainable: head" in str(raised.value)


def test_names_of_efficientnet_pytorch_are_translated() -> None:
    """Its blocks are in one row, and the first layers of a block depend on whether it widens the features."""
    theirs = _timm_model("tf_efficientnet_lite0")
    blocks = [f"{i}.{j}" for i, stage in enumerate(theirs.blocks) for j in range(len(stage))]  # type: ignore[arg-type]
    plain = {"conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}
    widening = {
        "conv_pw": "_expand_conv", "bn1": "_bn0", "conv_dw": "_depthwise_conv", "bn2": "_bn1",
        "conv_pwl": "_project_conv", "bn3": "_bn2",
    }  # fmt: skip
    outer = {
        "conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1", "classifier": "_fc",
    }  # fmt: skip
    renamed = {}
    for name, tensor in theirs.state_dict().items():
        *path, layer, kind = name.split(".")
        if path:
            block = ".".join(path[1:])
            number = blocks.index(block)
            renamed[f"_blocks.{number}.{(widening if number else plain)[layer]}.{kind}"] = tensor
        else:
            renamed[f"{outer[layer]}.{kind}"] = tensor
    assert len(renamed) == len(theirs.state_dict())
    model = _build("timm/tf_efficientnet_lite0")
    load_timm_backbone(model, "timm/tf_efficientnet_lite0", renamed, source="renamed")
    state = theirs.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.backbone.state_dict().items())


def test_too_little_memory_is_no_fault_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    state = _timm_model("test_efficientnet", 7).state_dict()

    def fail(*_: object, **__: object) -> None:
        raise MemoryError("std::bad_alloc")

    model = _build()
    monkeypatch.setattr(timm_networks, "_create", fail)
    with pytest.raises(MemoryError):
        load_timm_backbone(model, _SMALL, state, source="weights.pt")
