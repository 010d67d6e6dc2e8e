"""benchmarks/simulator_error.py on timings that the model makes, with noise: it finds what they were made with."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.simulator_error import judge, main, markdown
from benchmarks.simulator_predictions import RANKS, Beside, Cable, Cell, Constants, Jobs, predicted_seconds
from benchmarks.simulator_timing import StepTime, Timings
from pipeline.costmodel import Job, Measurement, ring_seconds

MIB = 2**20
BATCHES, HELD_OUT_BATCH = (16, 64), 32
BUCKETS, HELD_OUT_BUCKET = (1, 25), 5
SLOWED, HELD_OUT_SLOWED = (Cable(0.5e8), Cable(5e8)), Cable(1.25e8)
DELAYED, HELD_OUT_DELAYED = (Cable(1.25e8, 0.0), Cable(1.25e8, 0.008)), Cable(1.25e8, 0.003)
_ARGUMENTS = argparse.Namespace(
    local_batches=list(BATCHES), held_out_batches=[HELD_OUT_BATCH], held_out_buckets_mib=[HELD_OUT_BUCKET]
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


def _cell(local_batch: int, bucket_mib: int, cable: Cable | None) -> Cell:
    return Cell(
        ranks=RANKS, local_batch=local_batch, bucket_mib=bucket_mib, cable=cable, seconds=1.0,
        reference=1.0, held_out=False,
    )  # fmt: skip


def _timings(truth: Constants, cable: Cable | None, *, noise: float = 0.0) -> Timings:
    """As the model says they are."""
    rng = np.random.default_rng(int(cable.bytes_per_second + 1e6 * (cable.delay_seconds or 0)) if cable else 0)
    batches, buckets = (*BATCHES, HELD_OUT_BATCH), (*BUCKETS, HELD_OUT_BUCKET)
    steps = [
        StepTime(
            local_batch=batch,
            bucket_mib=mib,
            seconds=predicted_seconds(_cell(batch, mib, cable), _job(batch), truth) * np.exp(noise * rng.normal()),
        )
        for batch in batches
        for mib in buckets
    ]
    points = [Measurement(n, RANKS, ring_seconds(n, RANKS, truth.link(cable))) for n in (4096.0, 1e6, 1.6e7)]
    return Timings(
        ranks=RANKS,
        alone=tuple(map(_job, batches)),
        jobs=tuple(map(_job, batches)),
        all_reduces=tuple(points),
        steps=tuple(steps),
    )


def _judged(
    truth: Constants, fitted: Sequence[Cable | None], held_out: Sequence[Cable] = (), noise: float = 0.0
) -> dict[str, Any]:
    return judge(
        _ARGUMENTS, *({cable: _timings(truth, cable, noise=noise) for cable in of} for of in (fitted, held_out))
    )


def _slower(timings: Timings, factor: float) -> Timings:
    """As on a machine that takes so much longer for everything."""

    def slower(job: Job) -> Job:
        backward = tuple(factor * seconds for seconds in job.backward_seconds)
        forward, optimizer = factor * job.forward_seconds, factor * job.optimizer_seconds
        return replace(job, forward_seconds=forward, backward_seconds=backward, optimizer_seconds=optimizer)

    steps = tuple(replace(step, seconds=factor * step.seconds) for step in timings.steps)
    return replace(timings, alone=tuple(map(slower, timings.alone)), jobs=tuple(map(slower, timings.jobs)), steps=steps)


@pytest.mark.parametrize("beside", ["all", "nothing"])
def test_constants_of_this_machine_are_found_and_predict_what_was_held_out(beside: Beside) -> None:
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=0.0, message_delays=1.0, beside=beside)
    found = _judged(truth, [None], noise=0.01)
    assert found["constants"]["beside"] == beside
    assert found["constants"]["host_seconds"] == pytest.approx(1e-9, rel=0.2)
    # Nine of two ranks less four, and one of one rank.
    assert found["held_out"] == 6
    assert found["within_aim"]
    assert found["largest_error_points"] < 3


def test_constants_of_a_slowed_cable_predict_a_bandwidth_that_was_held_out() -> None:
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=1.05, message_delays=1.0, beside="all")
    found = _judged(truth, SLOWED, [HELD_OUT_SLOWED], noise=0.01)
    assert found["constants"]["wire_share"] == pytest.approx(1.05, rel=0.05)
    rows = [row for row in found["rows"] if row["mbit_per_second"] == 1000]
    assert len(rows) == 9
    assert all(row["held_out"] for row in rows)
    assert found["within_aim"]


def test_a_host_without_a_core_to_spare_is_told_from_its_wire() -> None:
    """Its part makes the backward pass longer, whatever the bandwidth; the wire's part is hidden."""
    truth = Constants(latency_seconds=2e-4, host_seconds=8e-9, wire_share=1.05, message_delays=1.0, beside="wire")
    found = _judged(truth, SLOWED, [HELD_OUT_SLOWED], noise=0.01)
    assert found["constants"]["beside"] == "wire"
    assert found["constants"]["host_seconds"] == pytest.approx(8e-9, rel=0.2)
    assert found["within_aim"]


def test_constants_of_a_delayed_cable_predict_a_delay_that_was_held_out() -> None:
    """At one bandwidth a byte on the wire for each is taken for granted."""
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=1.05, message_delays=1.5, beside="all")
    found = _judged(truth, DELAYED, [HELD_OUT_DELAYED], noise=0.01)
    assert found["constants"]["message_delays"] == pytest.approx(1.5, rel=0.1)
    assert found["constants"]["wire_share"] == 1
    assert found["constants"]["host_seconds"] == pytest.approx(1e-9 + 0.05 / 1.25e8, rel=0.3)
    rows = [row for row in found["rows"] if row["delay_ms"] == pytest.approx(3)]
    assert len(rows) == 9
    assert all(row["held_out"] for row in rows)
    assert found["within_aim"]


def test_steps_that_do_not_follow_the_model_are_said_to_miss_the_aim() -> None:
    """Between the fitted bucket sizes something else happens: steps of 5 MiB take half as long again."""
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=0.0, message_delays=1.0, beside="all")
    timings = _timings(truth, None)
    factors = {HELD_OUT_BUCKET: 1.5}
    steps = tuple(replace(step, seconds=step.seconds * factors.get(step.bucket_mib, 1.0)) for step in timings.steps)
    found = judge(_ARGUMENTS, {None: replace(timings, steps=steps)}, {})
    assert not found["within_aim"]
    assert "**missed**" in markdown({"this machine": found})


def test_a_launch_on_a_slower_machine_is_judged_by_its_own_rank_alone() -> None:
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=1.05, message_delays=1.0, beside="all")
    fitted: dict[Cable | None, Timings] = {cable: _timings(truth, cable) for cable in SLOWED}
    held_out: dict[Cable | None, Timings] = {HELD_OUT_SLOWED: _slower(_timings(truth, HELD_OUT_SLOWED), 2.0)}
    assert judge(_ARGUMENTS, fitted, held_out)["within_aim"]


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
    short += ["--delays-ms", "0", "4", "--held-out-delays-ms", "1"]
    main([*tiny, *short, f"--out={tmp_path}"])
    tree = json.loads((tmp_path / "simulator_error.json").read_text())
    assert "this machine" in tree["experiments"]
    for found in tree["experiments"].values():
        for row in found["rows"]:
            assert row["measured_efficiency"] > 0
            assert row["predicted_efficiency"] > 0
    assert "| 1 | 4 |" in (tmp_path / "simulator_error.md").read_text()
