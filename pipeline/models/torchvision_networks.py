"""Classifiers of torchvision, by the name `torchvision/NAME`, for studies: fresh weights, at any size of images.

BatchNorm, dropout and stochastic depth become this project's layers, so that a batch can be split in any way.
"""

import difflib
from functools import cache, lru_cache

import torch
from torch import Tensor, nn

from pipeline.errors import InputError, short_reason
from pipeline.models.layers import GroupedBatchNorm2d, KeyedDropout, KeyedStochasticDepth, convert_batch_norm
from pipeline.models.network import Network

TORCHVISION_PREFIX = "torchvision/"

# One output, and fresh weights without a warning.
_OPTIONS = {name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")}


class TorchvisionNetwork(Network):
    """A classifier of torchvision without its last linear layer, and that layer.

    Args:
        network: name with the prefix, for messages.
        model: whose last linear layer gives the logits; it is taken out.
    """

    def __init__(self, network: str, model: nn.Module) -> None:
        super().__init__()
        self._network = network
        name, self.head = _last_linear(network, model)
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, nn.Identity())
        self.backbone = _with_own_layers(model)

    @property
    def input_layer(self) -> nn.Module:
        """The first convolution."""
        return next(module for module in self.backbone.modules() if isinstance(module, nn.Conv2d))

    @property
    def output_layer(self) -> nn.Module:
        """The classifier."""
        return self.head

    def features(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, D), the input of the last linear layer.

        Raises:
            InputError: the network does not take images of this size.
        """
        if not torch.compiler.is_compiling():
            check_side(self._network, images.shape[2])
        features: Tensor = self.backbone(images)
        return features

    def classify(self, features: Tensor) -> Tensor:
        """(N, D) -> (N, n_classes) logits."""
        logits: Tensor = self.head(features)
        return logits


def build_torchvision_network(network: str, n_classes: int) -> TorchvisionNetwork:
    """Build a network with weights sampled from torch's default generator.

    Raises:
        InputError: torchvision has no such classifier, or it does not end in a linear layer.
    """
    return TorchvisionNetwork(network, _build(network, n_classes))


@cache
def torchvision_feature_dimension(network: str) -> int:
    """Return the dimension D of the features.

    Raises:
        InputError: as `build_torchvision_network`.
    """
    with torch.device("meta"):
        return int(_last_linear(network, _build(network, 2))[1].in_features)


@lru_cache(maxsize=64)
def check_side(network: str, side: int) -> None:
    """Check, without computing, that a network takes square images of `side` pixels.

    Raises:
        InputError: they are too small, or not of the only size that it takes.
    """
    with torch.device("meta"), torch.no_grad():
        try:
            _build(network, 2).eval()(torch.empty(2, 3, side, side))
        except (RuntimeError, AssertionError, ValueError) as error:
            reason = short_reason(error)
            raise InputError(
                f"models: {network} does not take images of {side} pixels ({reason}); set a larger crop_size and "
                "prepare.image_size, or use another model"
            ) from None


def _build(network: str, n_classes: int) -> nn.Module:
    from torchvision import models  # importing it takes a second

    name = network.removeprefix(TORCHVISION_PREFIX)
    names = models.list_models(module=models)
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3)
        hint = (
            f"did you mean {' or '.join(TORCHVISION_PREFIX + other for other in close)}?" if close else "see its docs"
        )
        raise InputError(f"models: {network} is not a classifier of torchvision; {hint}")
    device = torch.get_default_device()
    # RegNets compute their widths by tensors, which have no values on the device `meta`.
    with torch.device("cpu" if name.startswith("regnet") else device):
        model: nn.Module = models.get_model(name, weights=None, num_classes=n_classes, **_OPTIONS.get(name, {}))
    return model.to(device)


def _last_linear(network: str, model: nn.Module) -> tuple[str, nn.Linear]:
    """Return name and layer; every classifier of torchvision that has one ends in it."""
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise InputError(f"models: {network} does not end in a linear layer; use another model")
    return linear[-1]


def _with_own_layers(model: nn.Module) -> nn.Module:
    """Replace layers that depend on how a batch is split; parameters and buffers stay the same tensors."""
    from torchvision.ops import StochasticDepth

    for layer, (name, module) in enumerate(list(model.named_modules())):
        own: nn.Module
        if type(module) is nn.BatchNorm2d:
            own = convert_batch_norm(GroupedBatchNorm2d(module.num_features), module)
        elif isinstance(module, StochasticDepth):
            # A mask for each sample, as in all networks of torchvision.
            assert module.mode == "row", module.mode
            own = KeyedStochasticDepth(module.p, layer=layer)
        elif isinstance(module, nn.Dropout):
            own = KeyedDropout(module.p, layer=layer)
        else:
            continue
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, own)
    return model
