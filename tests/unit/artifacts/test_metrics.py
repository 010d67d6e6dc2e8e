"""Metrics of stages have one meaning, whoever wrote them."""

from pathlib import Path

import pytest

from pipeline.artifacts.metrics import OptionalKeys, read_metrics
from pipeline.errors import InputError


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"top1": 0.99, "top1": 0.5}', "has the key top1 twice"),
        ('{"kl_divergence": NaN}', "has NaN"),
        ("[]", "holds no metrics"),
        (None, "missing"),
    ],
)
def test_metrics_that_parsers_read_differently_are_refused(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "metrics.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=rf"metrics\.json: {reason}"):
        read_metrics(path, OptionalKeys)


def test_metrics_that_dvc_links_to_its_cache_are_read(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text('{"other": 1}')
    (tmp_path / "metrics.json").symlink_to(tmp_path / "cache")
    assert read_metrics(tmp_path / "metrics.json", OptionalKeys) == {"other": 1}
