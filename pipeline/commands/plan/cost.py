"""Cost of each stage, from measured speeds for torch and calibrated formulas for the rest.

The constants are rounded seconds of one core of an AMD EPYC (numpy 2.4, openTSNE 1.0.4, scikit-learn 1.9, faiss 1.15;
t-SNE of 360 to 12,000 points, PCA and neighbors of 10,000 to 400,000, and 60,000 JPEG files). Other machines differ.
DVC keeps a second copy of each output in its cache, so disk counts twice.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

from pipeline.batching import merge_micro_batches, rank_slices, worker_slices
from pipeline.commands.plan.size import DataSize
from pipeline.commands.plan.speed import Speed
from pipeline.config.extractors import ExtractConfig
from pipeline.config.prepare import PrepareConfig
from pipeline.config.reduce import ReduceConfig, landmark_count
from pipeline.models import feature_dimension
from pipeline.training.eval_weights import statistics_batches
from pipeline.training.memory import CPU_MICRO_BATCH
from pipeline.training.settings import TrainSettings

# Start of Python, imports and DVC's bookkeeping, for each stage.
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
_FEATURE_PASSES = 4  # to check the features, and for the mean, the axes and the projection
_TRANSFORM_POINT_S = 1e-4  # of one point among landmarks
# Equal to that of `features.extract`.
_CHUNK_BYTES = 256 * 2**20
_CACHED_TWICE = 2


@dataclass(frozen=True, kw_only=True)
class PlannedCost:
    """Wall seconds, peak bytes of memory in one process, bytes of disk."""

    seconds: float
    memory: float
    disk: float


def total_cost(costs: Collection[PlannedCost]) -> PlannedCost:
    """Return the cost of all, one after another: times and disk add up, memory does not."""
    return PlannedCost(
        seconds=sum(cost.seconds for cost in costs),
        memory=max((cost.memory for cost in costs), default=0.0),
        disk=sum(cost.disk for cost in costs),
    )


def prepare_cost(config: PrepareConfig, size: DataSize) -> PlannedCost:
    """Return the cost of reading, hashing and resizing every image, without a download."""
    n = size.n_train + size.n_test
    image_s = size.decode_s or (_DECODE_FILE_S if config.dataset == "image_folder" else _READ_ARRAY_S)
    return PlannedCost(
        seconds=_START_S + n * image_s,
        memory=_BASE_MEMORY + n * 300,
        disk=_CACHED_TWICE * n * (3 * config.stored_size**2 + 150),
    )


def micro_batch_sizes(settings: TrainSettings, workers: int) -> dict[int, list[int]]:
    """Return batch size -> sizes of the micro-batches of one of `workers` processes in an optimizer step, in order."""
    return {size: _micro_batch_sizes(size, settings, workers) for size in settings.batch_sizes.unique}


def _micro_batch_sizes(batch_size: int, settings: TrainSettings, workers: int) -> list[int]:
    all_slices = worker_slices(batch_size, settings.simulated_workers, settings.bn_group)
    slices = rank_slices(all_slices, rank=0, world_size=workers)
    if settings.reduction == "ddp":
        largest_group = max(size for one in slices for size in one.group_sizes)
        slices = merge_micro_batches(slices, max(CPU_MICRO_BATCH, largest_group))
    return [one.size for one in slices]


def run_seconds(settings: TrainSettings, speed: Speed, size: DataSize, *, workers: int) -> float:
    """Return the seconds of a training run and its evaluations, on one of `workers` equal processes.

    Leaves out the exchange of gradients. Counts decoding of files as if a GPU waited for it.
    """
    sizes, examples = micro_batch_sizes(settings, workers), settings.batch_sizes.examples(settings.steps)
    passes = sum(
        steps * speed.micro_batch_s(images)
        for batch_size, steps in settings.batch_sizes.steps_per_stage(settings.steps)
        for images in sizes[batch_size]
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
    """Return how often the test images are classified, including after the last step."""
    if settings.accuracy_examples is not None:
        return math.ceil(examples / settings.accuracy_examples)
    return 1 if settings.accuracy_steps is None else math.ceil(settings.steps / settings.accuracy_steps)


def _resident_bytes(settings: TrainSettings, images: int) -> float:
    padded = settings.format.image_size + 2 * settings.crop_padding
    return images * 3.0 * padded * padded


def run_memory(settings: TrainSettings, speed: Speed, size: DataSize, *, workers: int) -> float:
    """Return the bytes of weights, gradients, momentum, images, and activations of the largest micro-batch."""
    largest = max(size for sizes in micro_batch_sizes(settings, workers).values() for size in sizes)
    images = 0.0 if size.decode_s else _resident_bytes(settings, size.n_train + size.n_test)
    return _BASE_MEMORY_WITH_TORCH + 3 * speed.weight_bytes + images + largest * speed.activation_bytes


def finetune_cost(settings: TrainSettings, speed: Speed, size: DataSize, *, folds: int, workers: int) -> PlannedCost:
    """Return the cost of an extractor: `folds` runs of `settings`, one after another, saved in one file."""
    return PlannedCost(
        seconds=_START_WITH_TORCH_S + folds * run_seconds(settings, speed, size, workers=workers),
        memory=run_memory(settings, speed, size, workers=workers) + (folds - 1) * speed.weight_bytes,
        disk=_CACHED_TWICE * folds * speed.weight_bytes,
    )


def head_cost(settings: TrainSettings, speed: Speed, size: DataSize, *, folds: int, workers: int) -> PlannedCost:
    """Return the cost of an extractor with only its head fitted: forward passes and a logistic regression per fold."""
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
    """Return the training images of each fold's network."""
    return n_train if folds == 1 else n_train * (folds - 1) // folds


