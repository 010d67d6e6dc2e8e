"""The gradient of a global batch: exact in float64, and mutants of it are caught by the same check."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipeline.batching import BatchSlice, GlobalBatch, merge_micro_batches, rank_slices, worker_slices
from pipeline.distributed import World
from pipeline.models import build_network
from pipeline.training.gradients import TrainLoss, accumulate_gradients, rank_share, slice_gradients
from tests.fixtures.training import NAMES, distance, gradient_of, random_train_loss

N = 50
_TRAIN_LOSS = random_train_loss(N)
Find = Callable[..., object]


def _small_cnn() -> nn.Module:
    """Without BatchNorm, so that the batch may be split in any way; with dropout."""
    return build_network("small_cnn", len(NAMES), stem="imagenet", seed=0).double().train()


def _resnet() -> nn.Module:
    return build_network("resnet18", len(NAMES), stem="imagenet", seed=0).double().train()


def _batch(size: int, seed: int = 0) -> GlobalBatch:
    rng = np.random.default_rng(seed)
    return GlobalBatch(sample_ids=rng.integers(0, N, size), epochs=rng.integers(0, 2, size))


def _whole(size: int) -> BatchSlice:
    return BatchSlice(rows=slice(0, size), group_sizes=(size,))


def _plain(model: nn.Module, batch: GlobalBatch, train_loss: TrainLoss = _TRAIN_LOSS) -> tuple[Tensor, float]:
    """Gradient of the mean loss over the whole batch in one pass, and the sum of the losses."""
    model.zero_grad()
    loss = train_loss.summed_loss(model, batch, _whole(batch.size))
    (loss / batch.size).backward()
    return gradient_of(model), float(loss.detach())


def _error(
    find: Find, parts: Sequence[BatchSlice], model: nn.Module | None = None, train_loss: TrainLoss = _TRAIN_LOSS
) -> float:
    """Relative L2 distance of a found gradient to that of one plain batch."""
    model = model or _small_cnn()
    batch = _batch(parts[-1].rows.stop)
    expected, _ = _plain(model, batch, train_loss)
    model.zero_grad()
    find(model, train_loss, batch, parts)
    return distance(gradient_of(model), expected)


def _exact(
    model: nn.Module, train_loss: TrainLoss, batch: GlobalBatch, parts: Sequence[BatchSlice], **options: Any
) -> Tensor:
    return accumulate_gradients(model, train_loss, batch, parts, **{"world_size": 1, **options})


_FINDERS = pytest.mark.parametrize("find", [_exact, slice_gradients], ids=["accumulated", "slices"])


@st.composite
def _any_parts(draw: st.DrawFn) -> list[BatchSlice]:
    """Of any sizes down to one image."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    edges = np.cumsum([0, *sizes]).tolist()
    return [BatchSlice(rows=slice(a, a + size), group_sizes=(size,)) for a, size in zip(edges, sizes, strict=False)]


# Exactness


def test_the_loss_of_a_part_is_plain_torch() -> None:
    train_loss, model, batch = random_train_loss(N, label_smoothing=0.2), _resnet(), _batch(6)
    logits = model(train_loss.images.training_batch(batch.sample_ids[2:], batch.epochs[2:]))
    expected = F.cross_entropy(logits, train_loss.labels[batch.sample_ids[2:]], label_smoothing=0.2) * 4
    part = BatchSlice(rows=slice(2, 6), group_sizes=(4,))
    torch.testing.assert_close(train_loss.summed_loss(model, batch, part), expected, rtol=1e-12, atol=0)


@_FINDERS
@settings(max_examples=15)
@given(parts=_any_parts(), smoothing=st.floats(0, 0.5))
def test_parts_of_any_size_give_the_gradient_of_the_mean(find: Find, parts: list[BatchSlice], smoothing: float) -> None:
    assert _error(find, parts, train_loss=random_train_loss(N, label_smoothing=smoothing)) <= 1e-12


@pytest.mark.slow
@_FINDERS
def test_one_part_of_a_resnet_is_plain_torch(find: Find) -> None:
    assert _error(find, [_whole(24)], _resnet()) <= 1e-12


