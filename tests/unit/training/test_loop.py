"""Training learns, repeats to the bit, and says when it diverged."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pipeline import distributed
from pipeline.batching import GlobalBatch, SampleStream, merge_micro_batches, worker_slices
from pipeline.distributed import CommConfig, World
from pipeline.errors import InputError
from pipeline.models.network import Network
from pipeline.training.eval_weights import recompute_batch_norm_statistics
from pipeline.training.evaluation import evaluate, load_images
from pipeline.training.gradients import TrainLoss
from tests.fixtures.loop import N, train_bright, weights_of
from tests.fixtures.slow import quick_first
from tests.fixtures.training import ALONE, TINY, as_resnet, bright_images, build_float64, distance, parameters_of

SMALL = replace(TINY, network="small_cnn")


def test_separable_images_are_learned() -> None:
    run = train_bright(replace(TINY, steps=30, flip=False, learning_rate=0.01))
    pixels, labels = bright_images(80, seed=9)
    images = load_images(pixels, TINY, training=False, device=ALONE.device)
    result = evaluate(run.model, images, torch.from_numpy(labels), batch_size=80, world=ALONE)
    assert result.top1 >= 0.95  # a guess has 0.25
    losses = [record.train_loss for record in run.history]
    assert all(loss is not None for loss in losses)
    assert run.history[-1].train_loss < 0.8 * run.history[0].train_loss  # type: ignore[operator]


def test_one_seed_repeats_to_the_bit_and_another_differs() -> None:
    first, again, other = (train_bright(replace(SMALL, seed=seed)) for seed in (3, 3, 4))
    assert torch.equal(weights_of(first), weights_of(again))
    assert first.history == again.history
    assert not torch.equal(weights_of(first), weights_of(other))


def test_the_global_generators_do_not_matter() -> None:
    first = train_bright(SMALL)
    torch.rand(3)
    before = torch.get_rng_state()
    assert torch.equal(weights_of(first), weights_of(train_bright(SMALL)))
    assert torch.equal(torch.get_rng_state(), before)


def test_only_members_are_trained_on() -> None:
    members = np.arange(N) % 3 > 0
    run = train_bright(replace(SMALL, steps=5), members=members)
    assert not run.diverged
    assert run.history[-1].epoch == pytest.approx(5 * 20 / 40)


@pytest.mark.usefixtures("in_float64")
def test_history_is_even_and_ends_with_the_last_step() -> None:
    """With a rate of almost nothing every pass over all images has the same mean loss.

    To half of the digits of float64: BatchNorm of 20 images that are much alike enlarges rounding.
    """
    still = replace(TINY, steps=43, simulated_workers=1, learning_rate=1e-16, crop_padding=0, flip=False)
    run = train_bright(still, members=np.arange(N) < 10)
    steps = [*range(2, 43, 2), 43]
    assert [r.step for r in run.history] == steps
    assert [r.examples for r in run.history] == [20 * step for step in steps]
    assert [r.epoch for r in run.history] == pytest.approx([2 * step for step in steps])
    assert [r.lr for r in run.history] == [still.lr_at(step - 1) for step in steps]
    losses = [r.train_loss for r in run.history]
    assert losses == pytest.approx([losses[0]] * len(steps), rel=2**-26)


@pytest.mark.usefixtures("in_float64")
def test_the_first_loss_is_that_of_the_fresh_network() -> None:
    settings = replace(TINY, steps=1, simulated_workers=1)
    ids, epochs = SampleStream(np.ones(N, dtype=np.bool_), settings.seed).samples(0, settings.batch_size)
    pixels, labels = bright_images(N)
    images = load_images(pixels, settings, training=True, device=ALONE.device)
    model = build_float64(settings.network, settings.n_classes, stem=settings.stem, seed=settings.seed).train()
    logits, targets = model(images.training_batch(ids, epochs)), torch.from_numpy(labels[ids])
    expected = F.cross_entropy(logits, targets, label_smoothing=settings.label_smoothing)
    assert train_bright(settings).history[0].train_loss == pytest.approx(float(expected.detach()), rel=1e-12)


@pytest.mark.usefixtures("in_float64")
def test_one_step_is_that_of_torch() -> None:
    """The rate of the schedule's first step, momentum that starts at nothing, and no decay of vectors."""
    settings = replace(TINY, steps=1, simulated_workers=1, warmup_steps=4, weight_decay=0.1)
    ids, epochs = SampleStream(np.ones(N, dtype=np.bool_), settings.seed).samples(0, settings.batch_size)
    pixels, labels = bright_images(N)
    images = load_images(pixels, settings, training=True, device=ALONE.device)
    model = build_float64(settings.network, settings.n_classes, stem=settings.stem, seed=settings.seed).train()
    logits = model(images.training_batch(ids, epochs))
    F.cross_entropy(logits, torch.from_numpy(labels[ids]), label_smoothing=0.1).backward()
    trained = dict(train_bright(settings).model.named_parameters())
    rate = settings.learning_rate / 4
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            decayed = parameter.grad + (0.1 * parameter if parameter.ndim > 1 else 0)  # type: ignore[operator]
            expected = parameter - rate * 1.9 * decayed
            torch.testing.assert_close(trained[name], expected, rtol=1e-12, atol=1e-12)


