"""What a run cost on this machine, as one HTML page that needs nothing else.

It is no output of DVC: no two runs take equal time, and equal results have to leave dvc.lock as it is.
"""

from collections.abc import Sequence

from pipeline.reporting.content import templates
from pipeline.reporting.costs import ArmCost, Records
from pipeline.reporting.tables import cost_table, resource_table


def render_costs(dataset: str, resources: Records, costs: Sequence[ArmCost]) -> str:
    """The page.

    Args:
        dataset: name of the data set.
        resources: what each stage took.
        costs: what each arm took in all.
    """
    arms, stages = cost_table(costs), resource_table(resources)
    return (
        templates(autoescape=True)
        .get_template("costs.html")
        .render(
            dataset=dataset,
            arms=arms,
            stages=stages,
            energy_known=any("energy" in head for table in (arms, stages) for head in table.columns),
            zip=zip,
        )
    )
