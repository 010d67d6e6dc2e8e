"""benchmarks/simulator_error.py on timings of the model with noise: it recovers the constants."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import curve_fit

from benchmarks import simulator_error
from benchmarks.simulator_error import LaunchFailed, evaluate, main
from benchmarks.simulator_predictions import (
    RANKS,
    Cable,
    Constants,
    Jobs,
    MeasuredSetting,
    Overlap,
    predicted_seconds,
    seconds_of,
    standard_errors,
    typical_seconds,
)
from benchmarks.simulator_timing import ALONE, WITHOUT, StepTimings, Timings
from benchmarks.simulator_wording import markdown
from pipeline.simulator import AllReduceTiming, Job, ring_seconds
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.training import run

MIB = 2**20
BATCHES, HELD_OUT_BATCH = (16, 64), 32
BUCKETS, HELD_OUT_BUCKET = (1, 25), 5
SLOWED, HELD_OUT_SLOWED = (Cable(0.5e8), Cable(5e8)), Cable(1.25e8)
DELAYED, HELD_OUT_DELAYED = (Cable(1.25e8, 0.0), Cable(1.25e8, 0.008)), Cable(1.25e8, 0.003)
_ARGUMENTS = argparse.Namespace(
    local_batches=list(BATCHES), held_out_batches=[HELD_OUT_BATCH], held_out_buckets_mib=[HELD_OUT_BUCKET]
)  # fmt: skip

_HEAD: dict[str, Any] = {
    "settings": {"network": "resnet18", "image_size": 64, "turns": 1, "experiments": ["this machine"]},
    "machine": {"cores": 2, "torch": "2"},
    "missing": {},
}


def _job(local_batch: int, slowness: float = 1.0) -> Job:
    """40 MB of gradients; 2 ms an image and 6 ms a step, times `slowness`."""
    return Job(
        local_batch=local_batch,
        layer_bytes=(4e6,) * 10,
        forward_seconds=slowness * (0.002 + 0.0006 * local_batch),
        backward_seconds=(slowness * (0.0003 + 0.00014 * local_batch),) * 10,
        optimizer_seconds=slowness * 0.001,
    )


def _cell(job: Job, bucket_mib: int, cable: Cable | None) -> MeasuredSetting:
    return MeasuredSetting(
        ranks=RANKS, local_batch=job.local_batch, bucket_mib=bucket_mib, cable=cable, job=job, seconds=1.0,
        reference=1.0, held_out="",
    )  # fmt: skip


def _timings(
    truth: Constants, cable: Cable | None, *, noise: float = 0.0, slowness: float = 1.0, waiting: float = 1.0
) -> Timings:
    """As the model says they are, on cores that take `slowness` times as long to compute.

    The slower of two ranks takes `waiting` times as long as the other, and either is so half of the time.
    """
    rng = np.random.default_rng(int(cable.bytes_per_second + 1e6 * (cable.delay_seconds or 0)) if cable else 0)
    batches, buckets = (*BATCHES, HELD_OUT_BATCH), (*BUCKETS, HELD_OUT_BUCKET)
    # A turn may be twice as slow as another; the middle one is as the model says.
    paces = rng.permutation(np.exp(np.linspace(-0.35, 0.35, 9)))
    steps = []
    for batch in batches:
        alone, together = _job(batch, slowness), _job(batch, slowness * waiting)
        full: dict[str | int, float] = {mib: predicted_seconds(_cell(together, mib, cable), truth) for mib in buckets}
        plain: dict[str | int, float] = {ALONE: seconds_of(alone), WITHOUT: seconds_of(together)}
        for way, seconds in {**plain, **full}.items():
            slower = seconds * paces * (np.exp(noise * rng.normal(size=9)) if way in full else 1.0)
            ranks = np.array([slower, slower / waiting])
            ranks[:, ::2] = ranks[::-1, ::2]
            kept = [slower] if way == ALONE else ranks
            steps.append(StepTimings(local_batch=batch, way=way, seconds=tuple(tuple(of.tolist()) for of in kept)))
    points = [AllReduceTiming(n, RANKS, ring_seconds(n, RANKS, truth.link(cable))) for n in (4096.0, 1e6, 1.6e7)]
    # They say what a part's share is, and may have been taken at another pace.
    jobs = tuple(_job(batch, pace) for batch, pace in zip(batches, (1.3, 0.8, 1.0), strict=True))
    return Timings(ranks=RANKS, jobs=jobs, all_reduces=tuple(points), steps=tuple(steps))


def _longer(timings: Timings, factor: float, which: Callable[[StepTimings], bool]) -> Timings:
    """With some steps so many times as long."""
    steps = (
        replace(of, seconds=tuple(tuple(factor * one for one in rank) for rank in of.seconds)) if which(of) else of
        for of in timings.steps
    )
    return replace(timings, steps=tuple(steps))


def _evaluated(
    truth: Constants, fitted: Sequence[Cable | None], held_out: Sequence[Cable] = (), noise: float = 0.0
) -> dict[str, Any]:
    return evaluate(
        _ARGUMENTS, *({cable: _timings(truth, cable, noise=noise) for cable in of} for of in (fitted, held_out))
    )


@pytest.mark.parametrize("overlap", ["all", "nothing"])
def test_constants_of_this_machine_predict_what_was_held_out(overlap: Overlap) -> None:
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=0.0, message_delays=1.0, overlap=overlap)
    found = _evaluated(truth, [None], noise=0.01)
    assert found["fit"]["constants"]["overlap"] == overlap
    assert found["fit"]["constants"]["host_seconds"] == pytest.approx(1e-9, rel=0.2)
    # Nine of two ranks less four, and one of one rank.
    assert {kind: of["settings"] for kind, of in found["held_out"].items()} == {"all": 6, "size": 5, "one rank": 1}
    assert found["held_out"]["all"]["within_aim"]
    assert found["held_out"]["all"]["largest_error_points"] < 3


def test_constants_of_a_slowed_cable_predict_a_held_out_bandwidth() -> None:
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=1.05, message_delays=1.0, overlap="all")
    found = _evaluated(truth, SLOWED, [HELD_OUT_SLOWED], noise=0.01)
    assert found["fit"]["constants"]["wire_share"] == pytest.approx(1.05, rel=0.05)
    rows = [row for row in found["rows"] if row["mbit_per_second"] == 1000]
    assert len(rows) == 9
    assert {row["held_out"] for row in rows} == {"cable"}
    assert found["held_out"]["all"]["within_aim"]


def test_a_host_without_a_spare_core_differs_from_its_wire() -> None:
    """Its part makes the backward pass longer, whatever the bandwidth; the wire's part is hidden."""
    truth = Constants(latency_seconds=2e-4, host_seconds=8e-9, wire_share=1.05, message_delays=1.0, overlap="wire")
    found = _evaluated(truth, SLOWED, [HELD_OUT_SLOWED], noise=0.01)
    assert found["fit"]["constants"]["overlap"] == "wire"
    assert found["fit"]["constants"]["host_seconds"] == pytest.approx(8e-9, rel=0.2)
    assert found["held_out"]["all"]["within_aim"]