def test_batch_norm_statistics_are_of_the_final_weights() -> None:
    """From the batches that would have come next, in the groups of training."""
    run, everything = train_bright(TINY), np.ones(N, dtype=np.bool_)
    pixels, labels = bright_images(N)
    images = load_images(pixels, TINY, training=True, device=ALONE.device)
    model, stream = copy.deepcopy(run.model), SampleStream(everything, TINY.seed)
    batches = [
        GlobalBatch(sample_ids=ids, epochs=epochs) for ids, epochs in (stream.samples(start, 20) for start in (40, 60))
    ]
    train_loss = TrainLoss(images=images, labels=torch.from_numpy(labels), label_smoothing=TINY.label_smoothing)
    recompute_batch_norm_statistics(
        model, train_loss, batches, merge_micro_batches(worker_slices(20, TINY.simulated_workers), 20)
    )
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


def test_initial_weights_replace_the_fresh_ones() -> None:
    seen: list[Network] = []

    def zero_head(model: Network) -> None:
        seen.append(model)
        torch.nn.init.zeros_(as_resnet(model).backbone.fc.weight)
        torch.nn.init.zeros_(as_resnet(model).backbone.fc.bias)

    run = train_bright(replace(TINY, steps=1, label_smoothing=0.0), initialize=zero_head)
    assert seen == [run.model]
    assert run.history[0].train_loss == pytest.approx(np.log(4))  # logits of zero


@pytest.mark.parametrize("steps", [9, 4])
def test_a_diverged_run_is_flagged_and_does_not_raise(steps: int) -> None:
    run = train_bright(replace(SMALL, learning_rate=1e30, steps=steps, schedule="constant"))
    assert run.diverged
    assert run.history[-1].train_loss is None
    assert run.history[-1].step < 9


def test_a_diverged_run_says_from_which_step_on() -> None:
    """Also where several steps share a record."""
    broken = replace(SMALL, learning_rate=1e30, schedule="constant")
    each, every_second = (train_bright(replace(broken, steps=steps)) for steps in (9, 45))
    assert each.divergence == every_second.divergence == f"from step {each.history[-1].step} on"
    assert train_bright(replace(SMALL, steps=1)).divergence is None


@pytest.mark.parametrize(
    ("of_ranks", "where"),
    [
        (lambda own: [None, own, 9], "first on rank 1 of 3"),
        (lambda own: [own, 9, own], "first on rank 0, 2 of 3"),
        (lambda own: [own, own], "on all 2 ranks at once"),
    ],
)
def test_a_diverged_run_says_on_which_ranks_first(
    of_ranks: Callable[[int], list[int | None]], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "all_gather_object", lambda own: of_ranks(own) if isinstance(own, int) else [own])
    run = train_bright(replace(SMALL, learning_rate=1e30, schedule="constant", steps=8), micro_batch=20)
    assert run.divergence == f"from step {run.history[-1].step} on, {where}"


@pytest.mark.parametrize(
    ("changes", "count", "key", "fitting"),
    [
        ({"simulated_workers": 4}, 3, "workers", "[1, 2, 4]"),
        ({"simulated_workers": 3, "reduction": "exact"}, 4, "workers", "[1, 2, 3]"),
        ({"simulated_workers": 4, "local_from_step": 1, "local_period": 2}, 2, "post_local_sgd", ""),
        ({"simulated_workers": 4, "compression": "bf16"}, 2, "communication.compression", ""),
    ],
)
def test_processes_that_do_not_fit_are_refused(changes: dict[str, Any], count: int, key: str, fitting: str) -> None:
    with pytest.raises(InputError) as raised:
        train_bright(replace(TINY, **changes), world=World(rank=0, size=count, device=ALONE.device))
    assert raised.value.key == key
    assert fitting in str(raised.value)


