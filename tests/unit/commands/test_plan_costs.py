"""Estimated cost of a run, and the measured speeds behind it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.commands.plan import cost, jobs
from pipeline.commands.plan import speed as speed_module
from pipeline.commands.plan.size import plan_from_sizes
from pipeline.commands.plan.speed import Workload, measure, subsample_sizes
from pipeline.config.extractors import ExtractConfig
from pipeline.config.reduce import ReduceConfig
from pipeline.durations import BatchStage
from pipeline.errors import OutOfMemory
from pipeline.training.settings import TrainSettings
from tests.fixtures.plan import DIGITS, SPEED, digits_params
from tests.fixtures.projects import NETWORK

# What it takes


def _settings(**changes: Any) -> TrainSettings:
    settings = jobs.finetune_run(digits_params(), "resnet18", DIGITS).settings
    return replace(settings, **changes)


def test_time_is_interpolated_between_sizes_and_linear_beyond() -> None:
    assert SPEED.micro_batch_s(32) == 0.2
    assert SPEED.micro_batch_s(20) == pytest.approx(0.15)
    assert SPEED.micro_batch_s(1280) == pytest.approx(8.0)
    assert SPEED.micro_batch_s(2) == pytest.approx(0.1)


def test_time_of_a_run_is_its_steps_and_what_every_run_has() -> None:
    def seconds(steps: int, workers: int = 1) -> float:
        settings = _settings(steps=steps, batch_size=128, simulated_workers=4)
        return cost.run_seconds(settings, SPEED, DIGITS, workers=workers)

    # Four simulated workers of 32 images in one pass of 128, 0.8 s, and one update.
    assert seconds(14) - seconds(4) == pytest.approx(10 * (0.8 + 0.01))
    assert seconds(14, workers=2) - seconds(4, workers=2) == pytest.approx(10 * (0.4 + 0.01))
    # Statistics over as many images as a short run trains on, over 2,048 of a long one, and 359 test images.
    assert seconds(1) == pytest.approx(0.1 + 0.81 + (128 + 359) * 1e-3, abs=0.01)
    assert seconds(1000) == pytest.approx(0.1 + 1000 * 0.81 + (2048 + 359) * 1e-3, abs=0.01)


def test_a_batch_that_grows_costs_the_passes_of_each_size() -> None:
    """Steps of 32 images take 0.2 s, of 128 images 0.8 s, and both an update."""
    steady = _settings(steps=14, batch_size=128, simulated_workers=4)
    growing = replace(steady, batch_stages=(BatchStage(batch_size=32, until_step=4),))
    seconds = [cost.run_seconds(settings, SPEED, DIGITS, workers=1) for settings in (steady, growing)]
    assert cost.micro_batch_sizes(growing, 1) == {32: [32], 128: [128]}
    # The fewer images a short run trains on, the fewer its statistics are of.
    assert seconds[0] - seconds[1] == pytest.approx(4 * 0.6, abs=0.4)
    often = replace(growing, accuracy_examples=256)  # 1,408 images
    evaluations = cost.run_seconds(often, SPEED, DIGITS, workers=1) - seconds[1]
    assert evaluations == pytest.approx(5 * (512 + 359) * 1e-3, rel=0.01)
    assert cost.run_memory(growing, SPEED, DIGITS, workers=1) == cost.run_memory(steady, SPEED, DIGITS, workers=1)


def test_small_groups_pass_together() -> None:
    """So that four simulated workers take one pass of their images, not four."""

    def sizes(batch: int, simulated: int, workers: int = 1, **changes: Any) -> list[int]:
        return cost.micro_batch_sizes(_settings(batch_size=batch, simulated_workers=simulated, **changes), workers)[
            batch
        ]

    assert sizes(128, 4) == [128]
    assert sizes(128, 4, workers=2) == [64]
    assert sizes(128, 4, reduction="exact") == [32] * 4
    assert sizes(4096, 64) == [512] * 8
    assert sizes(4096, 2) == [2048] * 2  # a group is not cut
    assert sizes(4096, 2, bn_group=64) == [512] * 8


def test_memory_grows_with_the_micro_batch_and_not_the_batch() -> None:
    def memory(batch: int, simulated: int) -> float:
        settings = _settings(batch_size=batch, simulated_workers=simulated)
        return cost.run_memory(settings, SPEED, DIGITS, workers=1)

    assert memory(1024, 1) - memory(512, 1) == pytest.approx(512 * 1e5)
    assert memory(4096, 8) == memory(8192, 16) == memory(512, 1)


@given(n=st.integers(100, 200_000), iterations=st.integers(1, 2000))
def test_maps_of_more_points_or_iterations_take_longer(n: int, iterations: int) -> None:
    assert cost.tsne_seconds(2 * n, iterations, 50) > cost.tsne_seconds(n, iterations, 50) or n < 10_000 <= 2 * n
    assert cost.tsne_seconds(n, iterations + 1, 50) > cost.tsne_seconds(n, iterations, 50)


def test_extra_embeddings_cost_their_time_and_landmarks_save_it() -> None:
    def seconds(n_train: int, **keys: Any) -> float:
        size = replace(DIGITS, n_train=n_train)
        return cost.reduce_cost(ReduceConfig.model_validate(keys), NETWORK, size, cores=2).seconds

    one, two, three = (
        seconds(5000, extra_embeddings=({"random_state": 1}, {"theta": 0.2})[:more]) for more in (0, 1, 2)
    )
    assert three - two == pytest.approx(two - one)
    assert two > 1.3 * one
    million = 1_281_167
    assert seconds(million) == seconds(million, landmarks=100_000) < 0.6 * seconds(million, landmarks="none")
    assert seconds(200_000) == seconds(200_000, landmarks="none")


def _extractor_costs(**finetune: Any) -> tuple[cost.PlannedCost, cost.PlannedCost]:
    """Of the stages finetune and extract of tests/params.yaml."""
    params = digits_params()
    params = params.model_copy(update={"finetune": params.finetune.model_copy(update=finetune)})
    run = jobs.finetune_run(params, "resnet18", DIGITS)
    stages_here = frozenset({"finetune@resnet18", "extract@resnet18"})
    costs = jobs.stage_costs(params, stages_here, DIGITS, {"finetune@resnet18": [run]}, {run.workload: SPEED})
    return costs["finetune@resnet18"], costs["extract@resnet18"]


def test_folds_multiply_the_runs_and_each_sees_fewer_images() -> None:
    """180 steps of 64 images, 0.4 s each, alone; of four folds four times 3/4 of them."""
    (one, seen), (four, seen_by_four) = _extractor_costs(), _extractor_costs(folds=4)
    steps = 8 * 1438 / 64
    assert four.seconds - one.seconds == pytest.approx(2 * steps * (0.4 + 0.01) + 3 * (0.1 + 2.4), rel=0.03)
    assert four.disk == 4 * one.disk
    assert four.memory - one.memory == 3 * SPEED.weight_bytes
    passes = 3 * (1438 + 359) * 1e-3
    assert passes < seen_by_four.seconds - seen.seconds < 2 * passes
    # The features by each network, in the workspace and in the cache of DVC.
    assert seen_by_four.disk == seen.disk + 2 * 4 * 4 * 1438 * 512


def test_mirror_images_take_the_time_of_as_many_again() -> None:
    run = jobs.finetune_run(digits_params(), "resnet18", DIGITS)
    plain, mirrored = (
        cost.extract_cost(run.settings, ExtractConfig(batch_size=8, flip_tta=mirror), SPEED, DIGITS, folds=1, workers=1)
        for mirror in (False, True)
    )
    assert mirrored.seconds - plain.seconds == pytest.approx((1438 + 359) * 1e-3)


def test_a_head_takes_passes_forward_and_no_steps() -> None:
    (head, seen), (full, seen_as_well) = _extractor_costs(trainable="head"), _extractor_costs()
    assert seen == seen_as_well
    assert (1438 + 359) * 1e-3 < head.seconds - 4.5 < 0.1 * full.seconds
    more, _ = _extractor_costs(trainable="head", folds=3)
    assert head.seconds < more.seconds < 3 * head.seconds


def test_a_replicate_costs_what_the_first_does() -> None:
    run, again = (jobs.finetune_run(digits_params(), name, DIGITS) for name in ("resnet18", "resnet18-r2"))
    assert again.workload == run.workload
    assert again.settings == replace(run.settings, seed=run.settings.seed + 2)


def test_totals_add_time_and_disk_and_take_the_largest_memory() -> None:
    one = cost.PlannedCost(seconds=1, memory=5, disk=10)
    two = cost.PlannedCost(seconds=2, memory=3, disk=20)
    assert cost.total_cost([one, two]) == cost.PlannedCost(seconds=3, memory=5, disk=30)
    assert cost.total_cost([]) == cost.PlannedCost(seconds=0, memory=0, disk=0)


def test_weights_of_one_seed_count_in_the_ledger() -> None:
    params = digits_params()
    runs = {
        "train@digits": jobs.planned_runs(params, "digits", plan_from_sizes(params, "digits", DIGITS, {NETWORK: 1366}))
    }
    speeds = {run.workload: SPEED for run in runs["train@digits"]}
    costs = jobs.stage_costs(params, frozenset({"train@digits"}), DIGITS, runs, speeds)
    # 9 of the 27 runs, the best network and its copy in DVC's cache.
    assert costs["train@digits"].disk == pytest.approx((9 + 2) * 45e6, rel=0.01)


# Measuring


@given(sizes=st.sets(st.integers(1, 5000), min_size=1), max_sizes=st.integers(2, 6))
def test_thinned_sizes_keep_both_ends(sizes: set[int], max_sizes: int) -> None:
    chosen = subsample_sizes(sizes, max_sizes)
    assert chosen == sorted(set(chosen) & sizes)
    assert (chosen[0], chosen[-1]) == (min(sizes), max(sizes))
    assert len(chosen) <= max_sizes


def test_a_network_too_large_to_be_measured_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> float:
        raise torch.OutOfMemoryError("made up")

    monkeypatch.setattr(speed_module, "_time_call", full)
    workload = Workload(
        network="small_cnn", stem="imagenet", crop_size=16, n_classes=10, threads=torch.get_num_threads()
    )
    with pytest.raises(OutOfMemory, match=" up to 256 images of 16 pixels through small_cnn ") as raised:
        measure(workload, {2, 100_000}, torch.device("cpu"), seconds=0.0)
    assert raised.value.key == "micro_batch"


def test_a_network_is_measured_by_real_steps() -> None:
    threads = torch.get_num_threads()
    try:
        workload = Workload(network="resnet18", stem="imagenet", crop_size=16, n_classes=10, threads=1)
        speed = measure(workload, {2, 16, 100_000}, torch.device("cpu"), seconds=0.0)
    finally:
        torch.set_num_threads(threads)
    # The time was over after the first size, that nearest to 32.
    assert list(speed.micro_batch_seconds) == [16]
    assert min(speed.micro_batch_seconds[16], speed.update_s, speed.evaluation_s, speed.build_s) > 0
    assert speed.weight_bytes == pytest.approx(11.2e6 * 4, rel=0.02)
    assert 1e4 < speed.activation_bytes < 1e6
