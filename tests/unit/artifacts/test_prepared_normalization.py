"""The normalization of a prepared data set."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from pipeline.artifacts.prepared import load_prepared
from pipeline.datasets.resident import Normalization
from tests.fixtures.images import encode, run_prepare, write_folder


def test_a_channel_that_is_equal_in_all_images_becomes_zero(tmp_path: Path) -> None:
    """Images of a microscope may have one color."""
    files = {}
    for seed in range(12):
        pixels = np.full((8, 8, 3), (0, 7, 77), dtype=np.uint8)
        pixels[..., 0] = np.random.default_rng(seed).integers(0, 256, (8, 8))
        files[f"{'train' if seed < 8 else 'test'}/{'ab'[seed % 2]}/{seed}.png"] = encode(Image.fromarray(pixels))
    prepared = load_prepared(run_prepare(tmp_path, write_folder(tmp_path / "images", files)), folder=None)
    normalize = Normalization(prepared.mean, prepared.std, width=8, device=torch.device("cpu"))
    batch = normalize(torch.from_numpy(np.array(prepared.train.images)))
    assert batch.isfinite().all()
    assert batch[:, 0].abs().max() > 1
    assert batch[:, 1:].abs().max() < 1e-6
