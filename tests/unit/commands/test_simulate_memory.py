"""`simulate --measure` with images that do not fit the memory."""

from pathlib import Path

import pytest
import torch

from pipeline.__main__ import main
from pipeline.commands import simulate
from tests.fixtures.printed_errors import printed_error

_MACHINE = Path(__file__).parents[3] / "machines" / "summit.yaml"


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("made up")], ids=["machine", "GPU"])
def test_a_local_batch_too_large_for_the_memory_is_named(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(simulate, "measured_job", fail)
    options = ["--measure", "--network", "resnet18", "--image-size", "32", "--local-batch", "8", "--out", str(tmp_path)]
    assert main(["simulate", "--machine", str(_MACHINE), *options]) != 0
    shown = printed_error(capsys.readouterr().err)
    assert shown.key == "--local-batch 8"
    assert str(shown).endswith("do not fit the memory; lower it")
