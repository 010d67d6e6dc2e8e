"""Class names are unique, files are short, and the code is written in American English."""

import ast
import re
from collections import defaultdict

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


def _texts() -> dict[str, str]:
    """Return the text of each file; one test for all of them takes a fraction of the time of one for each."""
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in _FILES}


def test_a_module_has_350_lines_at_most() -> None:
    lengths = {path: len(text.splitlines()) for path, text in _texts().items()}
    assert {path: length for path, length in lengths.items() if length > _MOST_LINES} == {}


def test_code_is_written_in_american_english() -> None:
    words = {path: british_words(text) for path, text in _texts().items()}
    assert {path: found for path, found in words.items() if found} == {}


def test_british_words_are_found() -> None:
    assert british_words("the nearest neighbours of a colouring, normalised") == {"colouring", "normalised"}
    assert british_words("neighbors, colors, normalized, promise, precision") == set()
