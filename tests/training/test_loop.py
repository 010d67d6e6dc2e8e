"""Training learns, repeats to the bit, and says when it diverged."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from made_up_training import ALONE, TINY, bright_images
from numpy.typing import NDArray

from pipeline.batching import SampleStream, worker_slices
from pipeline.distributed import Ranks
from pipeline.errors import InputError
from pipeline.models import build
from pipeline.models.resnet import ResNet
from pipeline.run_log import RunLog
from pipeline.training import loop
from pipeline.training.batch_norm import recompute_statistics
from pipeline.training.evaluate import evaluate
from pipeline.training.loop import TrainedRun, load_images, train
from pipeline.training.settings import TrainSettings

N = 60


@pytest.fixture
def few_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of a tiny run's time would go into recomputing BatchNorm statistics."""
    monkeypatch.setattr(loop, "_STATISTICS_IMAGES", 40)


def _train(settings: TrainSettings, *, members: NDArray[np.bool_] | None = None, **options: Any) -> TrainedRun:
    pixels, labels = bright_images(N)
    images = load_images(pixels, settings, training=True, device=ALONE.device)
    members = np.ones(N, dtype=np.bool_) if members is None else members
    targets = np.where(members, labels, -1)  # out of range: training on one of the others fails
    log = RunLog.silent()
    arguments = {"ranks": ALONE, "log": log, "title": "", **options}
    return train(settings, images, torch.from_numpy(targets), members, **arguments)


def _weights(run: TrainedRun) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in run.model.state_dict().values()])


def test_separable_images_are_learnt() -> None:
    run = _train(replace(TINY, steps=30, flip=False))
    pixels, labels = bright_images(80, seed=9)
    images = load_images(pixels, TINY, training=False, device=ALONE.device)
    result = evaluate(run.model, images, torch.from_numpy(labels), batch_size=80, ranks=ALONE)
    assert result.top1 >= 0.95  # a guess has 0.25
    losses = [record.train_loss for record in run.history]
    assert all(loss is not None for loss in losses)
    assert run.history[-1].train_loss < 0.8 * run.history[0].train_loss  # type: ignore[operator]


@pytest.mark.usefixtures("few_statistics")
def test_one_seed_repeats_to_the_bit_and_another_differs() -> None:
    first, again, other = (_train(replace(TINY, seed=seed)) for seed in (3, 3, 4))
    assert torch.equal(_weights(first), _weights(again))
    assert first.history == again.history
    assert not torch.equal(_weights(first), _weights(other))


