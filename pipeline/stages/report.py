"""Stage `report`: tables, figures and one page from the results of all other stages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.artifacts.files import atomic_path, remove_leftovers, write_json, write_text
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.resources import read_resources
from pipeline.errors import explain_out_of_memory
from pipeline.reporting import figures as reporting_figures
from pipeline.reporting.data_quality import pair_pictures, planted_headline, planted_sentences
from pipeline.reporting.embedding_hover import embedding_pictures
from pipeline.reporting.inputs import ReportInputs, load_plans, load_report_inputs, result_files, stage_names
from pipeline.reporting.landscape import load_landscapes, outdated_landscapes
from pipeline.reporting.render import PageFigures, render_costs, render_document, render_page
from pipeline.reporting.summary import Summary, build_summary, chosen_metrics
from pipeline.reporting.tables import arm_costs
from pipeline.stages.harness import StageContext, run_stage


def report(context: StageContext) -> None:
    """Write everything in data/report/."""
    paths = context.data
    remove_leftovers(paths.summary.parent)
    inputs = load_report_inputs(context.params, paths)
    summary = build_summary(inputs)
    write_json(paths.summary, summary)
    write_json(paths.report_metrics, chosen_metrics(summary))
    # Each study and each network has figures in files, and on the page.
    n_sets = 2 * (len(inputs.studies) + len(inputs.networks))
    too_large = (
        f"report.gallery_images: {context.params.report.gallery_images} images per network, and the figures, do not "
        "fit the memory; lower it, or end other programs"
    )
    with explain_out_of_memory(too_large), context.log.progress(context.name, n_sets, "sets of figures") as bar:
        figures = _write_figures(paths.figures, inputs, summary, bar.update)
        drawn = page_figures(inputs, summary, bar.update)
    landscapes, plans = load_landscapes(inputs.studies, paths), load_plans(context.params, context.work)
    for line in outdated_landscapes(landscapes, inputs.studies, paths):
        context.log.info(line)
    page = render_page(context.params, summary, drawn, landscapes, plans)
    write_text(paths.report_page, page)
    write_text(paths.report_document, render_document(context.params, summary, figures, landscapes, plans))
    _write_costs(context, inputs)
    write_provenance(
        paths.provenance("report"),
        stage=context.name,
        parameters=context.params.model_dump(mode="json"),
        inputs=[
            paths.prepare_metrics,
            *map(paths.manifest, ("train", "test")),
            *result_files(context.params, paths),
        ],
        outputs=[paths.summary, *(paths.figures / name for name in figures)],
    )
    for planted in summary["planted"]:
        for statement in [planted_headline(planted), *planted_sentences(planted, summary["studies"])]:
            context.log.info(str(statement))
    for study in summary["studies"]:
        for comparison in study["pooled"]:
            context.log.info(f"{study['name']}: {comparison['sentence']}")
    context.log.info(f"report: {paths.report_page}")


def _write_figures(folder: Path, inputs: ReportInputs, summary: Summary, done: Callable[[], None]) -> list[str]:
    """Write all figure files, remove those of earlier runs, and return the names below `folder` in order."""
    written = set()
    for name, content in reporting_figures.figure_files(inputs, summary, done):
        with atomic_path(folder / name) as temporary:
            temporary.write_bytes(content)
        written.add(name)
    remove_leftovers(folder)
    # Figures of timm's networks are in a folder.
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if str(path.relative_to(folder)) not in written:
            path.unlink()
    return sorted(written)


def page_figures(inputs: ReportInputs, summary: Summary, done: Callable[[], None] = lambda: None) -> PageFigures:
    """Draw the figures of the page.

    Args:
        done: called after those of each study, and of each network.
    """
    studies, kinds = summary["studies"], ("studies", "embeddings", "panels", "dropped", "pairs")
    page: dict[str, dict[str, Any]] = {kind: {} for kind in kinds}
    for study in studies:
        page["studies"][study["name"]] = reporting_figures.study_charts(study, n_studies=len(studies))
        done()
    for network in inputs.networks:
        page["embeddings"][network.name] = embedding_pictures(network, inputs)
        page["panels"][network.name] = reporting_figures.class_panels_image(network, inputs)
        page["dropped"][network.name] = reporting_figures.dropped_images(network, inputs)
        page["pairs"][network.name] = pair_pictures(network, inputs)
        done()
    return PageFigures(
        filter=reporting_figures.filter_charts(summary), warmups=reporting_figures.warmup_chart(summary), **page
    )


def _write_costs(context: StageContext, inputs: ReportInputs) -> None:
    """Write the costs. They differ between equal runs, so they are no output of DVC."""
    resources = _collect_resources(context)
    write_json(context.data.resources, resources)
    page = render_costs(context.params.prepare.dataset, resources, arm_costs(inputs.studies, resources))
    write_text(context.data.costs_page, page)


def _collect_resources(context: StageContext) -> dict[str, Any]:
    """Return the resources of each stage's last run on this machine; stages that ran elsewhere are missing."""
    records = {name: context.work.resources(name) for name in stage_names(context.params)}
    return read_resources(records, context.log.info)


def main() -> None:
    """Run the stage on the process's arguments and exit."""
    run_stage("report", report)


if __name__ == "__main__":
    main()
