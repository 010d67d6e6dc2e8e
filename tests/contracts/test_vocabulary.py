"""Class names are unique, files are short, and the code is written in American English."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.fixtures.source_tree import ROOT, modules, tree

_FILES = sorted({*modules().values(), *(ROOT / "batchsieve").rglob("*.py")})
_MOST_LINES = 350
_BRITISH = re.compile(
    r"\b\w*(?:neighbour|colour|artefact|behaviour|centre|labell(?:ed|ing)|modell(?:ed|ing)|initialis|normalis|optimis|"
    r"serialis|organis|recognis|summaris|minimis|maximis|generalis|synchronis)\w*\b",
    flags=re.IGNORECASE,
)
# Columns, keys and words of stored files that are contracts, and names of other libraries.
_CONTRACTS = {
    "neighbours", "neighbour_labels", "neighbour_preservation", "neighbour_search", "neighbour_search_recall",
    "quality_neighbours", "_neighbours", "normalisation", "n_relabelled",
}  # fmt: skip

each_file = pytest.mark.parametrize("path", _FILES, ids=lambda path: str(path.relative_to(ROOT)))


def british_words(text: str) -> set[str]:
    """Return the words of a text in British spelling, without those of `_CONTRACTS`."""
    return {word for word in _BRITISH.findall(text) if word not in _CONTRACTS}


def test_public_class_names_are_unique() -> None:
    files = defaultdict(list)
    for path in _FILES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in files.items() if len(paths) > 1} == {}


@each_file
def test_a_module_has_350_lines_at_most(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= _MOST_LINES


@each_file
def test_code_is_written_in_american_english(path: Path) -> None:
    assert british_words(path.read_text(encoding="utf-8")) == set()


def test_british_words_are_found() -> None:
    assert british_words("the nearest neighbours of a colouring, normalised") == {"colouring", "normalised"}
    assert british_words("neighbors, colors, normalized, promise, precision") == set()