@pytest.mark.parametrize("nodes", [[[0, 1, 2, 3]], [[0], [1, 2, 3]], [[0, 1], [2], [3]]])
def test_nodes_of_other_sizes_than_those_that_compress_are_refused(
    monkeypatch: pytest.MonkeyPatch, nodes: list[list[int]]
) -> None:
    monkeypatch.setattr(distributed, "ranks_by_node", lambda: nodes)
    between = replace(TINY, simulated_workers=4, compression="bf16", workers_per_node=2)
    with pytest.raises(InputError) as raised:
        train_bright(between, world=replace(ALONE, size=4), comm=CommConfig(hierarchical=True))
    assert raised.value.key == "communication.workers_per_node"
    assert str([len(node) for node in nodes]) in str(raised.value)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("network", quick_first(1, ["small_cnn", "resnet18"]))
def test_a_micro_batch_changes_rounding_alone(network: str) -> None:
    settings = replace(TINY, steps=1, network=network, simulated_workers=4)
    whole, parts = train_bright(settings, micro_batch="auto"), train_bright(settings, micro_batch=5)
    assert (whole.micro_batch, parts.micro_batch) == (20, 5)
    assert distance(parameters_of(parts.model), parameters_of(whole.model)) <= 1e-12
    # A fourth of the simulated workers is another job.
    other = train_bright(replace(settings, simulated_workers=1))
    if network == "resnet18":
        assert distance(parameters_of(other.model), parameters_of(whole.model)) > 1e-3
    else:
        assert distance(parameters_of(other.model), parameters_of(whole.model)) <= 1e-12


@pytest.mark.usefixtures("in_float64")
def test_both_reductions_are_the_same_job() -> None:
    """The grid of a sum of two keeps 45 bits of the largest element."""
    ddp, exact = (train_bright(replace(SMALL, steps=1, reduction=reduction)) for reduction in ("ddp", "exact"))
    assert distance(parameters_of(exact.model), parameters_of(ddp.model)) <= 1e-11
    for one, other in zip(exact.history, ddp.history, strict=True):
        assert (one.step, one.lr) == (other.step, other.lr)
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-12)
    assert exact.micro_batch == 10  # a simulated worker at a time


@pytest.mark.usefixtures("in_float64")
def test_the_moving_average_is_what_is_evaluated() -> None:
    """The average of the weights after two steps, of which the first weigh (1 + 1) / (10 + 1)."""
    settings = replace(SMALL, steps=2, warmup_steps=0, crop_padding=0, flip=False)
    first, last = (
        train_bright(replace(settings, steps=1, schedule="constant")),
        train_bright(replace(settings, schedule="constant")),
    )
    averaged = train_bright(replace(settings, schedule="constant", ema_decay=0.75))
    expected = 2 / 11 * parameters_of(first.model) + 9 / 11 * parameters_of(last.model)
    torch.testing.assert_close(parameters_of(averaged.model), expected, rtol=1e-12, atol=1e-12)


def test_the_noise_scale_is_sampled_and_changes_nothing_else() -> None:
    plain = train_bright(replace(SMALL, steps=4, reduction="exact"))
    metered = train_bright(replace(SMALL, steps=4, reduction="exact", noise_scale_steps=2))
    assert plain.noise_scale is None
    assert metered.noise_scale is not None
    assert torch.equal(weights_of(plain), weights_of(metered))


def test_hardware_of_a_run_is_recorded() -> None:
    threads = torch.get_num_threads()
    run = train_bright(replace(SMALL, steps=1))
    assert run.hardware == [f"1 processes of {threads} threads on cpu, 20 images at a time"]


@pytest.mark.slow
def test_a_metered_step_in_half_precision_does_not_overflow() -> None:
    """The loss scale starts at 65536; the sum over a batch of gradients times that would."""
    half = replace(TINY, network="small_cnn", precision="fp16", batch_size=256, steps=2, noise_scale_steps=1)
    run = train_bright(half)
    assert run.skipped_steps == 0
    assert run.noise_scale is not None
    assert run.noise_scale.samples == 2


def test_evaluation_images_are_not_augmented() -> None:
    pixels, _ = bright_images(4)
    settings = replace(TINY, crop_padding=3, flip=True)
    images = load_images(pixels, settings, training=False, device=ALONE.device)
    ids = np.arange(4)
    expected = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - 0.44) / 0.27
    torch.testing.assert_close(images.evaluation_batch(ids), expected, atol=1e-5, rtol=0)
