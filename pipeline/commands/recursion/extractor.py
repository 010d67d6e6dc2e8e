"""The extractor of the images kept, as one of all training images."""

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.arrays import open_array, write_array
from pipeline.artifacts.tables import read_parquet
from pipeline.commands.recursion.kept_images import link
from pipeline.config.finetune import FinetuneConfig
from pipeline.config.networks import replicate_of
from pipeline.datasets.splits import draw_folds
from pipeline.paths import DataPaths


def hand_over_extractor(
    kept: DataPaths, everything: DataPaths, network: str, keep: NDArray[np.bool_], config: FinetuneConfig
) -> None:
    """Put what was trained in `kept` where `extract` looks for it in `everything`.

    Without folds they are links. With folds the images that were not kept get one too: no network of any fold
    has seen them, so they take the part that they would have in a draw over all images.

    Args:
        keep: (N,), the training images of `everything` that are those of `kept`.
    """
    link(everything.finetune_metrics(network), kept.finetune_metrics(network))
    confidence = np.full(len(keep), np.nan, dtype=np.float32)
    confidence[keep] = open_array(kept.training_confidence(network), dtype=np.float32, ndim=1, rows=int(keep.sum()))
    write_array(everything.training_confidence(network), confidence)
    if config.folds == 1:
        link(everything.extractor(network), kept.extractor(network))
        return
    # Imported here: torch takes seconds, and all else that needs it is in the stages' own processes.
    from pipeline.training.weights import load_folded, write_with_folds

    images = read_parquet(everything.manifest("train"), ["path", "label", "sha256"])
    paths, contents = (images[name].to_pylist() for name in ("path", "sha256"))
    seed = config.seed + replicate_of(network)
    folds = draw_folds(paths, images["label"].to_numpy(), config.folds, seed=seed, contents=contents)
    trained = load_folded(kept.extractor(network)).folds
    assert trained is not None, "finetune has made folds"
    folds[keep] = trained
    write_with_folds(kept.extractor(network), everything.extractor(network), folds)
