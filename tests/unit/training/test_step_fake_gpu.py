"""A training step on a made-up GPU: every tensor is where its operator needs it, without a GPU at hand."""

import json
import sys
from pathlib import Path

import pytest

from tests.fixtures.projects import ROOT
from tests.fixtures.training import run

_SCRIPT = Path(__file__).with_name("fake_gpu_steps.py")
_CASES = [
    ("resnet18", "imagenet", "bf16", 1),
    ("resnet18", "cifar", "fp32", 4),
    ("resnet9", "imagenet", "tf32", 4),
]


@pytest.mark.slow
@pytest.mark.subprocess
def test_no_operator_of_a_run_takes_tensors_of_two_devices() -> None:
    """Steps with two micro-batches, batches of two epochs, tracked labels, clipping; and the evaluation."""
    values = [str(value) for case in _CASES for value in case]
    done = run([sys.executable, str(_SCRIPT), *values], environ={"PYTHONPATH": str(ROOT)}, timeout=300, fresh=True)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(_CASES)
    for row in rows:
        assert row["devices"] == ["cuda:0"]
        assert row["pinned"] > 0
        assert row["logits"] == "torch.float32"
