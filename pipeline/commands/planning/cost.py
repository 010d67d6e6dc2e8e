"""What each stage takes: measured speeds for what torch does, calibrated formulas for the rest.

The constants are seconds of one core of an AMD EPYC (numpy 2.4, openTSNE 1.0.4, scikit-learn 1.9,
faiss 1.15; maps of 360 to 12,000 points, PCA and neighbors of 10,000 to 400,000, and 60,000 JPEG
files), rounded; other machines differ. DVC keeps each output a second time in its cache, so disk
counts twice.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

from pipeline.batching import merge_micro_batches, rank_slices, worker_slices
from pipeline.commands.planning.size import DataSize
from pipeline.commands.planning.speed import Speed
from pipeline.config.extractors import ExtractConfig
from pipeline.config.prepare import PrepareConfig
from pipeline.config.reduce import ReduceConfig
from pipeline.models import feature_dimension
from pipeline.reduction.landmarks import landmark_count
from pipeline.training.eval_weights import statistics_batches
from pipeline.training.memory import CPU_MICRO_BATCH
from pipeline.training.settings import TrainSettings

# Starting Python, importing, and DVC's bookkeeping, per stage.
_START_S = 2.0
_START_WITH_TORCH_S = 4.5
_BASE_MEMORY = 0.25e9
_BASE_MEMORY_WITH_TORCH = 0.9e9

_DECODE_FILE_S = 2.5e-4
_READ_ARRAY_S = 1e-4
_COPY_BYTES_PER_S = 1e9
# Logistic regression of 50 iterations, per image, feature and class; products and decomposition of an alignment.
_HEAD_S = 2.5e-8
_PRODUCT_S = 1e-10
_ROTATION_S = 2e-9
_PASSES = 4  # over the features: to check them, and for the mean, the axes and the projection
_TRANSFORM_POINT_S = 1e-4  # of one point among landmarks
# As in features.extract.
_CHUNK_BYTES = 256 * 2**20
_CACHED_TWICE = 2


@dataclass(frozen=True, kw_only=True)
class PlannedCost:
    """Wall seconds, peak bytes of memory in one process, bytes of disk."""

    seconds: float
    memory: float
    disk: float


def total_cost(costs: Collection[PlannedCost]) -> PlannedCost:
    """One after another: times and disk add up, memory does not."""
    return PlannedCost(
        seconds=sum(cost.seconds for cost in costs),
        memory=max((cost.memory for cost in costs), default=0.0),
        disk=sum(cost.disk for cost in costs),
    )


def prepare_cost(config: PrepareConfig, size: DataSize) -> PlannedCost:
    """Reading, hashing and resizing every image; a download comes on top."""
    n = size.n_train + size.n_test
    each = size.decode_s or (_DECODE_FILE_S if config.dataset == "image_folder" else _READ_ARRAY_S)
    return PlannedCost(
        seconds=_START_S + n * each,
        memory=_BASE_MEMORY + n * 300,
        disk=_CACHED_TWICE * n * (3 * config.stored_size**2 + 150),
    )


def micro_batch_sizes(settings: TrainSettings, workers: int) -> dict[int, list[int]]:
    """By batch size, images of the passes that one of `workers` processes makes in an optimizer step, in order."""
    return {size: _micro_batch_sizes(size, settings, workers) for size in settings.batch_sizes.unique}


def _micro_batch_sizes(batch_size: int, settings: TrainSettings, workers: int) -> list[int]:
    everyones = worker_slices(batch_size, settings.simulated_workers, settings.bn_group)
    parts = rank_slices(everyones, rank=0, ranks=workers)
    if settings.reduction == "ddp":
        parts = merge_micro_batches(parts, max(CPU_MICRO_BATCH, *(size for part in parts for size in part.group_sizes)))
    return [part.size for part in parts]


def run_seconds(settings: TrainSettings, speed: Speed, size: DataSize, *, workers: int) -> float:
    """One training run and its evaluations, on one of `workers` equal processes.

    Exchanging gradients between processes is not in it. Decoding files counts as if a GPU waited for it.
    """
    parts_of, examples = micro_batch_sizes(settings, workers), settings.batch_sizes.examples(settings.steps)
    passes = sum(
        steps * speed.micro_batch_s(images)
        for batch_size, steps in settings.batch_sizes.steps_per_stage(settings.steps)
        for images in parts_of[batch_size]
    )
    statistics = statistics_batches(examples, settings.batch_size) * settings.batch_size / workers
    evaluations = _evaluations(settings, examples)
    if size.decode_s:
        loading = size.decode_s * (examples + evaluations * (statistics * workers + size.n_test))
    else:
        loading = _resident_bytes(settings, size.n_train) / _COPY_BYTES_PER_S
    return (
        speed.build_s
        + loading
        + passes
        + settings.steps * speed.update_s
        + evaluations * (statistics + size.n_test / workers) * speed.evaluation_s
    )


def _evaluations(settings: TrainSettings, examples: int) -> int:
    """Times that the test images are classified, that after the last step among them."""
    if settings.accuracy_examples is not None:
        return math.ceil(examples / settings.accuracy_examples)
    return 1 if settings.accuracy_steps is None else math.ceil(settings.steps / settings.accuracy_steps)


def _resident_bytes(settings: TrainSettings, images: int) -> float:
    padded = settings.format.image_size + 2 * settings.crop_padding
    return images * 3.0 * padded * padded


def run_memory(settings: TrainSettings, speed: Speed, size: DataSize, *, workers: int) -> float:
    """Weights, gradients and momentum; the images; and what the largest part keeps for its backward pass."""
    largest = max(images for passes in micro_batch_sizes(settings, workers).values() for images in passes)
    images = 0.0 if size.decode_s else _resident_bytes(settings, size.n_train + size.n_test)
    return _BASE_MEMORY_WITH_TORCH + 3 * speed.weight_bytes + images + largest * speed.activation_bytes


def finetune_cost(settings: TrainSettings, speed: Speed, size: DataSize, *, folds: int, workers: int) -> PlannedCost:
    """One extractor: `folds` runs of `settings`, one after another, whose networks end in one file."""
    return PlannedCost(
        seconds=_START_WITH_TORCH_S + folds * run_seconds(settings, speed, size, workers=workers),
        memory=run_memory(settings, speed, size, workers=workers) + (folds - 1) * speed.weight_bytes,
        disk=_CACHED_TWICE * folds * speed.weight_bytes,
    )


def head_cost(settings: TrainSettings, speed: Speed, size: DataSize, *, folds: int, workers: int) -> PlannedCost:
    """One extractor whose head alone is fitted: forward passes, and a logistic regression for each fold."""
    dimensions, n_fit = feature_dimension(settings.network), images_per_fold(size.n_train, folds)
    passes = size.n_train + folds * size.n_test
    fit = _HEAD_S * n_fit * dimensions * settings.n_classes
    return PlannedCost(
        seconds=_START_WITH_TORCH_S
        + passes / workers * speed.evaluation_s
        + passes * size.decode_s
        + folds * (speed.build_s + fit),
        memory=_BASE_MEMORY_WITH_TORCH + (folds + 1) * speed.weight_bytes + 28.0 * size.n_train * dimensions,
        disk=_CACHED_TWICE * folds * speed.weight_bytes,
    )


def images_per_fold(n_train: int, folds: int) -> int:
    """Training images that each of the networks sees."""
    return n_train if folds == 1 else n_train * (folds - 1) // folds


def extract_cost(
    settings: TrainSettings, config: ExtractConfig, speed: Speed, size: DataSize, *, folds: int, workers: int
) -> PlannedCost:
    """Forward passes of all folds' networks over both splits, side by side, and their alignment.

    What one keeps at a time is below what training would keep.
    """
    n, dimensions = size.n_train + size.n_test, feature_dimension(settings.network)
    chunk = min(_CHUNK_BYTES, n * 3 * settings.format.image_size**2)
    alignment = (folds - 1) * (_PRODUCT_S * size.n_train * dimensions**2 / workers + _ROTATION_S * dimensions**3)
    weights = folds * speed.weight_bytes + (folds - 1) * 8 * dimensions**2
    passes = folds * n * (2 if config.flip_tta else 1)
    return PlannedCost(
        seconds=_START_WITH_TORCH_S + passes / workers * speed.evaluation_s + n * size.decode_s + alignment,
        memory=_BASE_MEMORY_WITH_TORCH + weights + config.batch_size * speed.activation_bytes / 2 + chunk,
        disk=_CACHED_TWICE * 4 * (n * dimensions + size.n_train * settings.n_classes),
    )


def reduce_cost(config: ReduceConfig, network: str, size: DataSize, *, cores: int) -> PlannedCost:
    """PCA, neighbors and every map of the training images, and t-SNE of the test images.

    As if all of it ran in one process; Dask's workers may be faster.
    """
    n, dimensions = size.n_train, feature_dimension(network)
    kept = config.pca.n_components or dimensions
    fitted = landmark_count(config.landmarks, n) or n
    pca = 1e-11 * n * dimensions**2 + 9e-10 * dimensions**3 if config.pca.n_components else 0.0
    reading = _PASSES * 4.0 * n * dimensions / _COPY_BYTES_PER_S
    settings = [config.embedding_settings(number) for number in range(1 + len(config.extra_embeddings))]
    maps = sum(
        tsne_seconds(points, one.early_exaggeration_iter + one.n_iter, kept)
        for points, one in (*((fitted, one) for one in settings), (size.n_test, config.tsne))
    )
    placing = len(settings) * _TRANSFORM_POINT_S * (n - fitted)
    largest = max(one.perplexity for one in settings)
    return PlannedCost(
        seconds=_START_S + reading + (pca + maps + placing + search_seconds(n, kept)) / min(config.tsne.n_jobs, cores),
        memory=_BASE_MEMORY
        + (24.0 * dimensions**2 + 2e8 if config.pca.n_components else 0.0)
        + fitted * 40 * 3 * largest
        + n * (8 * kept + 24 * config.n_neighbors + 16 * len(settings)),
        disk=_CACHED_TWICE * n * (4 * kept + 20 + 8 * config.n_neighbors + 8 * len(settings)),
    )


def search_seconds(n: int, dimensions: int) -> float:
    """Core seconds of the search for the nearest others of n points: all pairs, or lists of 4 sqrt(n) in all."""
    pairs = 3.5e-9 * n**2 if n <= 100_000 else 1e-7 * n**1.5
    return pairs * max(1.0, dimensions / 50)


def tsne_seconds(n: int, iterations: int, dimensions: int) -> float:
    """Core seconds of openTSNE's map of n points.

    Its own choice of method: Barnes-Hut below 10,000 points, O(n log n) an iteration, and
    interpolation from there on, O(n) and a grid. The neighbor search (Annoy) comes before either.
    """
    search = 3.5e-4 * n * max(1.0, dimensions / 50)
    iteration = 2.5e-7 * n * math.log2(max(n, 2)) if n < 10_000 else 1.8e-6 * n
    return search + iterations * iteration


def filter_cost(size: DataSize) -> PlannedCost:
    """One nearest-neighbor query in the plane per image, and tables."""
    return PlannedCost(
        seconds=_START_S + 2.5e-5 * size.n_train,
        memory=_BASE_MEMORY + 1000.0 * size.n_train,
        disk=_CACHED_TWICE * 200.0 * size.n_train,
    )


def study_cost(runs: Collection[PlannedCost], *, weights: float, n_test: int) -> PlannedCost:
    """The missing cells of a study, one after another.

    Args:
        runs: of each missing cell; `disk` is what it leaves in the ledger.
        weights: bytes of the best network, the study's own output.
    """
    together = total_cost(runs)
    return PlannedCost(
        seconds=_START_WITH_TORCH_S + together.seconds,
        memory=max(together.memory, _BASE_MEMORY_WITH_TORCH),
        disk=together.disk + _CACHED_TWICE * (weights + len(runs) * (n_test + 1000.0)),
    )


def report_cost(networks: int, studies: int, n_train: int) -> PlannedCost:
    """Seconds to plot maps, charts and the gallery with matplotlib and plotly."""
    return PlannedCost(
        seconds=_START_S + 1.5 * networks + 1.0 * studies + 2e-5 * n_train * networks,
        memory=_BASE_MEMORY + 500.0 * n_train,
        disk=_CACHED_TWICE * (6e6 + 2e6 * networks + 1e6 * studies),
    )
