"""Class names are unique, files and names of tests are short, and the spelling is American, without banned words."""

import re
from collections import defaultdict

from tests.fixtures.banned_words import banned_words_of
from tests.fixtures.source_tree import ROOT

_FOLDERS = ("batchsieve", "benchmarks", "docs/tooling", "pipeline", "tests", "viz")
_FILES = sorted(path for folder in _FOLDERS for path in (ROOT / folder).rglob("*.py"))
_MOST_LINES = 350
_LONGEST_NAME = 62  # of a test, in characters
_BRITISH = re.compile(
    r"neighbour|colour|artefact|behaviour|centre|labell(?:ed|ing)|modell(?:ed|ing)|initialis|normalis|optimis|"
    r"serialis|organis|recognis|summaris|minimis|maximis|generalis|synchronis",
    flags=re.IGNORECASE,
)
# Words of stored files, which stay as they are: word -> where it is stored.
_CONTRACTS = {
    "neighbours": "column of the tables of reduce and filter, and of exported pages; key of the metrics of reduce",
    "neighbour_labels": "column of points.parquet",
    "neighbour_preservation": "key of the metrics of reduce and of summary.json",
    "neighbour_search": "key of the metrics of reduce",
    "neighbour_search_recall": "key of the metrics of reduce",
    "quality_neighbours": "key of the metrics of reduce",
    "n_relabelled": "key of the metrics of prepare",
    "normalisation": "key of stored parameters of earlier versions",
}
# They quote the words that they look for.
_QUOTING = {"tests/contracts/test_documentation.py", "tests/contracts/test_vocabulary.py"}


def british_words(text: str) -> set[str]:
    """Return the words of a text in British spelling, without those of `_CONTRACTS`."""
    return {word for word in set(re.findall(r"\w+", text)) if _BRITISH.search(word) and word not in _CONTRACTS}


def test_public_class_names_are_unique() -> None:
    files = defaultdict(list)
    for path in _FILES:
        # Searching takes a tenth of the time of parsing.
        for name in re.findall(r"^class (?!_)(\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            files[name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in files.items() if len(paths) > 1} == {}


def _texts() -> dict[str, str]:
    """Return the text of each file; one test for all of them takes a fraction of the time of one for each."""
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in _FILES}


def test_a_module_has_350_lines_at_most() -> None:
    lengths = {path: len(text.splitlines()) for path, text in _texts().items()}
    assert {path: length for path, length in lengths.items() if length > _MOST_LINES} == {}


def test_names_of_tests_have_62_characters_at_most() -> None:
    names = {name for text in _texts().values() for name in re.findall(r"^ *def (test_\w+)", text, flags=re.MULTILINE)}
    assert {name for name in names if len(name) > _LONGEST_NAME} == set()


def test_code_is_written_in_american_english() -> None:
    words = {path: british_words(text) for path, text in _texts().items() if path not in _QUOTING}
    assert {path: found for path, found in words.items() if found} == {}


def test_british_words_are_found() -> None:
    assert british_words("the nearest neighbours of a colouring, normalised") == {"colouring", "normalised"}
    assert british_words("neighbors, colors, normalized, promise, precision") == set()


def test_banned_words_are_in_no_comment_and_no_string() -> None:
    words = {path: banned_words_of(text, keys=_CONTRACTS) for path, text in _texts().items() if path not in _QUOTING}
    assert {path: found for path, found in words.items() if found} == {}


def test_banned_words_in_comments_and_strings_are_found() -> None:
    source = '"""Beside `anew`."""\njudged = f"{drawn} untold"\n# kept for\n# good\nkey = "neighbours"  # neighbours\n'
    assert banned_words_of(source, keys=_CONTRACTS) == {"Beside", "untold", "for good", "neighbours"}


def test_every_exempt_word_is_in_use() -> None:
    code = "\n".join(text for path, text in _texts().items() if path.startswith("pipeline/"))
    assert {word for word in _CONTRACTS if re.search(rf"\b{word}\b", code) is None} == set()
