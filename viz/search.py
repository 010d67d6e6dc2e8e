"""Search of images by path, class and reason."""

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from viz.data import Points, Source

MAX_QUERY = 200
"""Number of characters of a query."""

FIELDS = ("path", "class", "reason")
"""Fields that a word can name, as in `class:cat`."""

_WORD = re.compile(rf'(?:({"|".join(FIELDS)}):)?(?:"([^"]*)"|(\S+))', flags=re.IGNORECASE)


class SearchWord(NamedTuple):
    """Text that one field must contain, or any field for None; case does not matter."""

    field: str | None
    text: str


def parse_query(query: str) -> list[SearchWord]:
    """Return the words of a query. A word in quotes may have spaces: `class:"polar bear"`."""
    found = [(field.lower() or None, quoted or plain) for field, quoted, plain in _WORD.findall(query[:MAX_QUERY])]
    return [SearchWord(field, text) for field, text in found if text]


def matching(source: Source, points: Points, query: str) -> NDArray[np.bool_]:
    """Return which of N images match all words of the query, (N,).

    Args:
        source: has the cache.
        points: to search.
        query: see `parse_query`; an empty one matches all.
    """
    key = (points.network, "search", query[:MAX_QUERY])
    return source.cache.get(key, points.stamp, lambda: _match(points, parse_query(query)))


def _match(points: Points, words: list[SearchWord]) -> NDArray[np.bool_]:
    matches = np.ones(len(points), dtype=np.bool_)
    for field, text in words:
        fields = FIELDS if field is None else (field,)
        matches &= np.logical_or.reduce([_contains(points, name, text) for name in fields])
    return matches


def _contains(points: Points, field: str, text: str) -> NDArray[np.bool_]:
    if field == "class":
        names = pa.array(points.class_names, type=pa.string())
        return _matches_of(names, text)[points.labels]
    return _matches_of({"path": points.paths, "reason": points.reasons}[field], text)


def _matches_of(texts: pa.Array | pa.ChunkedArray, text: str) -> NDArray[np.bool_]:
    found = pc.match_substring(texts, text, ignore_case=True)
    array: NDArray[np.bool_] = np.asarray(pc.fill_null(found, False))
    return array.astype(np.bool_)