def test_constants_of_a_delayed_cable_predict_a_held_out_delay() -> None:
    """At one bandwidth a byte on the wire for each is taken for granted."""
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=1.05, message_delays=1.5, overlap="all")
    found = _evaluated(truth, DELAYED, [HELD_OUT_DELAYED], noise=0.01)
    assert found["fit"]["constants"]["message_delays"] == pytest.approx(1.5, rel=0.1)
    assert found["fit"]["constants"]["wire_share"] == 1
    assert found["fit"]["constants"]["host_seconds"] == pytest.approx(1e-9 + 0.05 / 1.25e8, rel=0.3)
    rows = [row for row in found["rows"] if row["delay_ms"] == pytest.approx(3)]
    assert len(rows) == 9
    assert {row["held_out"] for row in rows} == {"cable"}
    assert found["held_out"]["all"]["within_aim"]


def test_steps_that_do_not_follow_the_model_miss_the_goal() -> None:
    """Between the fitted bucket sizes something else happens: steps of 5 MiB take half as long again."""
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=0.0, message_delays=1.0, overlap="all")
    timings = _timings(truth, None)
    changed = _longer(timings, 1.5, lambda of: of.way == HELD_OUT_BUCKET)
    found = evaluate(_ARGUMENTS, {None: changed}, {})
    assert not found["held_out"]["all"]["within_aim"]
    assert "**missed**" in markdown({**_HEAD, "experiments": {"this machine": found}})


