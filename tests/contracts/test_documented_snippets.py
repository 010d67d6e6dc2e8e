"""The code of docs/guides/why-do-my-two-runs-differ.md runs, and finds what it says."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

_PAGE = Path(__file__).parents[2] / "docs" / "guides" / "why-do-my-two-runs-differ.md"


def _lines(*, moved: str = "", at: int = 1) -> list[str]:
    """Train three steps, with one bit moved in a weight, or in the batch, at a step."""
    namespace: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(code, namespace)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    file = io.StringIO()
    for step in range(3):
        batch = [torch.randn(6, 4), torch.tensor([0, 1] * 3)]
        if moved and step == at:
            tensor = batch[0] if moved == "batch" else model.get_parameter(moved).data
            tensor[0, 0] = torch.nextafter(tensor[0, 0], torch.tensor(torch.inf))
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        namespace["log_bits"](file, step, batch, model, loss)
        optimizer.step()
    return file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("moved", "place"), [("batch", "step 1: batch 0:"), ("3.weight", "step 1: weight or buffer 3.weight:")]
)
def test_the_first_line_that_differs_names_the_place(moved: str, place: str) -> None:
    plain = _lines()
    assert _lines() == plain
    differ = [one for one, other in zip(plain, _lines(moved=moved), strict=True) if one != other]
    assert differ[0].startswith(place)
    for name in ("batch 1", "weight or buffer 1.running_mean", "loss", "gradient 3.bias"):
        assert any(line.startswith(f"step 2: {name}:") for line in plain)
