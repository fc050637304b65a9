// Panel 4: how far drafts are accepted, by position, this draft beside the one before; by label, and by where rounds began.
import { el, fill, notKnown, table } from "./dom.js";
import { count, figure, share } from "./format.js";

export function drawPositions(box, panel) {
  if (panel.why_unknown) { fill(box, notKnown(panel.why_unknown)); return; }
  const { draft, before, rows, labels, starts } = panel;
  const beside = before === null ? [] : [`draft ${before}`];
  const byPosition = table(["position", `draft ${draft}`, ...beside, "tried", "stood"], rows.map((row) => [
    row.position, el("span", "with-meter", share(row.rate), bar(row.rate)), ...(before === null ? [] : [share(row.rate_before)]), count(row.tried), count(row.stood)]),
  "Share of the drafts at each position that were accepted, where the positions before it were");
  const byLabel = table(["label", "accept length", "rounds"], labels.map((one) => [
    one.label || "no label", withInterval(one), count(one.rounds)]), `Accept length of draft ${draft} by label`);
  const byStart = starts.length === 0 ? [] : [table(["began at token", "accept length", "rounds"], starts.map((one) => [
    one.start, figure(one.accept_length), count(one.rounds)]), `Accept length of draft ${draft} by where rounds began, in the answer and in all of the request`)];
  fill(box, byPosition, byLabel, ...byStart);
}

function withInterval({ accept_length: value, interval }) {
  return interval === null ? figure(value) : `${figure(value)} (${figure(interval[0])} to ${figure(interval[1])})`;
}

function bar(rate) {
  const made = el("span", "meter", el("span", "meter-fill"));
  made.firstChild.style.width = `${100 * (rate ?? 0)}%`;
  made.setAttribute("aria-hidden", "true");
  return made;
}
