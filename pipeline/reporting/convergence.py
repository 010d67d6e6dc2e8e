"""Steps and images to a stated accuracy or training loss, as tables and sentences."""

from collections.abc import Mapping
from typing import Any

from pipeline.reporting.comparison_tables import ratio_sentence, unadjusted_sentence
from pipeline.stats.formatting import MISSING, count, plain_number, plural
from pipeline.stats.tables import Table, make_table, setting_cells, setting_headers

_WORDS = {"lower": "sooner", "higher": "later"}


def convergence_sections(study: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return for each stated target `quantity`, `target` in words, `table`, and a sentence for each comparison."""
    return [
        {
            "quantity": result["quantity"],
            "target": target_in_words(result),
            "table": _table(result, study["varying"]),
            "sentences": _sentences(result, study["plan"]["alpha"]),
        }
        for result in study["convergence"]
    ]


def target_in_words(result: Mapping[str, Any]) -> str:
    """Return e.g. `a training loss of 1 nats`."""
    if result["quantity"] == "top1":
        return f"a test accuracy of {100 * result['target']:g} %"
    return f"a training loss of {result['target']:g} nats"


def _table(result: Mapping[str, Any], varying: tuple[str, ...]) -> Table:
    """Build the table of each arm at each setting."""
    rows = [
        (
            *setting_cells(row["setting"], varying),
            row["arm"],
            plain_number(row["steps"]),
            MISSING if row["images"] is None else count(round(row["images"])),
            _reached(row),
        )
        for row in result["arms"]
    ]
    headers = f"{setting_headers(varying)}; arm; steps; images; runs that reached it"
    return make_table(headers, rows, text="model; arm")


def _reached(row: Mapping[str, Any]) -> str:
    text = f"{row['reached']} of {row['n']}"
    return f"{text}, {row['at_once']} before the first record" if row["at_once"] else text


def _sentences(result: Mapping[str, Any], alpha: float) -> list[str]:
    """Return a sentence for each comparison, and one for all of them."""
    sentences = [_sentence(ratio, result, alpha) for ratio in result["ratios"]]
    return [sentence for sentence in (*sentences, unadjusted_sentence(result["ratios"])) if sentence]


def _sentence(ratio: Mapping[str, Any], result: Mapping[str, Any], alpha: float) -> str:
    left_out = (
        f"{plural(ratio['left_out'], 'setting')} left out, in which a run never reached it, or before its first record"
    )
    return ratio_sentence(
        ratio,
        alpha,
        what=f"to {target_in_words(result)}",
        unit="times as many images" if result["batch_grew"] else "times as many steps and images",
        words=_WORDS,
        left_out=left_out,
    )
