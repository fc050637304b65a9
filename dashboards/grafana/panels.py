"""The kinds of panel that the dashboards are made of, and the frame around them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from grafana_foundation_sdk.builders import common as looks
from grafana_foundation_sdk.builders import stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardLink,
    QueryVariable,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models import common, dashboard, prometheus

#: The data source that provisioning/datasources/paceline.yml makes.
SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="paceline-prometheus")
#: Of speculators, those that are chosen above; `of` puts it into an expression.
_CHOSEN = 'speculator=~"$speculator"'
#: Colours say what is known to be well or wrong; a figure that nobody told is neither.
NEUTRAL = "text"
WELL = "green"
WARNING = "yellow"
WRONG = "red"


def of(expression: str) -> str:
    """`expression` with its `{S}` and `{S,...}` as matchers of the chosen speculators."""
    return expression.replace("{S}", f"{{{_CHOSEN}}}").replace("{S,", f"{{{_CHOSEN},")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One large figure that answers the question; `unknown` is shown in its place where nobody tells.

    `steps` are colours from the values on; beneath the first, and where it is unknown, it has none.
    """

    title: str
    expression: str
    meaning: str
    unknown: str
    unit: str = "none"
    steps: Mapping[float, str] = field(default_factory=dict)
    width: int = 6

    def made(self) -> stat.Panel:
        """Its panel."""
        levels = [dashboard.Threshold(value=None, color=NEUTRAL)]
        levels += [dashboard.Threshold(value=value, color=color) for value, color in self.steps.items()]
        return (
            stat.Panel()
            .title(self.title)
            .description(self.meaning)
            .datasource(SOURCE)
            .with_target(_query(self.expression, "{{speculator}}", 0).instant())
            .reduce_options(looks.ReduceDataOptions().calcs(["lastNotNull"]))
            .unit(self.unit)
            .decimals(2)
            .no_value(self.unknown)
            .thresholds(ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(levels))
            .color_mode(common.BigValueColorMode.VALUE)
            .graph_mode(common.BigValueGraphMode.NONE)
            .text_mode(common.BigValueTextMode.VALUE_AND_NAME)
            .height(5)
            .span(self.width)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Lines over time; `lines` maps a line's name, in which {{label}} stands for a label, to its expression."""

    title: str
    meaning: str
    lines: Mapping[str, str]
    unit: str = "none"
    width: int = 12

    def made(self) -> timeseries.Panel:
        """Its panel."""
        panel = timeseries.Panel().title(self.title).description(self.meaning).datasource(SOURCE).unit(self.unit)
        for place, (name, expression) in enumerate(self.lines.items()):
            panel = panel.with_target(_query(expression, name, place).range())
        legend = looks.VizLegendOptions().show_legend(True).placement(common.LegendPlacement.BOTTOM)
        legend = legend.display_mode(common.LegendDisplayMode.LIST)
        # A gap stays a gap: a line across it would show figures that nobody measured.
        return panel.legend(legend).span_nulls(False).fill_opacity(0).height(8).span(self.width)


@dataclass(frozen=True, slots=True)
class Rows:
    """The labels and the value of every series, as it is now."""

    title: str
    meaning: str
    expression: str
    width: int = 12

    def made(self) -> table.Panel:
        """Its panel."""
        query = _query(self.expression, "", 0).instant().format(prometheus.PromQueryFormat.TABLE)
        panel = table.Panel().title(self.title).description(self.meaning).datasource(SOURCE).with_target(query)
        return panel.height(8).span(self.width)


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line across every graph where `expression` has a value."""

    name: str
    expression: str
    color: str

    def made(self) -> AnnotationQuery:
        """Its annotation."""
        return (
            AnnotationQuery()
            .name(self.name)
            .datasource(SOURCE)
            .enable(True)
            .icon_color(self.color)
            .expr(of(self.expression))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One dashboard: it asks for speculators, and links to the other ones."""

    uid: str
    question: str
    meaning: str
    panels: tuple[Answer | Graph | Rows, ...]
    marks: tuple[Mark, ...] = ()

    def made(self) -> Dashboard:
        """Its dashboard."""
        others = DashboardLink("paceline").type(dashboard.DashboardLinkType.DASHBOARDS).tags(["paceline"])
        page = Dashboard(self.question).uid(self.uid).description(self.meaning).tags(["paceline"]).readonly()
        page = page.refresh("10s").time("now-1h", "now").timezone("browser").with_variable(_speculators())
        page = page.link(others.keep_time(True).include_vars(True).as_dropdown(False))
        for mark in self.marks:
            page = page.annotation(mark.made())
        for number, panel in enumerate(self.panels, 1):
            page = page.with_panel(panel.made().id(number))
        return page


def _speculators() -> QueryVariable:
    return (
        QueryVariable("speculator")
        .label("speculator")
        .datasource(SOURCE)
        .query("label_values(paceline_speculator_readable, speculator)")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
    )


def _query(expression: str, name: str, place: int) -> Dataquery:
    """The query of one line; `place` counts the lines of its panel from 0."""
    return Dataquery().expr(of(expression)).legend_format(name).ref_id(chr(ord("A") + place)).datasource(SOURCE)
