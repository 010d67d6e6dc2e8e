"""Ranks without a process group: their number, one process without collectives, and ranks without a launcher."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from pipeline import distributed
from pipeline.batching import valid_world_sizes
from pipeline.distributed import LaunchPlan, choose_workers, participating_ranks
from pipeline.errors import InputError
from tests.fixtures.training import run


@pytest.mark.parametrize(
    ("requested", "simulated", "gpus", "chosen"),
    [
        (3, 6, 0, 3),
        (3, 6, 4, 3),
        ("auto", 8, 1, 1),
        ("auto", 8, 4, 4),
        ("auto", 8, 7, 4),
        ("auto", 6, 4, 3),
        ("auto", 7, 4, 1),
    ],
)
def test_workers(monkeypatch: pytest.MonkeyPatch, requested: int, simulated: int, gpus: int, chosen: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert choose_workers(requested, valid_world_sizes(simulated)) == chosen


def test_more_workers_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError) as raised:
        choose_workers(3, valid_world_sizes(6))
    assert raised.value.key == "workers"


@pytest.mark.parametrize(
    ("world", "simulated", "exact", "joining"),
    [
        (3, 4, False, 2),
        (4, 4, False, 4),
        (9, 4, False, 4),
        (3, 4, True, 3),
        (9, 4, True, 4),
        (5, 12, True, 5),
        (5, 12, False, 4),
    ],
)
def test_of_too_many_processes_the_largest_valid_number_takes_part(
    world: int, simulated: int, exact: bool, joining: int
) -> None:
    assert participating_ranks("auto", valid_world_sizes(simulated, "exact" if exact else "ddp"), world) == joining


def test_a_wrong_number_of_processes_lists_the_valid_ones() -> None:
    fitting = valid_world_sizes(6)
    assert participating_ranks(2, fitting, 3) == 3
    with pytest.raises(InputError) as raised:
        participating_ranks(2, fitting, 4)
    assert str(fitting) in str(raised.value)


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        # The agent causes the second and later ones: SIGTERM at once, SIGKILL half a minute later.
        ([(2, 0), (-15, 0)], 2),
        ([(-15, 0), (2, 0)], 2),
        ([(2, 0), (-9, 30)], 2),
        ([(1, 0), (-9, 0)], 137),
        ([(-9, 0), (1, 0)], 137),
        ([(-15, 0), (-15, 0)], 143),
    ],
)
def test_the_exit_code_is_that_of_the_process_that_failed(
    ended: list[tuple[int, int]], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cases are exit codes and the second of each, as the agent of torchrun reports them."""
    failures = {}
    for rank, (exit_code, second) in enumerate(ended):
        failures[rank] = ProcessFailure(local_rank=rank, pid=1, exitcode=exit_code, error_file="")
        failures[rank].timestamp = 1_000 + second

    def failed(*_: object) -> None:
        raise ChildFailedError("module", failures)

    monkeypatch.setattr("torch.distributed.run.run", failed)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("BATCHSIEVE_LAUNCHER", "1")
    assert distributed.launch("module", [], len(ended)) == code


class _EndedError(Exception):
    """What the earlier handler raises."""


@pytest.mark.parametrize(
    ("sent", "rank_ends_by"),
    [
        ([signal.SIGINT], signal.SIGTERM),
        ([signal.SIGTERM], signal.SIGTERM),
        ([signal.SIGINT, signal.SIGINT], signal.SIGKILL),
    ],
    ids=["SIGINT", "SIGTERM", "SIGINT twice"],
)
def test_a_signal_that_saved_nothing_ends_as_without_ranks(
    sent: list[signal.Signals], rank_ends_by: signal.Signals, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """A second Ctrl-C kills ranks that do not end at the first."""
    ignoring = len(sent) > 1
    code, ended_by = "trap '' TERM; echo; sleep 60 & wait; wait" if ignoring else "echo; exec sleep 60", list[int]()

    def run_ranks(*_: object) -> None:
        with subprocess.Popen(["sh", "-c", code], stdout=subprocess.PIPE, start_new_session=True) as rank:
            # Other children of this process belong to other tests.
            monkeypatch.setattr(sys.modules[LaunchPlan.__module__], "child_pids", lambda _: [rank.pid])
            assert rank.stdout is not None
            rank.stdout.readline()
            for number in sent:
                os.kill(os.getpid(), number)
            rank_code = rank.wait(timeout=20)
            rank.stdout.close()
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
        assert rank_code == -rank_ends_by
        raise ChildFailedError("m", {0: ProcessFailure(local_rank=0, pid=1, exitcode=rank_code, error_file="")})

    def end(number: int, _: object) -> None:
        ended_by.append(number)
        raise _EndedError

    monkeypatch.setattr("torch.distributed.run.run", run_ranks)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("BATCHSIEVE_LAUNCHER", "1")
    before = signal.signal(sent[0], end)
    try:
        with pytest.raises(_EndedError):
            distributed.launch("module", [], 1)
        assert signal.getsignal(sent[0]) is end
    finally:
        signal.signal(sent[0], before)
    assert ended_by == sent[:1]
    assert capfd.readouterr().err == ""


def test_one_process_has_nothing_to_exchange() -> None:
    threads = torch.get_num_threads()
    with distributed.join_process_group(threads_per_worker=threads) as world:
        assert (world.rank, world.size, world.is_main) == (0, 1, True)
        assert distributed.broadcast_object("x") == "x"
        assert distributed.all_reduce_sum_(torch.tensor(3.0)) == 3
        model = nn.Linear(1, 1)
        assert distributed.data_parallel(model, world.device) is model
        with distributed.gradient_sync(model, enabled=False):
            distributed.barrier()


def test_a_rank_outside_a_process_group_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    with pytest.raises(RuntimeError):
        distributed.barrier()


@pytest.mark.slow
def test_a_rank_whose_launcher_died_does_not_start() -> None:
    code = "from pipeline import distributed\nwith distributed.join_process_group(1): print('trains')"
    places = {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    launched = {"TORCHELASTIC_RUN_ID": "x", "BATCHSIEVE_LAUNCHER": "1000000000"}
    done = run([sys.executable, "-c", code], environ={**places, **master, **launched})
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "the process that started this rank is gone\n"
