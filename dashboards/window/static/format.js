// Numbers and times for people; null is never shown as 0.

export const UNKNOWN = "unknown";

/** A number with fixed digits, or the word. */
export function figure(value, digits = 2) {
  return value === null || value === undefined ? UNKNOWN : value.toFixed(digits);
}

/** A count with thousands apart, or the word. */
export function count(value) {
  return value === null || value === undefined ? UNKNOWN : value.toLocaleString("en");
}

/** A share as per cent, or the word. */
export function share(value) {
  return value === null || value === undefined ? UNKNOWN : `${(100 * value).toFixed(0)} %`;
}

/** Unix seconds as the clock of this machine shows them; with the day when that is not today's. */
export function clock(unix) {
  const at = new Date(unix * 1000);
  const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString("en-CA")} `;
  return `${day}${at.toLocaleTimeString("en-GB")}`;
}

/** The same without the day, for an axis. */
export function hour(unix) {
  return new Date(unix * 1000).toLocaleTimeString("en-GB").slice(0, unix % 60 ? 8 : 5);
}

/** A span of seconds in its natural unit. */
export function span(seconds) {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * size) { return `${(seconds / size).toFixed(0)} ${unit}`; }
  }
  return `${seconds.toFixed(0)} s`;
}

/** A state of a draft in words. */
export function stateWord(state) {
  return state.replaceAll("_", " ");
}

/** A sign for each state, so that none is told by colour alone. */
export const SIGNS = { live: "●", canary: "◐", candidate: "○", refused: "✕", rolled_back: "↩", retired: "·" };
