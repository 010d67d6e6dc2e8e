"""benchmarks/simulator_error.py on timings that the model makes, with noise: it finds what they were made with."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import simulator_error
from benchmarks.simulator_error import _judge, main, markdown
from benchmarks.simulator_predictions import RANKS, Cell, Constants, Jobs, predicted_seconds
from benchmarks.simulator_timing import StepTime, Timings
from pipeline.costmodel import Job, Measurement, ring_seconds

MIB = 2**20
BATCHES, HELD_OUT_BATCH = (16, 64), 32
BUCKETS, HELD_OUT_BUCKET = (1, 25), 5
MBITS, HELD_OUT_MBIT = (400.0, 4000.0), 1000.0
_ARGUMENTS = argparse.Namespace(
    local_batches=list(BATCHES), held_out_batches=[HELD_OUT_BATCH], held_out_buckets_mib=[HELD_OUT_BUCKET],
    held_out_mbits=[HELD_OUT_MBIT],
)  # fmt: skip


def _job(local_batch: int) -> Job:
    """40 MB of gradients; 2 ms an image and 5 ms a step."""
    return Job(
        local_batch=local_batch,
        layer_bytes=(4e6,) * 10,
        forward_seconds=0.002 + 0.0006 * local_batch,
        backward_seconds=(0.0003 + 0.00014 * local_batch,) * 10,
        optimizer_seconds=0.001,
    )


def _cell(local_batch: int, bucket_mib: int, rate: float | None) -> Cell:
    return Cell(
        ranks=RANKS, local_batch=local_batch, bucket_mib=bucket_mib, bytes_per_second=rate, seconds=1.0, held_out=False
    )


def _timings(truth: Constants, rate: float | None, *, noise: float = 0.0, ranks: int = RANKS) -> Timings:
    """As the model says they are."""
    rng = np.random.default_rng(int(rate or 0))
    batches, buckets = (*BATCHES, HELD_OUT_BATCH), (*BUCKETS, HELD_OUT_BUCKET)
    steps = [
        StepTime(
            local_batch=batch,
            bucket_mib=mib,
            seconds=predicted_seconds(_cell(batch, mib, rate), _job(batch), truth) * np.exp(noise * rng.normal()),
        )
        for batch in batches
        for mib in buckets
    ]
    points = [Measurement(n, RANKS, ring_seconds(n, RANKS, truth.link(rate))) for n in (4096.0, 1e6, 1.6e7)]
    return Timings(
        ranks=ranks,
        jobs=tuple(map(_job, batches)),
        all_reduces=tuple(points) if ranks > 1 else (),
        steps=tuple(steps) if ranks > 1 else (),
    )


def _judged(truth: Constants, rates: Sequence[float | None], noise: float = 0.0) -> dict[str, Any]:
    together = {rate: _timings(truth, rate, noise=noise) for rate in rates}
    alone = _timings(truth, None, ranks=1) if rates == [None] else None
    return _judge(_ARGUMENTS, together, alone, 64 / predicted_seconds(_alone(), _job(64), truth))


def _alone() -> Cell:
    return Cell(ranks=1, local_batch=64, bucket_mib=None, bytes_per_second=None, seconds=1.0, held_out=False)


@pytest.mark.parametrize("overlap", [True, False])
def test_constants_of_this_machine_are_found_and_predict_what_was_held_out(overlap: bool) -> None:
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=0.0, overlap=overlap)
    found = _judged(truth, [None], noise=0.01)
    assert found["constants"]["overlap"] is overlap
    assert found["constants"]["host_seconds"] == pytest.approx(1e-9, rel=0.2)
    # Nine of two ranks less four, and one of one rank.
    assert found["held_out"] == 6
    assert found["within_aim"]
    assert found["largest_error_points"] < 3


def test_constants_of_a_slowed_cable_predict_a_bandwidth_that_was_held_out() -> None:
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=1.05, overlap=True)
    found = _judged(truth, [1e6 / 8 * mbit for mbit in (*MBITS, HELD_OUT_MBIT)], noise=0.01)
    assert found["constants"]["wire_share"] == pytest.approx(1.05, rel=0.05)
    rows = [row for row in found["rows"] if row["mbit_per_second"] == HELD_OUT_MBIT]
    assert len(rows) == 9
    assert all(row["held_out"] for row in rows)
    assert found["within_aim"]


def test_steps_that_do_not_follow_the_model_are_said_to_miss_the_aim() -> None:
    """Between the fitted bucket sizes something else happens: steps of 5 MiB take half as long again."""
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=0.0, overlap=True)
    timings = _timings(truth, None)
    steps = tuple(
        StepTime(
            local_batch=step.local_batch,
            bucket_mib=step.bucket_mib,
            seconds=step.seconds * (1.5 if step.bucket_mib == HELD_OUT_BUCKET else 1),
        )
        for step in timings.steps
    )
    strange = Timings(ranks=RANKS, jobs=timings.jobs, all_reduces=timings.all_reduces, steps=steps)
    found = _judge(_ARGUMENTS, {None: strange}, None, 64 / predicted_seconds(_alone(), _job(64), truth))
    assert not found["within_aim"]
    assert "**missed**" in markdown({"this machine": found})


def test_a_step_between_two_batches_lies_on_the_line_through_them() -> None:
    jobs = Jobs([_job(batch) for batch in BATCHES])
    expected, found = _job(HELD_OUT_BATCH), jobs.at(HELD_OUT_BATCH)
    assert found.local_batch == HELD_OUT_BATCH
    assert found.forward_seconds == pytest.approx(expected.forward_seconds)
    assert found.backward_seconds == pytest.approx(expected.backward_seconds)
    assert found.optimizer_seconds == pytest.approx(expected.optimizer_seconds)


@pytest.mark.slow
def test_real_ranks_are_measured_and_predicted(tmp_path: Path) -> None:
    """On a busy machine no error is promised."""
    tiny = ["--network=squeezenet1_1", "--image-size=32", "--local-batches", "2", "6", "--held-out-batches", "4"]
    short = ["--rounds=1", "--steps=2", "--mbits", "800", "4000", "--held-out-mbits", "2000"]
    main([*tiny, *short, f"--out={tmp_path}"])
    tree = json.loads((tmp_path / "simulator_error.json").read_text())
    assert "this machine" in tree["experiments"]
    for found in tree["experiments"].values():
        for row in found["rows"]:
            assert row["measured_efficiency"] > 0
            assert row["predicted_efficiency"] > 0
    assert simulator_error.AIM_POINTS == 5
    assert "| 1 | 4 |" in (tmp_path / "simulator_error.md").read_text()
