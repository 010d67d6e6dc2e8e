"""Compare the time of a step of Muon with that of timm's Muon.

timm iterates on the wide matrices in bfloat16, one by one. Both take turns on the gradients of a network. Each ratio is
taken within one round. On a CPU without bfloat16 instructions one step of timm takes a minute.

    python -m benchmarks.optimizer_speed --image-size 32
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from timm.optim.muon import Muon as TimmMuon
from torch import nn
from torch.optim import Optimizer

from benchmarks.measuring import print_results, ratio_spread, seconds_of
from benchmarks.printing import Row
from pipeline.models import build_network
from pipeline.optim import parameter_groups
from pipeline.optim.muon import Muon

_IMAGES, _CLASSES = 32, 10


def backward(model: nn.Module, image_size: int, device: torch.device) -> None:
    """Compute gradients of random images; small images give zero for kernel taps that only see padding."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(_IMAGES, 3, image_size, image_size, generator=generator).to(device)
    labels = torch.randint(0, _CLASSES, (_IMAGES,), generator=generator).to(device)
    F.cross_entropy(model(images.contiguous(memory_format=torch.channels_last)), labels).backward()


def main() -> None:
    """Print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--stem", choices=("imagenet", "cifar"), default="imagenet")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_network(arguments.network, _CLASSES, stem=arguments.stem, seed=0).to(device)
    model.to(memory_format=torch.channels_last).train()
    backward(model, arguments.image_size, device)
    outer = model.input_layer, model.output_layer
    groups = parameter_groups(model, weight_decay=5e-4, decay_norm_and_bias=False, outer_layers=outer)
    ours = Muon(groups, 1e-3, momentum=0.95, nesterov=True)
    theirs = TimmMuon(model.parameters(), lr=1e-3, momentum=0.95, nesterov=True, weight_decay=5e-4)

    def seconds(optimizer: Optimizer) -> float:
        return seconds_of(optimizer.step)

    seconds(theirs), seconds(ours)
    pairs = [(seconds(theirs), seconds(ours)) for _ in range(arguments.rounds)]
    row: Row = {
        "network": arguments.network,
        "image_size": arguments.image_size,
        "timm_s": round(float(np.median([theirs for theirs, _ in pairs])), 4),
        "ours_s": round(float(np.median([ours for _, ours in pairs])), 4),
        **ratio_spread([theirs / ours for theirs, ours in pairs]),
    }
    print_results(arguments, [row])


if __name__ == "__main__":
    main()
