"""Tracked files are small and name no path of one machine."""

import re
import subprocess
from pathlib import Path

import pytest

from pipeline.paths import DataPaths
from tests.fixtures.source_tree import ROOT

_LARGEST = 1 << 20
"""Bytes. Repack the results of a large study, and state on its page what is left out."""

# Folders that exist on one machine only. The pattern does not match itself.
_MACHINE_PATH = re.compile(r"(?<![\w.~}/-])/(?:work|root|home|Users|mnt|scratch)/\w")


def _tracked() -> list[Path]:
    answer = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if answer.returncode:
        pytest.skip("not a git repository")
    return [path for name in answer.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_is_large() -> None:
    for path in _tracked():
        assert path.name == "requirements.lock" or path.stat().st_size <= _LARGEST, path


@pytest.mark.parametrize("topic", sorted(ROOT.glob("docs/results/*/")), ids=lambda topic: topic.name)
def test_a_topic_of_the_results_is_small(topic: Path) -> None:
    sizes = [path.stat().st_size for path in topic.rglob("*") if path.is_file()]
    assert sizes
    assert sum(sizes) <= _LARGEST


def test_a_lent_gpu_can_be_sent_what_the_guide_counts() -> None:
    """Tracked files, images and wheels travel together; the guide states the size of each, in MB."""
    guide = " ".join((ROOT / "docs/guides/gpu-day.md").read_text(encoding="utf-8").split())
    found = re.search(r"wheels take (\d+) MB, the repository's files (\d+) MB, .*? ([\d.]+) MB", guide)
    assert found, "the sentence is missing"
    wheels, stated, images = (1e6 * float(number) for number in found.groups())
    tracked = sum(path.stat().st_size for path in _tracked())
    assert abs(tracked - stated) < 1e6, tracked
    assert tracked + images + wheels < 64 << 20


def test_no_file_names_a_path_of_one_machine() -> None:
    for path in _tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        assert str(ROOT) not in text, path
        match = _MACHINE_PATH.search(text)
        assert match is None, f"{path.relative_to(ROOT)}: {match[0] if match else ''}"


# A backslash replaces the slash, because the test searches this file too.
@pytest.mark.parametrize("text", [r"see \home/me/x", r'open("\root/data")', r"cd \mnt/disk1"])
def test_machine_paths_are_recognized(text: str) -> None:
    assert _MACHINE_PATH.search(text.replace("\\", "/"))


@pytest.mark.parametrize("text", ["docs/home/page", "https://example.org/home/x", "~/home/x", "${HOME}/work/x"])
def test_relative_paths_and_addresses_are_not_machine_paths(text: str) -> None:
    assert not _MACHINE_PATH.search(text)


def test_overrides_of_iterate_are_ignored_by_git() -> None:
    """Only data/overrides.csv is tracked, and no other file of its name."""
    results = [DataPaths().recursive_overrides("resnet18"), DataPaths().recursive_rounds("resnet18")]
    answer = subprocess.run(
        ["git", "check-ignore", "--no-index", *map(str, results), str(DataPaths().overrides)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if answer.returncode > 1:
        pytest.skip("not a git repository")
    assert answer.stdout.splitlines() == [str(path) for path in results]
