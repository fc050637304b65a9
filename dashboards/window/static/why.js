// Panel 5: why it is not faster, as differences of logarithms that add up.
import { el, fill, notKnown, table } from "./dom.js";

/** Causes that change less are only counted. */
const SMALL_LOG = 0.005;

export function drawWhy(box, panel) {
  if (panel.why_unknown) { fill(box, notKnown(panel.why_unknown)); return; }
  const shown = panel.causes.filter((one) => Math.abs(one.log) >= SMALL_LOG);
  const rest = panel.causes.length - shown.length;
  const widest = Math.max(...panel.causes.map((one) => Math.abs(one.log)), Math.abs(panel.request_tokens_per_second.log), 0.05);
  const whole = { ...panel.request_tokens_per_second, cause: "speed of a request", evidence: "All causes but the load, added up" };
  fill(box, ...panel.answer.slice(0, 1).map((line) => el("p", "summary", line)),
    el("ol", "waterfall", step(whole, widest), ...shown.map((one) => step(one, widest))),
    ...(rest ? [el("p", "quiet", `${rest} further causes change nothing (less than 0.5 %).`)] : []),
    ...panel.unknown.map((line) => el("p", "unknown", line)),
    ...modelFree(panel.model_free));
}

/** Drafters without a model on the same text, by label. */
function modelFree({ answer, rows }) {
  if (!rows.length) { return []; }
  const names = rows[0].drafters.map((one) => one.drafter);
  const cells = rows.map((row) => [row.label === null ? "all" : row.label || "no label", row.traces, row.accept_length.toFixed(2),
    ...row.drafters.map((one) => `${one.accept_length.toFixed(2)} ×${one.gain.toFixed(2)}`)]);
  return [...answer.map((line) => el("p", "summary", line)), table(["label", "traces", "draft", ...names], cells, "Accept length on the same text")];
}

function step({ cause, log, log_low: low, log_high: high, is_noise: isNoise, share, evidence, what_would_change_it: cure }, widest) {
  const half = (50 * Math.abs(log)) / widest;
  const bar = el("span", `fall ${log < 0 ? "down" : "up"}${isNoise ? " noise" : ""}`);
  bar.style.width = `${half}%`;
  bar.style.left = `${log < 0 ? 50 - half : 50}%`;
  const scale = el("span", "fall-scale", bar);
  scale.setAttribute("aria-hidden", "true");
  const interval = low === null ? "no interval" : `${Math.exp(low).toFixed(2)} to ${Math.exp(high).toFixed(2)}`;
  const part = share === null || share === undefined || isNoise ? "" : `, ${(100 * share).toFixed(0)} % of the change`;
  const text = `×${Math.exp(log).toFixed(2)} (${interval})${part}${isNoise ? ", below the noise" : ""}`;
  const more = isNoise ? [] : [evidence, log < 0 && cure && `What would change it: ${cure}`].filter(Boolean);
  return el("li", isNoise ? "noise" : "", el("strong", "", cause), scale, el("span", "fall-text", text), ...more.map((line) => el("p", "quiet", line)));
}
