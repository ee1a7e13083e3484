"""All charts of runs, by the section of a page they stand in.

comparison_charts(runs) -> chart.html.jinja writes title, caption and table of each; chart_data(charts) -> charts.js draws them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..record.run import Run
from .chart import Chart, Series, series
from .frontier_charts import accuracy_frontier, memory_frontier
from .learning_charts import accuracy_chart, classes_chart, loss_by_steps, loss_by_time, staleness_chart
from .machine_charts import memory_chart, speed_chart, usage_chart
from .scaling_charts import scaling_charts
from .step_charts import phases_chart
from .timeline_chart import timeline_chart

SECTIONS = {
    "speed": "Speed",
    "learning": "Learning",
    "step": "Inside a step",
    "machine": "Machine",
    "quality": "Classes and staleness",
}


def comparison_charts(runs: Sequence[Run]) -> dict[str, list[Chart]]:
    """The charts of each section, in their order; one without data says why."""
    shown = series(runs)
    return {
        "speed": [
            *scaling_charts(shown),
            *(draw(shown) for draw in (speed_chart, accuracy_frontier, memory_frontier)),
        ],
        "learning": [draw(shown) for draw in (loss_by_time, loss_by_steps, accuracy_chart)],
        "step": [phases_chart(shown), timeline_chart(shown)],
        "machine": [memory_chart(shown), usage_chart(shown)],
        "quality": [classes_chart(shown), staleness_chart(shown)],
    }


def drawn(runs: Sequence[Run], charts: Mapping[str, Sequence[Chart]]) -> list[Series]:
    """The runs that are in any chart, and so can be hidden."""
    found = {run for of_section in charts.values() for chart in of_section for run in chart.runs}
    return [item for item in series(runs) if item.index in found]