def extract_cost(
    settings: TrainSettings, config: ExtractConfig, speed: Speed, size: DataSize, *, folds: int, workers: int
) -> PlannedCost:
    """Return the cost of the forward passes of all folds' networks over both splits, and of their alignment.

    A forward pass keeps less memory than training, at most half of the activations.
    """
    n, dimensions = size.n_train + size.n_test, feature_dimension(settings.network)
    chunk = min(_CHUNK_BYTES, n * 3 * settings.format.image_size**2)
    alignment = (folds - 1) * (_PRODUCT_S * size.n_train * dimensions**2 / workers + _ROTATION_S * dimensions**3)
    weights = folds * speed.weight_bytes + (folds - 1) * 8 * dimensions**2
    passes = folds * n * (2 if config.flip_tta else 1)
    by_network = folds if folds > 1 else 0
    return PlannedCost(
        seconds=_START_WITH_TORCH_S + passes / workers * speed.evaluation_s + n * size.decode_s + alignment,
        memory=_BASE_MEMORY_WITH_TORCH + weights + config.batch_size * speed.activation_bytes / 2 + chunk,
        disk=_CACHED_TWICE * 4 * (n * dimensions + size.n_train * (settings.n_classes + by_network * dimensions)),
    )


def reduce_cost(config: ReduceConfig, network: str, size: DataSize, *, cores: int) -> PlannedCost:
    """Return the cost of PCA, neighbors and embeddings of the training images, and t-SNE of the test images.

    In one process; Dask's workers may be faster.
    """
    n, dimensions = size.n_train, feature_dimension(network)
    kept = config.pca.n_components or dimensions
    fitted = landmark_count(config.landmarks, n) or n
    pca = 1e-11 * n * dimensions**2 + 9e-10 * dimensions**3 if config.pca.n_components else 0.0
    reading = _FEATURE_PASSES * 4.0 * n * dimensions / _COPY_BYTES_PER_S
    settings = [config.embedding_settings(number) for number in range(1 + len(config.extra_embeddings))]
    embeddings = sum(
        tsne_seconds(points, one.early_exaggeration_iter + one.n_iter, kept)
        for points, one in (*((fitted, one) for one in settings), (size.n_test, config.tsne))
    )
    placing = len(settings) * _TRANSFORM_POINT_S * (n - fitted)
    largest = max(one.perplexity for one in settings)
    return PlannedCost(
        seconds=_START_S
        + reading
        + (pca + embeddings + placing + search_seconds(n, kept)) / min(config.tsne.n_jobs, cores),
        memory=_BASE_MEMORY
        + (24.0 * dimensions**2 + 2e8 if config.pca.n_components else 0.0)
        + fitted * 40 * 3 * largest
        + n * (8 * kept + 24 * config.n_neighbors + 16 * len(settings)),
        disk=_CACHED_TWICE * n * (4 * kept + 20 + 8 * config.n_neighbors + 8 * len(settings)),
    )


def search_seconds(n: int, dimensions: int) -> float:
    """Return the core seconds of a neighbor search among n points: of all pairs, or in 4 sqrt(n) lists."""
    pairs = 3.5e-9 * n**2 if n <= 100_000 else 1e-7 * n**1.5
    return pairs * max(1.0, dimensions / 50)


def tsne_seconds(n: int, iterations: int, dimensions: int) -> float:
    """Return the core seconds of openTSNE for n points, including its neighbor search (Annoy).

    openTSNE uses Barnes-Hut below 10,000 points, O(n log n) an iteration, and interpolation from there on, O(n) and a
    grid.
    """
    search = 3.5e-4 * n * max(1.0, dimensions / 50)
    iteration = 2.5e-7 * n * math.log2(max(n, 2)) if n < 10_000 else 1.8e-6 * n
    return search + iterations * iteration


def filter_cost(size: DataSize) -> PlannedCost:
    """Return the cost of a nearest-neighbor query in the plane per image, and of the tables."""
    return PlannedCost(
        seconds=_START_S + 2.5e-5 * size.n_train,
        memory=_BASE_MEMORY + 1000.0 * size.n_train,
        disk=_CACHED_TWICE * 200.0 * size.n_train,
    )


def study_cost(runs: Collection[PlannedCost], *, weights: float, n_test: int) -> PlannedCost:
    """Return the cost of the missing runs of a study, one after another.

    Args:
        runs: costs of the missing runs; `disk` is what each leaves in the ledger.
        weights: bytes of the best network, an output of the study.
        n_test: test images.
    """
    total = total_cost(runs)
    return PlannedCost(
        seconds=_START_WITH_TORCH_S + total.seconds,
        memory=max(total.memory, _BASE_MEMORY_WITH_TORCH),
        disk=total.disk + _CACHED_TWICE * (weights + len(runs) * (n_test + 1000.0)),
    )


def report_cost(networks: int, studies: int, n_train: int) -> PlannedCost:
    """Return the cost of plotting embeddings, charts and the gallery with matplotlib and plotly."""
    return PlannedCost(
        seconds=_START_S + 1.5 * networks + 1.0 * studies + 2e-5 * n_train * networks,
        memory=_BASE_MEMORY + 500.0 * n_train,
        disk=_CACHED_TWICE * (6e6 + 2e6 * networks + 1e6 * studies),
    )
