// Panel 1: one sentence per question.
import { el, fill } from "./dom.js";

const TOPICS = ["faster", "fresh", "last swap", "loop", "alarms"];
const WORDS = { ok: "✓ well", note: "i note", wrong: "✕ wrong", unknown: "? unknown" };

export function drawHeadline(list, { findings }) {
  fill(list, ...findings.map(({ topic, level, sentence: text }) => line(topic, level, text)));
}

/** Every answer is unknown: whatever was well a moment ago is not known to be well now. */
export function unknownHeadline(list, why) {
  fill(list, ...TOPICS.map((topic) => line(topic, "unknown", `unknown: ${why}`)));
}

function line(topic, level, text) {
  const item = el("li", `finding ${level}`, el("span", "badge", WORDS[level] || level), el("strong", "", topic), el("span", "text", text));
  if (topic !== "alarms" || level !== "wrong") { return item; }
  item.append(Object.assign(el("a", "", "see members and alarms"), { href: "#members-title" }));
  return item;
}
