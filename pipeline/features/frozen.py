"""Networks with a frozen backbone: extract features once, and fit linear heads on them."""

import copy
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline import distributed
from pipeline.artifacts.prepared import ImageSource
from pipeline.distributed import World
from pipeline.errors import explain_out_of_memory
from pipeline.features.extract import extract_features
from pipeline.features.linear import LinearHead, fit_head
from pipeline.models import build_network, feature_dimension, set_head
from pipeline.models.network import Network
from pipeline.run_log import Progress
from pipeline.training.settings import TrainSettings
from pipeline.training.weights import TrainedNetwork


def fit_frozen_networks(
    settings: TrainSettings,
    initialize: Callable[[Network], None],
    images: ImageSource,
    labels: NDArray[np.int64],
    train_masks: Sequence[NDArray[np.bool_]],
    *,
    batch_size: int,
    world: World,
    progress: Progress,
) -> Iterator[tuple[Network, LinearHead]]:
    """Yield a network and its head for each of `train_masks`: one backbone, and a head fitted on the masked rows.

    All ranks yield the same networks.

    Args:
        settings: only network, stem, number of classes, image format and seed are used.
        initialize: sets the weights of the backbone.
        labels: (N,).
        train_masks: (N,) bool each, with images of every class.
        batch_size: images per forward pass.
        progress: counts this rank's images.

    Raises:
        InputError: the backbone gives features that are not finite.
        OutOfMemory: a forward pass does not fit the memory.
    """
    model = build_network(settings.network, settings.n_classes, stem=settings.stem, seed=settings.seed)
    initialize(model)
    model = model.to(world.device).to(memory_format=torch.channels_last).eval()
    names = tuple(str(label) for label in range(settings.n_classes))
    backbone = TrainedNetwork(model=model, network=settings.network, class_names=names, format=settings.format)
    # Zero in the rows of other ranks, so that the sum over ranks has all rows.
    local = np.zeros((len(images), feature_dimension(settings.network)), dtype=np.float32)
    unused = np.empty((len(images), settings.n_classes), dtype=np.float32)
    with explain_out_of_memory(
        f"finetune.eval_batch_size: a pass of {batch_size} images does not fit the memory; lower it"
    ):
        extract_features([backbone], images, local, unused, batch_size=batch_size, world=world, progress=progress)
    features = distributed.all_reduce_sum_(torch.from_numpy(local).to(world.device)).cpu().numpy()
    for rows in train_masks:
        head = distributed.broadcast_object(fit_head(features[rows], labels[rows]) if world.is_main else None)
        assert head is not None
        network = copy.deepcopy(model)
        set_head(network, torch.from_numpy(head.weight), torch.from_numpy(head.bias))
        yield network, head
