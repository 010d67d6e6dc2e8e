"""Renamed and moved keys of params.yaml: an old key is an error in a file, and is translated in stored parameters."""

from collections.abc import Iterator, Mapping
from typing import Any

RENAMED_KEYS: Mapping[str, str] = {
    "prepare.labels": "prepare.label_file",
    "prepare.test_share": "prepare.test_size",
    "prepare.train_share": "prepare.train_size",
    "prepare.val_share": "prepare.val_size",
    "finetune.trained": "finetune.trainable",
    "finetune.normalisation": "finetune.normalization",
    "extract.mirror": "extract.flip_tta",
    "reduce.neighbors": "reduce.n_neighbors",
    "reduce.more_maps": "reduce.extra_embeddings",
    "filter.drop_share": "filter.drop_fraction",
    "filter.quota": "filter.allocation",
    "filter.scorer.of": "filter.scorer.scorers",
    "filter.scorer.space: map": "filter.scorer.space: embedding",
    "filter.scorer.scorers.*.space: map": "filter.scorer.scorers.*.space: embedding",
    "studies.*.filter_draws": "studies.*.filter_replicates",
    "studies.*.figure": "studies.*.paper_figure",
    "tuning.*.rule": "tuning.*.pruner",
    "tuning.*.pruner.name: lead": "tuning.*.pruner.name: threshold",
    "tuning.*.way": "tuning.*.scheduler",
    "tuning.*.places": "tuning.*.max_concurrent_trials",
    "tuning.*.finish": "tuning.*.resume_pruned",
    "tuning.*.sampler.startup_trials": "tuning.*.sampler.n_startup_trials",
    "tuning.*.space.*.integers": "tuning.*.space.*.int_uniform",
}
"""Old -> new keys of params.yaml. `*` is any name or list index; `key: value` renames a value.

Within the path of an old key, the sections have their new names.
"""

MOVED_KEYS: Mapping[str, str] = {"dask.concurrent_runs": "train.concurrent_runs"}
"""Old -> new places of keys of params.yaml; the new place is in a section of the file."""

RENAMED_MACHINE_KEYS: Mapping[str, str] = {"inside": "intra_node", "between": "inter_node", "guessed": "assumed"}
"""Old -> new keys of the files in machines/."""


def renamed_key_error(tree: Any, renames: Mapping[str, str] = RENAMED_KEYS) -> str | None:
    """Return `filter.drop_share: is now drop_fraction; rename it` for the first old key of `tree`; None without one.

    Args:
        tree: keys and values of a parsed file.
        renames: old -> new, in the form of `RENAMED_KEYS`.
    """
    for old, new in renames.items():
        for keys, _ in _matches(tree, old):
            leaf = new.rpartition(".")[2]
            value = old.partition(": ")[2]
            return f"{'.'.join(keys)}: {value + ' ' if value else ''}is now {leaf.rpartition(': ')[2]}; rename it"
    for old, new in MOVED_KEYS.items():
        for keys, _ in _matches(tree, old):
            return f"{'.'.join(keys)}: is now {new}; move it"
    return None


def with_moved_keys(tree: Any) -> Any:
    """Return a copy of stored parameters with all keys in their new places."""
    copied = _copied(tree)
    for old, new in MOVED_KEYS.items():
        section, _, leaf = new.partition(".")
        for keys, parent in list(_matches(copied, old)):
            copied.setdefault(section, {})[leaf] = parent.pop(keys[-1])
    return copied


def with_new_keys(tree: Any, renames: Mapping[str, str] = RENAMED_KEYS) -> Any:
    """Return a copy of stored parameters with the new names of old keys and values, in the same order."""
    copied = _copied(tree)
    for old, new in renames.items():
        new_key, _, new_value = new.partition(": ")
        for keys, parent in list(_matches(copied, old)):
            if new_value:
                parent[keys[-1]] = new_value
            else:
                _rename(parent, keys[-1], new_key.rpartition(".")[2])
    return copied


def with_old_keys(tree: Any, renames: Mapping[str, str] = RENAMED_KEYS) -> Any:
    """Invert `with_new_keys`, for plans and other texts whose hashes contain the old names."""
    sections_first = {new: old for old, new in reversed(tuple(renames.items()))}
    return with_new_keys(tree, sections_first)


def _matches(tree: Any, pattern: str) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the key path and the parent mapping of every key, or key with this value, that matches `pattern`."""
    path, _, value = pattern.partition(": ")
    *sections, leaf = path.split(".")
    matches: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    for section in sections:
        matches = [
            ((*keys, str(name)), inner)
            for keys, outer in matches
            for name, inner in _entries(outer)
            if section in ("*", name)
        ]
    for keys, parent in matches:
        if isinstance(parent, dict) and leaf in parent and (not value or parent[leaf] == value):
            yield (*keys, leaf), parent


def _entries(tree: Any) -> list[tuple[Any, Any]]:
    if isinstance(tree, dict):
        return list(tree.items())
    return list(enumerate(tree)) if isinstance(tree, list) else []


def _rename(mapping: dict[str, Any], old: str, new: str) -> None:
    entries = [(new if key == old else key, value) for key, value in mapping.items()]
    mapping.clear()
    mapping.update(entries)


def _copied(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    return [_copied(value) for value in tree] if isinstance(tree, list) else tree