@pytest.mark.parametrize("slow", [*SLOWED, HELD_OUT_SLOWED])
def test_a_slow_launch_is_compared_with_its_own_computation(slow: Cable) -> None:
    """Whether its steps were fitted or held out."""
    _assert_predicted(lambda truth, cable: _timings(truth, cable, slowness=1.3 if cable == slow else 1.0))


def test_a_step_lasts_until_the_slower_rank_has_done_it() -> None:
    """Which is measured without exchange, so that no constant of the link has to stand for it."""
    _assert_predicted(lambda truth, cable: _timings(truth, cable, waiting=1.2))


def _assert_predicted(launch: Callable[[Constants, Cable | None], Timings]) -> None:
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=1.05, message_delays=1.0, overlap="all")
    fitted, held_out = (
        dict[Cable | None, Timings]({cable: launch(truth, cable) for cable in of}) for of in (SLOWED, [HELD_OUT_SLOWED])
    )
    found = evaluate(_ARGUMENTS, fitted, held_out)
    assert found["held_out"]["all"]["largest_error_points"] < 0.5
    assert found["fit"]["constants"]["wire_share"] == pytest.approx(1.05, rel=0.02)


def test_held_out_steps_do_not_change_the_pace() -> None:
    """Steps of the held-out batch that take ten times as long change what is measured of them alone."""
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=0.0, message_delays=1.0, overlap="all")
    timings = _timings(truth, None)
    changed = _longer(timings, 10, lambda of: of.local_batch == HELD_OUT_BATCH)
    usual, slow = (evaluate(_ARGUMENTS, {None: of}, {})["rows"] for of in (timings, changed))
    for row, slower in zip(usual, slow, strict=True):
        assert slower["predicted_efficiency"] == pytest.approx(row["predicted_efficiency"])
        factor = 10 if row["local_batch"] == HELD_OUT_BATCH else 1
        assert factor * slower["measured_efficiency"] == pytest.approx(row["measured_efficiency"])


def test_typical_seconds_are_those_of_the_slowest_rank() -> None:
    """By hand: turns at paces of 1, 2 and 4; the exchange takes 3, 1.5 and 2 times the plain step."""
    plain = {(batch, way): ((1.0, 2.0, 4.0),) * ranks for batch in (2, 4) for way, ranks in ((ALONE, 1), (WITHOUT, 2))}
    exchange = ((3.0, 1.0, 8.0), (2.0, 3.0, 7.0))
    steps = [StepTimings(local_batch=batch, way=way, seconds=seconds) for (batch, way), seconds in plain.items()]
    result = typical_seconds([*steps, StepTimings(local_batch=2, way=25, seconds=exchange)], [2, 4])
    assert result == pytest.approx({**dict.fromkeys(plain, 2.0), (2, 25): 2 * 2.0})


def test_constants_are_reported_as_fitted_assumed_or_undetermined() -> None:
    """With one bucket size that is not held out there are as many steps as constants."""
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=0.0, message_delays=1.0, overlap="all")
    two_steps = argparse.Namespace(**{**vars(_ARGUMENTS), "held_out_buckets_mib": [1, 5]})
    for arguments, said in ((_ARGUMENTS, " ± "), (two_steps, " (not determined by these steps) ")):
        found = evaluate(arguments, {None: _timings(truth, None, noise=0.01)}, {})
        words = markdown({**_HEAD, "experiments": {"this machine": found}})
        assert re.search(rf"latency of a message [0-9.e+-]+{re.escape(said)}", words)
        assert "1 (assumed)" in words


