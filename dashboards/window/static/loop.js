// Panel 7: where traces go, what the learner does, and the verdicts as a row of squares.
import { el, fill, notKnown } from "./dom.js";
import { SIGNS, stateWord } from "./format.js";

export function drawLoop(box, { facts, verdicts, why_unknown: why }) {
  const list = el("dl", "facts", ...facts.flatMap(([name, value]) => [el("dt", "", name), el("dd", "", value)]));
  const squares = el("ol", "squares", ...verdicts.map((one) => {
    const text = `draft ${one.number}: ${stateWord(one.state)}, ${one.lead}`;
    const square = el("li", `square ${one.state}`, el("span", "square-sign", SIGNS[one.state] || ""), one.number);
    square.title = text;
    return square;
  }));
  squares.setAttribute("aria-label", "verdicts on drafts, oldest first");
  const judged = el("div", "", el("h3", "", "Verdicts on drafts"), verdicts.length ? squares : el("p", "unknown", "no draft was judged yet"));
  fill(box, ...(why ? [notKnown(why)] : []), el("div", "columns", list, judged));
}
