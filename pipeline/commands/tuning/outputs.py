"""data/tune/<search>/: tables, figures, and the winner as a parameter file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.artifacts.atomic import write_bytes, write_text
from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.planted import count_planted, planted_note
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import write_csv
from pipeline.commands.tuning.figures import figures_of
from pipeline.commands.tuning.page import page
from pipeline.config.params import Params, parse_params
from pipeline.config.tuning import Tuning, lay_values
from pipeline.errors import InputError
from pipeline.paths import TUNING_FIGURES, DataPaths
from pipeline.tuning.results import Found
from viz.figures.rendering import noted, svg
from viz.yaml_text import with_value


def write_outputs(found: Found, params: Params, tuned: str, name: str, data: DataPaths) -> None:
    """Write everything, provenance last.

    Args:
        tuned: from `tuned_text`.
    """
    tuning, n_planted = found.tuning, count_planted(data)
    note = None if n_planted is None else planted_note(n_planted)
    write_csv(data.leaderboard(name), found.leaderboard())
    write_csv(data.tuning_curves(name), found.curves())
    write_json(data.tuning_summary(name), found.summary())
    write_text(data.tuned(name), tuned)
    write_text(data.tuning_page(name), page(found, name, note))
    figures = _write_figures(found, name, data, note)
    study = params.studies[tuning.study]
    arms = [] if study.arms[0] == "full" else [data.kept(study.filter_network)]
    write_provenance(
        data.tuning_provenance(name),
        stage=f"tune@{name}",
        parameters={
            "tuning": tuning.model_dump(mode="json", exclude={"way"}),
            "study": study.model_dump(mode="json"),
            "train": params.train.model_dump(mode="json"),
        },
        inputs=[data.images("train"), data.manifest("train"), *arms],
        outputs=[
            data.leaderboard(name),
            data.tuning_curves(name),
            data.tuning_summary(name),
            data.tuning_page(name),
            *figures,
            data.tuned(name),
        ],
    )


def _write_figures(found: Found, name: str, data: DataPaths, note: str | None) -> list[Path]:
    """Those that there are; of what the search does not have, none of an earlier one stays."""
    drawn = figures_of(found)
    for figure in TUNING_FIGURES:
        if figure in drawn:
            write_bytes(data.tuning_figure(name, figure), svg(noted(drawn[figure], note)))
        else:
            data.tuning_figure(name, figure).unlink(missing_ok=True)
    return [data.tuning_figure(name, figure) for figure in drawn]


def tuned_text(text: str, tuning: Tuning, values: Mapping[str, Any], *, source: str) -> str:
    """The text of a parameter file with a trial's values in the study, and not a byte changed beside them.

    Args:
        text: of a sound parameter file, which has the study.
        values: of a trial that `trial_run` takes.

    Raises:
        InputError: `source`, whose text it is, has the study's keys in an anchor.
    """
    tree: dict[str, Any] = parse_params(text, source=source)
    study = tree["studies"][tuning.study]
    lay_values(study, values)
    tuned = with_value(text, ["studies", tuning.study], study)
    if parse_params(tuned, source=source) != tree:
        raise InputError(
            f"{source}: studies.{tuning.study} shares keys with others by an anchor; write them out and start "
            "the search again"
        )
    return tuned


def check_can_be_written(text: str, tuning: Tuning, *, source: str) -> None:
    """Whether a winner's values could be written into the study, before any is trained.

    Raises:
        InputError: as `tuned_text`.
    """
    for end in (0, -1):
        tuned_text(text, tuning, {key: domain.extremes[end] for key, domain in tuning.space.items()}, source=source)
