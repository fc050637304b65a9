// Panel 5: why it is not faster, as differences of logarithms that add up.
import { el, fill, notKnown } from "./dom.js";

export function drawWhy(box, panel) {
  if (panel.why_unknown) { fill(box, notKnown(panel.why_unknown)); return; }
  const widest = Math.max(...panel.bars.map((bar) => Math.abs(bar.change)), 0.01);
  fill(box, el("p", "summary", panel.summary), el("ol", "waterfall", ...panel.bars.map((bar) => step(bar, widest))));
}

function step({ name, change, text, evidence, cure }, widest) {
  const fillBar = el("span", `fall ${change < 0 ? "down" : "up"}`);
  fillBar.style.width = `${(50 * Math.abs(change)) / widest}%`;
  fillBar.style.left = `${change < 0 ? 50 - (50 * Math.abs(change)) / widest : 50}%`;
  const scale = el("span", "fall-scale", fillBar);
  scale.setAttribute("aria-hidden", "true");
  const more = [evidence, cure && `What would change it: ${cure}`].filter(Boolean);
  return el("li", "", el("strong", "", name), scale, el("span", "fall-text", text), ...more.map((line) => el("p", "quiet", line)));
}