def test_standard_errors_are_those_of_curve_fit() -> None:
    """A host that stands still for each byte and a latency after the last lengthen steps alike, up to rounding."""
    rng = np.random.default_rng(0)
    x, y = np.arange(8.0), rng.normal(size=8)
    jacobian = np.column_stack([np.ones(8), x])
    coefficients, covariance = curve_fit(lambda x, start, slope: start + slope * x, x, y)
    result = standard_errors(jacobian, y - jacobian @ coefficients)
    np.testing.assert_allclose(result, np.sqrt(np.diag(covariance)), rtol=1e-5)
    alike = np.column_stack([x, 0.01 * x * (1 + 1e-8 * rng.normal(size=8))])
    assert np.isnan(standard_errors(alike, y)).all()


def test_a_step_between_two_batches_lies_on_the_line_through_them() -> None:
    jobs = Jobs([_job(batch) for batch in BATCHES])
    expected, result = _job(HELD_OUT_BATCH), jobs.at(HELD_OUT_BATCH)
    assert result.local_batch == HELD_OUT_BATCH
    assert result.forward_seconds == pytest.approx(expected.forward_seconds)
    assert result.backward_seconds == pytest.approx(expected.backward_seconds)
    assert result.optimizer_seconds == pytest.approx(expected.optimizer_seconds)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["--held-out-batches", "32", "64"], "--held-out-batches"),
        (["--held-out-buckets-mib", "25"], "--held-out-buckets-mib"),
        (["--mbits", "100", "2000"], "--held-out-mbits"),
        (["--held-out-delays-ms", "8"], "--held-out-delays-ms"),
    ],
)
def test_what_is_held_out_is_not_fitted_to(
    options: Sequence[str], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*options, f"--out={tmp_path}"])
    assert stopped.value.code == 2
    assert printed_error(capsys.readouterr().err).key == key


def test_a_launch_that_fails_costs_its_experiment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = Constants(latency_seconds=2e-4, host_seconds=1e-9, wire_share=1.05, message_delays=1.0, overlap="all")

    def measured(_: object, cable: Cable | None) -> Timings:
        if cable and cable.delay_seconds:
            raise LaunchFailed("a rank failed: exit codes [1, 0]")
        return _timings(truth, cable)

    monkeypatch.setattr(simulator_error, "_measure_cable", measured)
    main(["--delays-ms", "0", "8", f"--out={tmp_path / 'first'}"])
    monkeypatch.setattr(simulator_error, "_measure_cable", lambda *_: pytest.fail("measured again"))
    main([f"--timings={tmp_path / 'first/timings.json'}", f"--out={tmp_path / 'again'}"])
    for name in ("simulator_error.json", "simulator_error.md"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    text = (tmp_path / "again/simulator_error.md").read_text()
    assert text.count("exit codes [1, 0]") == 1
    assert {"## A delayed cable", "## A slowed cable"} <= set(text.splitlines())


@pytest.mark.slow
@pytest.mark.distributed
def test_real_ranks_are_measured_and_predicted(tmp_path: Path) -> None:
    """On a busy machine no error is promised."""
    tiny = ["--network=squeezenet1_1", "--image-size=32", "--local-batches", "2", "6", "--held-out-batches", "4"]
    short = ["--rounds=1", "--turns=2", "--experiments", "this machine", "a delayed cable"]
    short += ["--delays-ms", "0", "4", "--held-out-delays-ms", "1"]
    command = [sys.executable, "-m", "benchmarks.simulator_error", *tiny, *short, f"--out={tmp_path}"]
    done = run(command, timeout=600)
    assert done.returncode == 0, done.stderr
    tree = json.loads((tmp_path / "simulator_error.json").read_text())
    assert tree["experiments"]["this machine"]
    for result in tree["experiments"].values():
        for row in result["rows"]:
            assert row["measured_efficiency"] > 0
            assert row["predicted_efficiency"] > 0
    assert "| 1 | 4 |" in (tmp_path / "simulator_error.md").read_text()
