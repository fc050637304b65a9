// Panel 2: accept length over time, with its interval, the drafts that went live, refusals and what was predicted.
import { el, fill } from "./dom.js";
import { clock, count, figure, hour } from "./format.js";
import { drawMarks, drawShades } from "./marks.js";

const HEIGHT = 260;
/** Seconds that the chart shows at least, however young the speculator is. */
const LEAST_S = 60;
/** Dashes of the thin lines, so that they differ without colour too. */
const DASHES = [[], [8, 4], [2, 4], [10, 4, 2, 4]];
/** Room that the lane leaves at its sides, as the chart's axis does. */
export const AXIS_PX = 44;
export const RIGHT_PX = 30;

export class Accept {
  constructor(box, readout, legend, summary, unknown) {
    Object.assign(this, { box, readout, legend, summary, unknown });
    this.plot = null;
    this.panel = null;
    this.drawn = "";
    new ResizeObserver(() => this.resize()).observe(box);
    document.addEventListener("theme", () => this.rebuild());
    box.addEventListener("keydown", (event) => this.step(event));
    box.addEventListener("mouseleave", () => this.tell(null));
  }

  show(panel) {
    this.panel = panel;
    this.summary.textContent = panel.summary;
    this.unknown.hidden = !panel.why_unknown;
    this.unknown.textContent = panel.why_unknown ? `not known: ${panel.why_unknown}` : "";
    const drawn = [...panel.labels.map((line) => line.label), panel.moved.length > 0, panel.drifted.length > 0].join("\n");
    if (this.plot && drawn === this.drawn) { this.plot.setData(data(panel)); } else { this.drawn = drawn; this.rebuild(); }
    if (!this.plot.cursor.idx) { this.tell(null); }
  }

  rebuild() {
    if (!this.panel) { return; }
    if (this.plot) { this.plot.destroy(); }
    const ink = colours();
    this.plot = new window.uPlot(options(this, ink), data(this.panel), this.box);
    fill(this.legend, ...entries(this.panel));
  }

  resize() {
    if (this.plot && this.box.clientWidth) { this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT }); }
  }

  /** Arrow keys walk along the line. */
  step(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !this.plot) { return; }
    event.preventDefault();
    const last = this.panel.times.length - 1;
    const from = this.plot.cursor.idx ?? last;
    const index = Math.min(last, Math.max(0, from + move));
    this.plot.setCursor({ left: this.plot.valToPos(this.panel.times[index], "x"), top: 20 });
    this.tell(index);
  }

  /** Say what stands at a point; without one, at the newest that is known. */
  tell(index) {
    const { panel } = this;
    if (!panel) { return; }
    let at = index;
    if (at === null) { at = panel.pooled.findLastIndex((value) => value !== null); }
    const text = at < 0 ? "" : `${index === null ? "newest, " : ""}${point(panel, at)}`;
    if (this.readout.textContent !== text) { this.readout.textContent = text; }
  }
}

function point(panel, at) {
  const interval = panel.low[at] === null ? "interval unknown" : `${figure(panel.low[at])} to ${figure(panel.high[at])}`;
  const draft = panel.draft[at] === null ? "draft unknown" : `draft ${panel.draft[at]}`;
  const said = [`${clock(panel.times[at])}: accept length ${figure(panel.pooled[at])} (${interval})`, draft,
    `${count(panel.rounds[at])} rounds of ${count(panel.requests[at])} ended requests`];
  for (const line of panel.labels) { if (line.values[at] !== null) { said.push(`${line.label} ${figure(line.values[at])}`); } }
  if (panel.drifted.some(([from, to]) => from < panel.times[at] && panel.times[at] - panel.width_s < to)) { said.push("drift found"); }
  const near = panel.marks.filter((mark) => mark.at > panel.times[at] - panel.width_s && mark.at <= panel.times[at]);
  return [said.join(", "), ...near.map((mark) => `${mark.text}: ${mark.lead}`)].join(". ");
}

function data(panel) {
  return [panel.times, panel.high, panel.low, panel.predicted, ...panel.labels.map((line) => line.values), panel.pooled];
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const named = (name) => style.getPropertyValue(`--${name}`).trim();
  return { text: named("quiet-text"), grid: named("rule"), main: named("main"), band: named("band"), predicted: named("predicted"),
    wrong: named("wrong"), shade: named("shade"), drift: named("drift"), labels: ["line1", "line2", "line3", "line4"].map(named), background: named("card") };
}

function options(chart, ink) {
  const { panel, box } = chart;
  const hidden = { stroke: "transparent", width: 0, points: { show: false } };
  const line = (stroke, width, more) => ({ stroke, width, spanGaps: false, points: { show: false }, ...more });
  const stepped = window.uPlot.paths.stepped({ align: -1 });
  const axis = { stroke: ink.text, grid: { stroke: ink.grid, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return {
    width: box.clientWidth || 600, height: HEIGHT, padding: [22, RIGHT_PX, 0, 0], legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
    scales: { x: { time: true, range: () => limits(chart.panel) }, y: { range: (_, low, high) => rangeOf(low, high) } },
    axes: [{ ...axis, space: 70, size: 30, values: (_, ticks) => ticks.map((tick) => hour(tick)) }, { ...axis, size: AXIS_PX }],
    series: [{}, hidden, hidden, line(ink.predicted, 1.5, { dash: [6, 4], paths: stepped }),
      ...panel.labels.map((_, index) => line(ink.labels[index % 4], 1.25, { dash: DASHES[index % 4] })), line(ink.main, 2.5, {})],
    bands: [{ series: [1, 2], fill: ink.band }],
    hooks: {
      drawClear: [(plot) => drawShades(plot, chart.panel, ink)],
      draw: [(plot) => drawMarks(plot, chart.panel, ink)],
      setCursor: [(plot) => chart.tell(plot.cursor.left < 0 ? null : plot.cursor.idx ?? null)],
    },
  };
}

/** From where the data begin, so that they fill the chart; from a speculator's birth where that was just before. */
export function shownTimes(panel) {
  const first = (panel.times[panel.pooled.findIndex((value) => value !== null)] ?? panel.until) - panel.width_s;
  const began = (panel.born ?? 0) > first - LEAST_S ? Math.min(panel.born, first) : first;
  return { from: Math.max(panel.from, Math.min(began, panel.until - LEAST_S)), until: panel.until };
}

function limits(panel) {
  const { from, until } = shownTimes(panel);
  return [from, until];
}

/** An accept length is 1 at least: a round commits the target's own token. */
function rangeOf(low, high) {
  return [1, Math.max(2, (high ?? 1) + 0.15)];
}

function entries(panel) {
  const entry = (kind, text) => el("li", "", el("span", `swatch ${kind}`), text);
  const fixed = [entry("pooled", "all requests, with 95 % interval"), entry("predicted", "what was predicted before each draft went live"),
    entry("swap", "a draft went live (its number)"), entry("refused", "a draft was refused")];
  const moved = panel.moved.length ? [entry("moved", "traffic moved: other labels than when the live draft was judged")] : [];
  const drifted = panel.drifted.length ? [entry("drifted", "drift: the learner's test fired, until a draft went live or it rested again")] : [];
  return [...fixed.slice(0, 1), ...panel.labels.map((line, index) => entry(`line${(index % 4) + 1}`, line.label || "no label")), ...fixed.slice(1), ...moved, ...drifted];
}
