"""Panels in the words that the dashboards need: a curve, a figure, a listing."""

from collections.abc import Iterable, Sequence

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    DataSourceRef,
    LineInterpolation,
    StackingMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig, VariableHide, VariableOption, VariableRefresh
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
SOURCE_UID = "training-ledger-prometheus"
WIDTH = 24
TAG = "training-ledger"
Query = tuple[str, str]
"""An expression, and the name of what it gives."""
Panel = timeseries.Panel | stat.Panel | table.Panel


def where(family: str, *matchers: str) -> str:
    """The series of a family whose labels match."""
    return family + "{" + ",".join(matchers) + "}" if matchers else family


def one(family: str, *matchers: str) -> str:
    """A family of runs, of which replicas of the service say the same: one of them.

    >>> one("training_ledger_updates", 'run="$run"')
    'max without (instance, pod) (training_ledger_updates{run="$run"})'
    """
    return f"max without (instance, pod) ({where(family, *matchers)})"


def _targets(queries: Iterable[Query], form: PromQueryFormat | None = None) -> list[prometheus.Dataquery]:
    """The queries over time or, where a form is given, as they are now and in that form."""
    targets = []
    for place, (expression, legend) in enumerate(queries):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + place)).datasource(SOURCE)
        targets.append(query.range() if form is None else query.instant().format(form))
    return targets


def curve(title: str, about: str, unit: str, *queries: Query, width: int = 12, stacked: bool = False) -> timeseries.Panel:
    """Something over time, drawn as steps: between two readings nothing is known, and a slope would invent progress."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(about)
        .unit(unit)
        .datasource(SOURCE)
        .line_interpolation(LineInterpolation.STEP_AFTER)
        .show_points(VisibilityMode.NEVER)
        .fill_opacity(30 if stacked else 0)
        .height(8)
        .span(width)
    )
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(StackingMode.NORMAL))
    for target in _targets(queries):
        panel = panel.with_target(target)
    return panel


def figure(title: str, about: str, unit: str, expression: str, legend: str = "", width: int = 4) -> stat.Panel:
    """A number as it is now; where it has a legend, that is shown instead."""
    panel = stat.Panel().title(title).description(about).unit(unit).datasource(SOURCE).height(4).span(width)
    panel = panel.color_mode(BigValueColorMode.NONE).graph_mode(BigValueGraphMode.NONE)
    panel = panel.text_mode(BigValueTextMode.NAME if legend else BigValueTextMode.VALUE)
    panel = panel.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    for target in _targets([(expression, legend)], PromQueryFormat.TIME_SERIES):
        panel = panel.with_target(target)
    return panel


def listing(title: str, about: str, *columns: Query, hidden: Sequence[str] = (), width: int = WIDTH) -> table.Panel:
    """A row for each set of labels, a column for each query."""
    panel = table.Panel().title(title).description(about).datasource(SOURCE).height(10).span(width)
    for target in _targets(columns, PromQueryFormat.TABLE):
        panel = panel.with_target(target)
    single = len(columns) == 1
    names = {"Value" if single else f"Value #{chr(ord('A') + place)}": name for place, (_, name) in enumerate(columns)}
    excluded = dict.fromkeys(("Time", "__name__", "job", *hidden), True)
    return panel.with_transformation(DataTransformerConfig(id_val="merge", options={})).with_transformation(
        DataTransformerConfig(id_val="organize", options={"excludeByName": excluded, "renameByName": names})
    )


def choice(name: str, label: str, query: str) -> dashboards.QueryVariable:
    """A variable whose values are those of a label."""
    return (
        dashboards.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .definition(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def alternatives(name: str, label: str, *values: str) -> dashboards.CustomVariable:
    """A variable with values that are always the same; the first one holds at the beginning."""
    options = [VariableOption(selected=place == 0, text=value, value=value) for place, value in enumerate(values)]
    return dashboards.CustomVariable(name).label(label).values(",".join(values)).options(options).current(options[0])


def board(
    uid: str, title: str, about: str, variables: Sequence[dashboards.QueryVariable | dashboards.CustomVariable]
) -> dashboards.Dashboard:
    """An empty dashboard with the variables of all, and links to the others."""
    source = (
        dashboards.DatasourceVariable("datasource")
        .label("Prometheus")
        .type("prometheus")
        .current(VariableOption(selected=True, text="Prometheus", value=SOURCE_UID))
        .hide(VariableHide.DONT_HIDE)
    )
    made = dashboards.Dashboard(title).uid(uid).description(about).tags([TAG]).refresh("30s").time("now-6h", "now").timezone("browser")
    made = made.readonly().with_variable(source)
    made = made.link(
        dashboards.DashboardLink("Training Ledger").type(models.DashboardLinkType.DASHBOARDS).tags([TAG]).as_dropdown(True).keep_time(True)
    )
    for variable in variables:
        made = made.with_variable(variable)
    return made


def filled(made: dashboards.Dashboard, *rows: tuple[str, Sequence[Panel]]) -> models.Dashboard:
    """The dashboard with titled rows of panels, numbered from 1."""
    for title, panels in rows:
        made = made.with_row(dashboards.Row(title))
        for panel in panels:
            made = made.with_panel(panel)
    built = made.build()
    for number, placed in enumerate(built.panels or [], start=1):
        placed.id_val = number
    return built
