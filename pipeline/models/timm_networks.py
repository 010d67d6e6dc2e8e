"""Networks of timm, by the name `timm/NAME` or `timm/NAME.TAG`: a backbone, and a linear layer for the classes.

The tag names the weights and the format of images that belongs to them; without one it is timm's default.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import InputError, lacks_resources, long_reason
from pipeline.models.layers import GroupedBatchNorm2d, convert_batch_norm
from pipeline.models.network import Network
from pipeline.models.weight_names import as_timm_names

TIMM_PREFIX = "timm/"
_INTERPOLATIONS = ("bicubic", "bilinear")


@dataclass(frozen=True, kw_only=True)
class TimmFormat:
    """The image format of a network of timm and the source of its weights, from timm's `pretrained_cfg`.

    Attributes:
        name: with the prefix and the tag, if there are weights.
        input_size: side of the input in pixels.
        interpolation: method that resizes images to it, such as `bicubic`.
        mean, std: per channel, in units of 0 to 1.
        hub_id: repository on the Hugging Face hub; None without published weights.
        hub_files: names that the file of weights may have there, the first one preferred.
        license: of the weights, if timm states it.
    """

    name: str
    input_size: int
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    hub_id: str | None
    hub_files: tuple[str, ...]
    license: str | None


@cache
def timm_format(network: str) -> TimmFormat:
    """Return the format of `timm/NAME` or `timm/NAME.TAG`.

    Raises:
        InputError: timm has no such model or tag, or its input is not a square image of three channels, or is resized
            in a way that torch lacks.
    """
    from timm.data.config import resolve_data_config  # seconds to import; few runs need it
    from timm.models import get_pretrained_cfg, is_model, list_pretrained

    name = network.removeprefix(TIMM_PREFIX)
    architecture, _, _ = name.partition(".")
    if not is_model(architecture):
        raise InputError(f"networks: {network} is not a model of timm {metadata.version('timm')}{_similar(name)}")
    try:
        config = get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError:
        tags = ", ".join(list_pretrained(f"{architecture}.*")) or "none"
        raise InputError(
            f"networks: {network} is not among the weights of timm {metadata.version('timm')}; those of {architecture} "
            f"are: {tags}"
        ) from None
    assert config is not None
    data = resolve_data_config(pretrained_cfg=config.to_dict())
    channels, height, width = data["input_size"]
    if channels != 3 or height != width:
        raise InputError(
            f"networks: {network} reads images of {channels}x{height}x{width}; use a network that reads three channels "
            "of a square"
        )
    if data["interpolation"] not in _INTERPOLATIONS:
        raise InputError(
            f"networks: {network} expects images resized by {data['interpolation']}, which torch cannot do; use a "
            f"network with one of {', '.join(_INTERPOLATIONS)}"
        )
    has_weights = bool(config.hf_hub_id)
    own_file = config.hf_hub_filename
    return TimmFormat(
        name=f"{TIMM_PREFIX}{architecture}{f'.{config.tag}' if has_weights and config.tag else ''}",
        input_size=height,
        interpolation=data["interpolation"],
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
        hub_id=config.hf_hub_id,
        hub_files=(own_file,) if own_file else ("model.safetensors", "pytorch_model.bin"),
        license=config.license,
    )


def _similar(name: str) -> str:
    from timm.models import list_models, list_pretrained

    similar = difflib.get_close_matches(name, [*list_models(), *list_pretrained()], n=3, cutoff=0.5)
    if not similar:
        return "; timm.list_models() names all"
    return f"; did you mean {' or '.join(TIMM_PREFIX + other for other in similar)}?"


class TimmNetwork(Network):
    """A model of timm without its classifier, and a linear layer.

    Images of another size than the model's are resized to it, without cropping.
    """

    def __init__(self, backbone: nn.Module, n_features: int, n_classes: int, image_format: TimmFormat) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(n_features, n_classes)
        self._side, self._mode = image_format.input_size, image_format.interpolation

    @property
    def input_layer(self) -> nn.Module:
        """The first convolution, or the first linear layer of a model without any."""
        layers = [module for module in self.backbone.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
        return next((layer for layer in layers if isinstance(layer, nn.Conv2d)), layers[0])

    @property
    def output_layer(self) -> nn.Module:
        """The classifier."""
        return self.head

    def features(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, D), the pooled output of the backbone."""
        if images.shape[2:] != (self._side, self._side):
            images = F.interpolate(images, (self._side, self._side), mode=self._mode, antialias=True)
            images = images.contiguous(memory_format=torch.channels_last)
        features: Tensor = self.backbone(images)
        return features

    def classify(self, features: Tensor) -> Tensor:
        """(N, D) -> (N, n_classes) logits."""
        logits: Tensor = self.head(features)
        return logits


def build_timm_network(network: str, n_classes: int) -> TimmNetwork:
    """Build a network with weights sampled from torch's default generator.

    Its BatchNorm layers become `GroupedBatchNorm2d`.

    Raises:
        InputError: as `timm_format`.
    """
    backbone = _with_grouped_batch_norm(_build_backbone(network))
    return TimmNetwork(backbone, timm_feature_dimension(network), n_classes, timm_format(network))


