// Panel 6: one draft. What the gate saw, what it served since, where it comes from, what became of it.
import { el, fill, notKnown, reason, table } from "./dom.js";
import { clock, share, SIGNS, stateWord } from "./format.js";

export function drawDraft(box, title, panel) {
  if (panel.why_unknown) { title.textContent = "Draft"; fill(box, notKnown(panel.why_unknown)); return; }
  title.textContent = `Draft ${panel.number}`;
  const state = el("p", `state ${panel.state}`, `${SIGNS[panel.state] || ""} ${stateWord(panel.state)}`, el("span", "quiet", ` since ${clock(panel.changed_at)}`));
  fill(box, state, el("p", "reason", panel.lead), el("p", "quiet", panel.figures), gate(panel), el("div", "columns", figures(panel), traffic(panel)), story(panel), commands(panel));
}

function gate({ gate: found, scores }) {
  const isKnown = "judged_accept_length" in scores;
  return isKnown ? table(Object.keys(found), [Object.values(found)], "What the gate measured (no quality): accept lengths before the draft learnt these requests", true) : "";
}

function figures({ facts }) {
  return el("dl", "facts", ...facts.flatMap(([name, value]) => [el("dt", "", name), el("dd", "", value)]));
}

function traffic({ labels, judged_text: said }) {
  if (!labels.length) { return el("div", "", el("h3", "", "What it was judged on"), notKnown(said)); }
  const rows = labels.map((one) => [one.label || "no label", share(one.judged), share(one.then), share(one.now)]);
  return el("div", "", table(["label", "judged", "traffic then", "traffic now"], rows, "Requests it was judged on, beside the traffic"));
}

function story({ history }) {
  const rows = history.map((event) => [clock(event.at), `${SIGNS[event.state] || ""} ${stateWord(event.state)}`, event.by, reason(event)]);
  return table(["at", "became", "by", "why"], rows, "What became of it", true);
}

function commands({ commands: lines, mlflow, mlflow_unknown: why }) {
  const made = el("p", "commands", ...lines.flatMap((line) => [el("code", "", line), " "]));
  made.append(mlflow ? Object.assign(el("a", "", "this draft in MLflow"), { href: mlflow, rel: "noreferrer" }) : el("span", "quiet", `no link to MLflow: ${why}`));
  return made;
}