@pytest.mark.parametrize(("size", "simulated", "ranks"), [(34, 4, 2), (34, 4, 4), (13, 6, 3), (24, 8, 8)])
def test_the_mean_over_ranks_is_the_gradient_of_the_mean(size: int, simulated: int, ranks: int) -> None:
    """As DistributedDataParallel averages, also where ranks hold unequal numbers of images."""
    model, batch, parts = _small_cnn(), _batch(size), worker_slices(size, simulated)
    expected, loss = _plain(model, batch)
    gradients, losses = [], []
    for rank in range(ranks):
        model.zero_grad()
        mine = rank_slices(parts, rank=rank, world_size=ranks)
        losses.append(float(accumulate_gradients(model, _TRAIN_LOSS, batch, mine, world_size=ranks)))
        gradients.append(gradient_of(model))
    assert distance(torch.stack(gradients).mean(0), expected) <= 1e-12
    assert sum(losses) == pytest.approx(loss, rel=1e-12)


def test_accumulated_gradients_are_added_to_those_that_are_there() -> None:
    model, batch = _small_cnn(), _batch(12)
    expected, _ = _plain(model, batch)
    _exact(model, _TRAIN_LOSS, batch, worker_slices(12, 3))
    torch.testing.assert_close(gradient_of(model), 2 * expected)


def test_a_local_gradient_is_of_this_ranks_images() -> None:
    model, batch, parts = _small_cnn(), _batch(20), worker_slices(20, 4)
    accumulate_gradients(model, _TRAIN_LOSS, batch, parts[2:], world_size=2, local=True)
    actual = gradient_of(model)
    expected, _ = _plain(model, GlobalBatch(sample_ids=batch.sample_ids[10:], epochs=batch.epochs[10:]))
    assert distance(actual, expected) <= 1e-12


@pytest.mark.parametrize("find", [_exact, slice_gradients], ids=["accumulated", "slices"])
def test_loss_scale_multiplies_the_gradient_and_no_reported_value(find: Callable[..., Any]) -> None:
    model, batch, parts = _small_cnn(), _batch(12), worker_slices(12, 3)
    plain = find(model, _TRAIN_LOSS, batch, parts)
    expected = gradient_of(model)
    model.zero_grad()
    scaled = find(model, _TRAIN_LOSS, batch, parts, loss_scale=torch.tensor(1024.0))
    torch.testing.assert_close(gradient_of(model), 1024 * expected)
    for one, other in zip(vars(plain).values(), vars(scaled).values(), strict=True) if find is slice_gradients else ():
        torch.testing.assert_close(one, other)
    if find is _exact:
        assert plain == scaled


# Slice by slice


def test_leaf_sums_are_those_of_the_leaves_by_hand() -> None:
    model, batch, parts = _small_cnn(), _batch(13), worker_slices(13, 3)
    sums = slice_gradients(model, _TRAIN_LOSS, batch, parts)
    whole, loss = _plain(model, batch)
    squares = 0.0
    for part in parts:
        mine = GlobalBatch(sample_ids=batch.sample_ids[part.rows], epochs=batch.epochs[part.rows])
        squares += float(_plain(model, mine)[0].square().sum()) * part.size / 13
    assert float(sums.loss) == pytest.approx(loss)
    assert float(sums.slice_sq_norm) == pytest.approx(squares)
    assert float(sums.sq_norm) == pytest.approx(float(whole.square().sum()))


def test_leaf_gradients_lie_in_memory_as_their_parameters() -> None:
    """Fused optimizers walk both in memory order."""
    model = _small_cnn().to(memory_format=torch.channels_last)
    slice_gradients(model, _TRAIN_LOSS, _batch(8), worker_slices(8, 2))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.stride() == parameter.stride(), name


def test_leaf_gradients_replace_those_that_are_there() -> None:
    model, batch = _small_cnn(), _batch(12)
    expected, _ = _plain(model, batch)
    for _ in range(2):
        slice_gradients(model, _TRAIN_LOSS, batch, worker_slices(12, 3))
    assert distance(gradient_of(model), expected) <= 1e-12


# BatchNorm groups


def _resnet_gradient(parts: Sequence[BatchSlice], find: Find = _exact) -> Tensor:
    model = _resnet()
    find(model, _TRAIN_LOSS, _batch(parts[-1].rows.stop), parts)
    return gradient_of(model)


