"""Features of images in memory, by a pretrained network."""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsieve.looking.networks import DEFAULT_NETWORK, SMALL_NETWORKS, PretrainedNetwork, check_network
from batchsieve.looking.sources import Images, checked_images, open_arrays, read_pictures
from pipeline.distributed import join_process_group
from pipeline.errors import InputError
from pipeline.run_log import RunLog


def image_features(
    images: Images, labels: ArrayLike, *, network: str | None, weights: Path | str | None
) -> NDArray[np.float32]:
    """Return features (N, D) of N images by a network that is not trained on them.

    Args:
        images: uint8 (N, H, W, 3), RGB, or PIL images.
        labels: (N,) integers or strings.
        network: of `look`, pretrained; None for its default.
        weights: a file; None for those of an installed package, or published ones.

    Raises:
        InputError: naming `images`, `network` or `weights`.
    """
    name, file = network or DEFAULT_NETWORK, None if weights is None else Path(weights)
    check_network(name, file)
    if name in SMALL_NETWORKS:
        raise InputError(f"network: {name} has no pretrained weights; give {DEFAULT_NETWORK}, or call look")
    images = checked_images(images, np.size(np.asarray(labels)))  # before weights are read or downloaded
    with join_process_group("auto") as world:
        extractor = PretrainedNetwork(name, file, world)
        opened, _ = open_arrays(images, labels, extractor.side)
        return np.asarray(read_pictures(opened, extractor.encode, log=RunLog.silent()).encoded, dtype=np.float32)
