"""After training: statistics over seeds and tasks, figures, and pages of them."""

from mcurl_torchrl.reports.charts import line_chart
from mcurl_torchrl.reports.document import (
    Block,
    Bullets,
    Embedded,
    FigureBlock,
    Heading,
    Paragraph,
    TableBlock,
    to_html,
    to_markdown,
)
from mcurl_torchrl.reports.figures import Curve, Drawing, draw_curves, draw_estimates, draw_profiles
from mcurl_torchrl.reports.run_page import write_run_page
from mcurl_torchrl.reports.statistics import (
    AGGREGATES,
    FEWEST_SEEDS,
    Estimate,
    difference_of_means,
    estimate_aggregates,
    estimate_improvement,
    estimate_profile,
    mean_over_seeds,
)

__all__ = [
    "AGGREGATES",
    "FEWEST_SEEDS",
    "Block",
    "Bullets",
    "Curve",
    "Drawing",
    "Embedded",
    "Estimate",
    "FigureBlock",
    "Heading",
    "Paragraph",
    "TableBlock",
    "difference_of_means",
    "draw_curves",
    "draw_estimates",
    "draw_profiles",
    "estimate_aggregates",
    "estimate_improvement",
    "estimate_profile",
    "line_chart",
    "mean_over_seeds",
    "to_html",
    "to_markdown",
    "write_run_page",
]
