"""Steps and images to the stated training loss, as a table and sentences."""

from collections.abc import Mapping
from typing import Any

from pipeline.reporting.ratio_wording import ratio_sentence
from pipeline.stats.study_tables import Table, setting_cells, setting_heads, table_of
from pipeline.stats.wording import NOTHING, count, number, plural

_WORDS = {"lower": "sooner", "higher": "later"}


def convergence_table(study: Mapping[str, Any]) -> Table:
    """Each arm at each setting."""
    rows = [
        (
            *setting_cells(row["setting"], study["varying"]),
            row["arm"],
            NOTHING if row["steps"] is None else number(row["steps"]),
            NOTHING if row["images"] is None else count(round(row["images"])),
            f"{row['reached']} of {row['n']}",
        )
        for row in study["convergence"]["arms"]
    ]
    heads = f"{setting_heads(study['varying'])}; arm; steps; images; runs that reached it"
    return table_of(heads, rows, text="model; arm")


def convergence_sentences(study: Mapping[str, Any]) -> list[str]:
    """A sentence for each comparison."""
    return [_sentence(ratio, study) for ratio in study["convergence"]["ratios"]]


def _sentence(ratio: Mapping[str, Any], study: Mapping[str, Any]) -> str:
    left_out = f"{plural(ratio['left_out'], 'setting')} left out, where a run did not cross the target"
    return ratio_sentence(
        ratio,
        study["plan"]["alpha"],
        what=f"to a training loss of {number(study['convergence']['target_train_loss'])}",
        unit="times as many steps and images",
        words=_WORDS,
        left_out=left_out,
    )
