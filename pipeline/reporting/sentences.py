"""The paper's sentences with their outcomes, as plain values and as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipeline.stats.sentences import SENTENCES, Finding, Rule, Trial, judge_sentences
from pipeline.stats.study_tables import Table, table_of
from pipeline.stats.wording import NOTHING, number, p_value, plural


def sentence_values(trials: Sequence[Trial], rule: Rule) -> list[dict[str, Any]]:
    """A row for each sentence; numbers in the unit that `quantity` names.

    Args:
        trials: the finished runs of all studies.
    """
    return [_values(finding) for finding in judge_sentences(trials, rule)]


def sentence_table(sentences: Sequence[Mapping[str, Any]], confidence: float) -> Table:
    """What each sentence says, whether it holds, and what that rests on."""
    rows = [
        (row["meaning"], row["outcome"], _grounds(row["evidence"], confidence), p_value(row["p"]), _missing(row))
        for row in sentences
    ]
    return table_of(
        "sentence; verdict; what decides; p, after Holm; what a study needs",
        rows,
        text="sentence; verdict; what decides; what a study needs",
    )


def _values(finding: Finding) -> dict[str, Any]:
    sentence, evidence = SENTENCES[finding.name], finding.evidence
    return {
        "name": finding.name,
        "meaning": sentence.meaning,
        "needs": sentence.needs,
        "outcome": finding.outcome,
        "p": finding.p,
        "evidence": asdict(evidence) if evidence else None,
    }


def _grounds(evidence: Mapping[str, Any] | None, confidence: float) -> str:
    if evidence is None:
        return "no study here has the runs"
    low, high, n = number(evidence["low"]), number(evidence["high"]), evidence["n"]
    unit = evidence["unit"]
    # Not `draw of the filters`.
    units = unit.replace("draw", "draws", 1) if n > 1 and unit.startswith("draw") else None
    counted = f"{n} {units}" if units else plural(n, unit)
    over = f", each over {plural(evidence['settings'], 'setting')}" if evidence["settings"] > 1 else ""
    against = f" (true above {number(evidence['threshold'])})" if evidence["threshold"] else ""
    if evidence["left_out"]:
        over += f"; {plural(evidence['left_out'], 'incomplete setting')} left out"
    interval = f"{100 * confidence:g} % interval {low} to {high}"
    return f"{evidence['quantity']} {number(evidence['mean'])}{against}, {interval}; n = {counted}{over}".replace(
        " -", " −"
    )


def _missing(row: Mapping[str, Any]) -> str:
    """Where there is a verdict, nothing; where runs leave it open, more of them."""
    if row["outcome"] == "undecided":
        return SENTENCES[row["name"]].decides
    return row["needs"] if row["evidence"] is None else NOTHING
