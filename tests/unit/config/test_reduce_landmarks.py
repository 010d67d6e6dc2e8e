"""The setting `landmarks` and the number of images decide how many landmarks there are."""

import pytest

from pipeline.config.reduce import landmark_count


@pytest.mark.parametrize(
    ("setting", "n", "count"),
    [("none", 10**7, None), ("auto", 200_000, None), ("auto", 200_001, 100_000), (5000, 6000, 5000)],
)
def test_the_setting_decides_the_number(setting: str | int, n: int, count: int | None) -> None:
    assert landmark_count(setting, n) == count