@cache
def _groups_alone(size: int, groups: tuple[int, ...]) -> Tensor:
    """Of batches of one group each, weighted by their sizes: no group sees another."""
    batch, start, total = _batch(size), 0, torch.zeros(())
    for images in groups:
        rows = slice(start, start + images)
        alone = GlobalBatch(sample_ids=batch.sample_ids[rows], epochs=batch.epochs[rows])
        total = total + _plain(_resnet(), alone)[0] * images / size
        start += images
    return total


@pytest.mark.slow
@pytest.mark.parametrize("max_size", [16, 8, 24])
def test_groups_in_one_pass_have_the_gradient_of_separate_passes(max_size: int) -> None:
    parts = worker_slices(24, 3)
    expected = _groups_alone(24, (8, 8, 8))
    assert distance(_resnet_gradient(merge_micro_batches(parts, max_size)), expected) <= 1e-12
    assert distance(_resnet_gradient(parts, slice_gradients), expected) <= 1e-12


@pytest.mark.slow
def test_groups_of_unequal_size_within_a_worker() -> None:
    parts = worker_slices(23, 2, 4)
    assert [part.group_sizes for part in parts] == [(5, 6), (6, 6)]
    assert distance(_resnet_gradient(parts), _groups_alone(23, (5, 6, 6, 6))) <= 1e-12


def _merged_groups(model: nn.Module, train_loss: TrainLoss, batch: GlobalBatch, parts: Sequence[BatchSlice]) -> None:
    _exact(model, train_loss, batch, [BatchSlice(rows=part.rows, group_sizes=(part.size,)) for part in parts])


@pytest.mark.slow
def test_merged_groups_are_caught() -> None:
    parts = merge_micro_batches(worker_slices(24, 3), 24)
    assert distance(_resnet_gradient(parts, _merged_groups), _groups_alone(24, (8, 8, 8))) > 0.1


# Mutants of the sum


def _mean_of_means(model: nn.Module, train_loss: TrainLoss, batch: GlobalBatch, parts: Sequence[BatchSlice]) -> None:
    for part in parts:
        (train_loss.summed_loss(model, batch, part) / part.size / len(parts)).backward()


def _last_part_alone(model: nn.Module, train_loss: TrainLoss, batch: GlobalBatch, parts: Sequence[BatchSlice]) -> None:
    _exact(model, train_loss, batch, parts[-1:])


def _first_epoch_for_all(
    model: nn.Module, train_loss: TrainLoss, batch: GlobalBatch, parts: Sequence[BatchSlice]
) -> None:
    _exact(model, train_loss, GlobalBatch(sample_ids=batch.sample_ids, epochs=0 * batch.epochs), parts)


@pytest.mark.parametrize("mutant", [_mean_of_means, _last_part_alone, _first_epoch_for_all])
def test_mutants_are_caught(mutant: Find) -> None:
    assert _error(mutant, worker_slices(34, 4)) > 1e-4


# Exchanges between ranks


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def _exchanges(find: Find = _exact, **options: Any) -> int:
    """How often DistributedDataParallel exchanges gradients for one global batch in four passes."""
    seen: list[int] = []

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        seen.append(bucket.index())
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model = DistributedDataParallel(_small_cnn())
    model.register_comm_hook(None, hook)
    find(model, _TRAIN_LOSS, _batch(12), worker_slices(12, 4), **options)
    return seen.count(0)  # there may be more buckets than one


@pytest.mark.usefixtures("group_of_one")
def test_gradients_are_exchanged_once_with_the_last_part() -> None:
    assert _exchanges() == 1
    assert _exchanges(local=True) == 0


@pytest.mark.usefixtures("group_of_one")
def test_an_exchange_at_every_micro_batch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.distributed.gradient_sync", lambda model, enabled: nullcontext())
    assert _exchanges() == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_the_loss_of_all_ranks_is_that_of_rank_0_unless_not_finite(rank: int) -> None:
    """A record adds the parts of all ranks; one that is not finite shows on which rank it arose."""
    world, own = World(rank=rank, size=2, device=torch.device("cpu")), torch.tensor(1.5)
    assert float(rank_share(torch.tensor(4.0), own, world)) == (4.0 if rank == 0 else 0.0)
    for total in (torch.nan, torch.inf):
        assert float(rank_share(torch.tensor(total), own, world)) == 1.5
