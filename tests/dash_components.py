"""What a tree of Dash components holds."""

from collections.abc import Iterator
from typing import Any


def parts_of(component: Any) -> Iterator[Any]:
    """A component and everything below it."""
    if isinstance(component, (list, tuple)):
        for part in component:
            yield from parts_of(part)
        return
    yield component
    children = getattr(component, "children", None)
    if children is not None:
        yield from parts_of(children)


def all_of(component: Any, kind: Any) -> list[Any]:
    """Everything of that type."""
    return [part for part in parts_of(component) if isinstance(part, kind)]


def text_of(component: Any) -> str:
    """All strings, a line each."""
    return "\n".join(all_of(component, str))
