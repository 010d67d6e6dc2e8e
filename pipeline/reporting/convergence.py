"""Steps and images to a stated accuracy or training loss, as tables and sentences."""

from collections.abc import Mapping
from typing import Any

from pipeline.reporting.comparison_tables import ratio_sentence, unadjusted_sentence
from pipeline.stats.formatting import MISSING, count, number, plural
from pipeline.stats.tables import Table, make_table, setting_cells, setting_heads

_WORDS = {"lower": "sooner", "higher": "later"}


def convergence_sections(study: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return for each stated target `quantity`, `target` in words, `table`, and a sentence for each comparison."""
    return [
        {
            "quantity": found["quantity"],
            "target": target_in_words(found),
            "table": _table(found, study["varying"]),
            "sentences": _sentences(found, study["plan"]["alpha"]),
        }
        for found in study["convergence"]
    ]


def target_in_words(found: Mapping[str, Any]) -> str:
    """Return e.g. `a training loss of 1 nats`."""
    if found["quantity"] == "top1":
        return f"a test accuracy of {100 * found['target']:g} %"
    return f"a training loss of {found['target']:g} nats"


def _table(found: Mapping[str, Any], varying: tuple[str, ...]) -> Table:
    """Build the table of each arm at each setting."""
    rows = [
        (
            *setting_cells(row["setting"], varying),
            row["arm"],
            _steps(row["steps"]),
            MISSING if row["images"] is None else count(round(row["images"])),
            _reached(row),
        )
        for row in found["arms"]
    ]
    heads = f"{setting_heads(varying)}; arm; steps; images; runs that reached it"
    return make_table(heads, rows, text="model; arm")


def _steps(value: float | None) -> str:
    """Format with four significant digits, without a power of ten."""
    return number(value) if value is None or value < 1000 else count(round(value))


def _reached(row: Mapping[str, Any]) -> str:
    said = f"{row['reached']} of {row['n']}"
    return f"{said}, {row['at_once']} before the first record" if row["at_once"] else said


def _sentences(found: Mapping[str, Any], alpha: float) -> list[str]:
    """Return a sentence for each comparison, and one for all of them."""
    of_each = [_sentence(ratio, found, alpha) for ratio in found["ratios"]]
    return [sentence for sentence in (*of_each, unadjusted_sentence(found["ratios"])) if sentence]


def _sentence(ratio: Mapping[str, Any], found: Mapping[str, Any], alpha: float) -> str:
    left_out = (
        f"{plural(ratio['left_out'], 'setting')} left out, where a run never reached it, or before its first record"
    )
    return ratio_sentence(
        ratio,
        alpha,
        what=f"to {target_in_words(found)}",
        unit="times as many images" if found["batch_grew"] else "times as many steps and images",
        words=_WORDS,
        left_out=left_out,
    )