@cache
def timm_feature_dimension(network: str) -> int:
    """Return the dimension D of the features of a network of timm.

    Raises:
        InputError: as `timm_format`.
    """
    with torch.device("meta"):
        return int(_build_backbone(network).head_hidden_size)


def load_timm_backbone(model: TimmNetwork, network: str, state: Mapping[str, Tensor], *, source: str) -> None:
    """Copy the weights of a model of timm, with any number of classes, into the backbone of `model`.

    timm translates names of original publications for many of its models; those of EfficientNet-PyTorch are
    translated here.

    Args:
        state: the tensors of the file, with or without a classifier.
        source: name of the weights in errors.

    Raises:
        InputError: a tensor is missing, unknown, of another shape, sparse, or holds NaN or infinity.
    """
    for name, tensor in state.items():
        if tensor.layout != torch.strided or not bool(torch.isfinite(tensor.float()).all()):
            raise InputError(f"{source}: tensor {name} is sparse or holds NaN or infinity; use dense, finite weights")
    own = model.backbone.state_dict()
    weights = as_timm_names(state, own)
    n_classes, overlay = _classes_of(network, weights)
    try:
        with torch.random.fork_rng(devices=[]):
            complete = _create(
                network,
                pretrained=True,
                num_classes=n_classes,
                pretrained_cfg_overlay={**overlay, "state_dict": weights},
            )
            complete.reset_classifier(0)
    except Exception as error:
        # Each model of timm translates weights with code of its own, which may raise any error.
        if lacks_resources(error):
            raise
        reason = long_reason(error)
        raise InputError(
            f"{source}: are not weights of {network} ({reason}); use weights of the same network"
        ) from None
    loaded = complete.state_dict()
    for name, tensor in own.items():
        if name not in loaded or loaded[name].shape != tensor.shape:
            raise InputError(f"{source}: gives no tensor {name} of {network}; use weights of the same network")
    model.backbone.load_state_dict({name: loaded[name] for name in own})


def check_trainable(model: nn.Module, network: str) -> None:
    """Check that a training step cannot depend on how its batch is split.

    Every layer with batch statistics or random masks must be one of this project, which is independent of the split.

    Raises:
        InputError: naming another layer with batch statistics or random masks.
    """
    norms = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
    for name, module in model.named_modules():
        keeps_statistics = isinstance(module, norms) and module.track_running_stats
        if (keeps_statistics and not isinstance(module, GroupedBatchNorm2d)) or _samples_masks(module):
            raise InputError(
                f"networks: {network} has the layer {name}, a {type(module).__name__}, which cannot be trained here; "
                "set finetune.trainable: head, or use another network"
            )


def _samples_masks(module: nn.Module) -> bool:
    """Return whether a layer drops values at random in training; timm has classes of its own for it."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    rates = (getattr(module, name, None) for name in ("drop_prob", "prob", "drop_rate"))
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


class _GroupedBatchNormAct2d(GroupedBatchNorm2d):
    """timm's BatchNorm with an activation."""

    def __init__(self, num_features: int, drop: nn.Module, act: nn.Module) -> None:
        super().__init__(num_features)
        self.drop, self.act = drop, act

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in torch's base class
        """(N, C, H, W) -> the same shape."""
        activated: Tensor = self.act(self.drop(super().forward(input)))
        return activated


def _create(network: str, **options: Any) -> Any:
    from timm import create_model

    return create_model(timm_format(network).name.removeprefix(TIMM_PREFIX), **options)


def _build_backbone(network: str) -> Any:
    return _create(network, pretrained=False, num_classes=0)


def _with_grouped_batch_norm(model: nn.Module) -> nn.Module:
    """Replace BatchNorm of images in place; parameters and buffers stay the same tensors."""
    from timm.layers.norm_act import BatchNormAct2d

    child: Any
    for name, child in model.named_children():
        if type(child) in (nn.BatchNorm2d, BatchNormAct2d) and child.affine and child.track_running_stats:
            grouped = (
                _GroupedBatchNormAct2d(child.num_features, child.drop, child.act)
                if isinstance(child, BatchNormAct2d)
                else GroupedBatchNorm2d(child.num_features)
            )
            setattr(model, name, convert_batch_norm(grouped, child))
        else:
            _with_grouped_batch_norm(child)
    return model


def _classes_of(network: str, weights: Mapping[str, Tensor]) -> tuple[int, dict[str, Any]]:
    """Return the classes of a file's classifier, 0 without one, and the corrections of timm's configuration for it."""
    from timm.models import get_pretrained_cfg

    config = get_pretrained_cfg(timm_format(network).name.removeprefix(TIMM_PREFIX))
    assert config is not None
    layers = (config.classifier,) if isinstance(config.classifier, str) else tuple(config.classifier or ())
    sizes = [len(weights[f"{layer}.weight"]) for layer in layers if f"{layer}.weight" in weights]
    published = config.num_classes + (config.label_offset or 0)
    if not sizes:
        # Names of another publication, or a file without classifier.
        renamed = any(name.startswith(layer) for layer in layers for name in weights)
        return (config.num_classes, {}) if renamed or not layers else (0, {"num_classes": 0, "label_offset": 0})
    if sizes[0] == published:
        return config.num_classes, {}
    return sizes[0], {"num_classes": sizes[0], "label_offset": 0}
