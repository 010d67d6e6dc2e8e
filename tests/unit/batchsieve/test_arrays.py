"""Arguments that are no arrays are one line that names the argument."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from batchsieve import find_issues, sieve
from pipeline.errors import InputError

_RAGGED: list[Any] = [[0.1, 0.9], [0.2]]
_LABELS = np.arange(2)
_ON_ANOTHER_DEVICE: Any = torch.zeros(2, 2, device="meta")


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: find_issues(_RAGGED, features=np.zeros((2, 2))), "labels"),
        (lambda: find_issues(_LABELS, features=_RAGGED), "features"),
        (lambda: find_issues(_LABELS, _RAGGED), "pred_probs"),
        (lambda: find_issues(_LABELS, np.eye(2), class_names=_RAGGED), "class_names"),
        (lambda: find_issues(_LABELS, features=_ON_ANOTHER_DEVICE), "features"),
        (lambda: sieve(_RAGGED, _LABELS), "features"),
        (lambda: sieve(_ON_ANOTHER_DEVICE, _LABELS), "features"),
    ],
)
def test_what_is_no_array_is_named(call: Callable[[], object], key: str) -> None:
    with pytest.raises(InputError) as raised:
        call()
    assert raised.value.key == key
