"""Which device a rank has, and by what ranks exchange."""

import pytest
import torch

from pipeline.distributed.launch import SHARED_GPU, choose_workers
from pipeline.distributed.process_group import _device_and_backend
from pipeline.errors import InputError


@pytest.mark.parametrize(
    ("local", "here", "gpus", "shared", "expected"),
    [
        (1, 2, 0, "", ("cpu", "gloo")),
        (1, 2, 0, "1", ("cpu", "gloo")),
        (1, 2, 2, "", ("cuda:1", "nccl")),
        (1, 2, 1, "1", ("cuda:0", "gloo")),
        (3, 4, 2, "1", ("cuda:1", "gloo")),
    ],
)
def test_ranks_share_a_gpu_only_on_request(
    monkeypatch: pytest.MonkeyPatch, local: int, here: int, gpus: int, shared: str, expected: tuple[str, str]
) -> None:
    monkeypatch.setenv(SHARED_GPU, shared)
    device, backend = _device_and_backend(local, here, gpus)
    assert (str(device), backend) == expected


def test_two_ranks_on_one_gpu_are_refused_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHARED_GPU, raising=False)
    with pytest.raises(InputError, match=SHARED_GPU):
        _device_and_backend(0, 2, 1)


@pytest.mark.parametrize("shared", [True, False])
def test_as_many_workers_are_started_as_may_share(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    monkeypatch.setenv(SHARED_GPU, "1" if shared else "")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    if shared:
        assert choose_workers(2, [1, 2]) == 2
    else:
        with pytest.raises(InputError, match="workers: 2, but this machine has 1 GPUs"):
            choose_workers(2, [1, 2])


def test_workers_of_one_process_each_are_not_told_to_be_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With local steps or compression, their number comes from `simulated_workers` and no other is allowed."""
    monkeypatch.delenv(SHARED_GPU, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=r"this machine has 2 GPUs.*; lower it, use more nodes, or") as refused:
        choose_workers(4, [4])
    assert refused.value.key == "simulated_workers"
