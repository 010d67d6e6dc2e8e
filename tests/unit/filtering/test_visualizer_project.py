"""Folders that the visualizer opens: where they may be written, and their parameters."""

from pathlib import Path
from typing import get_args

import pytest

from pipeline.config.extractors import Architecture
from pipeline.errors import InputError
from pipeline.filtering.visualizer_project import check_project_folder, project_parameters

_FILTER = {"scorer": {"name": "margin"}, "drop_fraction": 0.1}


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(InputError, match=str(folder)):
            check_project_folder(folder)
    check_project_folder(tmp_path / "new")


@pytest.mark.parametrize("network", [*get_args(Architecture), "timm/vit_small_patch14_dinov2.lvd142m", "resnet18-r3"])
def test_parameters_of_every_network_are_valid(network: str) -> None:
    tree = project_parameters(network, "photos", reduce={"n_neighbors": 7}, filter_=_FILTER, source="x")
    assert (tree["networks"], tree["reduce"], tree["filter"]) == ([network], {"n_neighbors": 7}, _FILTER)


def test_other_networks_are_refused() -> None:
    with pytest.raises(InputError, match=r"^--network: networks") as refused:
        project_parameters("../clip", "photos", reduce={}, filter_=_FILTER, source="--network")
    assert "../clip" in str(refused.value)
