"""The paper's sentences with their outcomes, as plain values and as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipeline.stats.pairs import TREATED
from pipeline.stats.sentences import SENTENCES, Finding, Rule, Trial, gain_slopes, judge_sentences
from pipeline.stats.study_tables import Table, table_of
from pipeline.stats.wording import NOTHING, number, p_value, plural, points


def sentence_values(trials: Sequence[Trial], rule: Rule) -> list[dict[str, Any]]:
    """A row for each sentence; numbers in the unit that `quantity` names.

    Args:
        trials: the finished runs of all studies.
    """
    return [_values(finding) for finding in judge_sentences(trials, rule)]


def slope_values(trials: Sequence[Trial], rule: Rule) -> list[dict[str, Any]]:
    """How the filtered arm's gain on each control grows with the batch size, in percentage points per doubling.

    Args:
        trials: the finished runs of one study.

    Returns:
        A row for each control of which there are two seeds and batch sizes; `p` two-sided, of the t test.
    """
    return [
        {"control": control, "p": evidence.p, "evidence": asdict(evidence)}
        for control, evidence in gain_slopes(trials, rule).items()
    ]


def slope_table(study: Mapping[str, Any], confidence: float) -> Table:
    """The same as text."""
    rows = [
        (
            f"{TREATED} − {row['control']}",
            points(row["evidence"]["mean"]),
            f"{points(row['evidence']['low'])} to {points(row['evidence']['high'])}",
            p_value(row["p"]),
            p_value(row["evidence"]["sign_flip"]),
            _counted(row["evidence"]),
        )
        for row in study["batch_slopes"]
    ]
    return table_of(
        f"difference; growth per doubling of the batch size (points); {100 * confidence:g} % interval (points); p (t); "
        "p (sign flips); n",
        rows,
        text="difference; n",
    )


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
    low, high = number(evidence["low"]), number(evidence["high"])
    over = f", each over {plural(evidence['settings'], 'setting')}" if evidence["settings"] > 1 else ""
    against = f" (true above {number(evidence['threshold'])})" if evidence["threshold"] else ""
    if evidence["left_out"]:
        over += f"; {plural(evidence['left_out'], 'incomplete setting')} left out"
    interval = f"{100 * confidence:g} % interval {low} to {high}"
    estimate = f"{evidence['quantity']} {number(evidence['mean'])}{against}, {interval}"
    return f"{estimate}; n = {_counted(evidence)}{over}{_sign_flips(evidence)}".replace(" -", " −")


def _counted(evidence: Mapping[str, Any]) -> str:
    n, unit = evidence["n"], evidence["unit"]
    # Not `draw of the filters`.
    return f"{n} {unit.replace('draw', 'draws', 1)}" if n > 1 and unit.startswith("draw") else plural(n, unit)


def _sign_flips(evidence: Mapping[str, Any]) -> str:
    p = evidence["sign_flip"]
    return "" if p is None else f"; p = {p_value(p)} by sign flips, which decide nothing"


def _missing(row: Mapping[str, Any]) -> str:
    """Where there is a verdict, nothing; where runs leave it open, more of them."""
    if row["outcome"] == "undecided":
        return SENTENCES[row["name"]].decides
    return row["needs"] if row["evidence"] is None else NOTHING