@pytest.mark.usefixtures("few_statistics")
def test_the_global_generators_do_not_matter() -> None:
    first = _train(TINY)
    torch.rand(3)
    before = torch.get_rng_state()
    assert torch.equal(_weights(first), _weights(_train(TINY)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("few_statistics")
def test_only_members_are_trained_on() -> None:
    members = np.arange(N) % 3 > 0
    run = _train(replace(TINY, steps=5), members=members)
    assert not run.diverged
    assert run.history[-1].epoch == pytest.approx(5 * 20 / 40)


@pytest.mark.usefixtures("few_statistics")
def test_history_is_even_and_ends_with_the_last_step() -> None:
    """With a rate of almost nothing every pass over all images has the same mean loss."""
    still = replace(TINY, steps=43, simulated_workers=1, learning_rate=1e-12, crop_padding=0, flip=False)
    run = _train(still, members=np.arange(N) < 10)
    steps = [*range(2, 43, 2), 43]
    assert [r.step for r in run.history] == steps
    assert [r.examples for r in run.history] == [20 * step for step in steps]
    assert [r.epoch for r in run.history] == pytest.approx([2 * step for step in steps])
    assert [r.lr for r in run.history] == [still.rate(step - 1) for step in steps]
    losses = [r.train_loss for r in run.history]
    assert losses == pytest.approx([losses[0]] * len(steps), rel=1e-4)


@pytest.mark.usefixtures("few_statistics")
def test_the_first_loss_is_that_of_the_fresh_network() -> None:
    settings = replace(TINY, steps=1, simulated_workers=1)
    ids, epochs = SampleStream(np.ones(N, dtype=np.bool_), settings.seed).batch(0, settings.batch_size)
    pixels, labels = bright_images(N)
    images = load_images(pixels, settings, training=True, device=ALONE.device)
    model = build(settings.network, settings.n_classes, stem=settings.stem, seed=settings.seed).train()
    logits, targets = model(images.training_batch(ids, epochs)), torch.from_numpy(labels[ids])
    expected = F.cross_entropy(logits, targets, label_smoothing=settings.label_smoothing)
    assert _train(settings).history[0].train_loss == pytest.approx(float(expected.detach()), rel=1e-5)


@pytest.mark.usefixtures("few_statistics")
def test_one_step_is_that_of_torch() -> None:
    """The rate of the schedule's first step, momentum that starts at nothing, and no decay of vectors."""
    settings = replace(TINY, steps=1, simulated_workers=1, warmup_steps=4, weight_decay=0.1)
    ids, epochs = SampleStream(np.ones(N, dtype=np.bool_), settings.seed).batch(0, settings.batch_size)
    pixels, labels = bright_images(N)
    images = load_images(pixels, settings, training=True, device=ALONE.device)
    model = build(settings.network, settings.n_classes, stem=settings.stem, seed=settings.seed).train()
    logits = model(images.training_batch(ids, epochs))
    F.cross_entropy(logits, torch.from_numpy(labels[ids]), label_smoothing=0.1).backward()
    trained = dict(_train(settings).model.named_parameters())
    rate = settings.learning_rate / 4
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            decayed = parameter.grad + (0.1 * parameter if parameter.ndim > 1 else 0)  # type: ignore[operator]
            expected = parameter - rate * 1.9 * decayed
            torch.testing.assert_close(trained[name], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("few_statistics")
def test_batch_norm_statistics_are_of_the_final_weights() -> None:
    """From the batches that would have come next, in the groups of training."""
    run, everything = _train(TINY), np.ones(N, dtype=np.bool_)
    images = load_images(bright_images(N)[0], TINY, training=True, device=ALONE.device)
    model, stream = copy.deepcopy(run.model), SampleStream(everything, TINY.seed)
    batches = [stream.batch(step, TINY.batch_size) for step in (2, 3)]
    recompute_statistics(model, images, batches, worker_slices(TINY.batch_size, TINY.simulated_workers))
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


@pytest.mark.usefixtures("few_statistics")
def test_initial_weights_replace_the_fresh_ones() -> None:
    seen: list[ResNet] = []

    def zero_head(model: ResNet) -> None:
        seen.append(model)
        torch.nn.init.zeros_(model.backbone.fc.weight)
        torch.nn.init.zeros_(model.backbone.fc.bias)

    run = _train(replace(TINY, steps=1, label_smoothing=0.0), initialise=zero_head)
    assert seen == [run.model]
    assert run.history[0].train_loss == pytest.approx(np.log(4))  # logits of zero


@pytest.mark.usefixtures("few_statistics")
@pytest.mark.parametrize("steps", [9, 4])
def test_a_diverged_run_is_flagged_and_does_not_raise(steps: int) -> None:
    run = _train(replace(TINY, learning_rate=1e30, steps=steps, schedule="constant"))
    assert run.diverged
    assert run.history[-1].train_loss is None
    assert run.history[-1].step < 9


def test_processes_that_do_not_divide_the_simulated_workers_are_refused() -> None:
    with pytest.raises(InputError, match=r"3 processes do not divide simulated_workers 4; start one of \[1, 2, 4\]"):
        _train(replace(TINY, simulated_workers=4), ranks=Ranks(rank=0, count=3, device=ALONE.device))


def test_evaluation_images_are_not_augmented() -> None:
    pixels, _ = bright_images(4)
    settings = replace(TINY, crop_padding=3, flip=True)
    images = load_images(pixels, settings, training=False, device=ALONE.device)
    ids = np.arange(4)
    expected = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - 0.44) / 0.27
    torch.testing.assert_close(images.evaluation_batch(ids), expected, atol=1e-5, rtol=0)
