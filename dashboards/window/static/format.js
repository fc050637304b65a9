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

/** Unix seconds as the clock of this machine shows them. */
export function clock(unix) {
  return new Date(unix * 1000).toLocaleTimeString("en-GB");
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
