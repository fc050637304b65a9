// Panel 3: a bar per draft from its birth to its end, under the axis of the chart.
import { el, fill, keyed } from "./dom.js";
import { clock, SIGNS, stateWord } from "./format.js";

export class Lane {
  constructor(box, note, onChoose) {
    Object.assign(this, { box, note, onChoose });
    this.limits = [0, 1];
    this.drafts = [];
    this.chosen = null;
  }

  axis({ from, until }) {
    this.limits = [from, until];
    this.draw();
  }

  show({ drafts, note }) {
    this.drafts = drafts;
    this.note.textContent = note;
    this.draw();
  }

  choose(number) {
    this.chosen = number;
    this.draw();
  }

  draw() {
    const [from, until] = this.limits;
    const shown = this.drafts.filter((draft) => draft.bars.some((bar) => (bar.to ?? until) >= from && bar.from <= until));
    keyed(this.box, shown, (draft) => draft.number, (draft) => this.row(draft), (row, draft) => this.update(row, draft));
  }

  row({ number }) {
    const row = el("button", "lane-row", el("span", "lane-number", number), el("span", "lane-track"), el("span", "spoken"));
    row.type = "button";
    row.addEventListener("click", () => this.onChoose(number));
    return row;
  }

  update(row, draft) {
    row.setAttribute("aria-pressed", String(draft.number === this.chosen));
    row.title = spoken(draft);
    row.children[2].textContent = spoken(draft);
    row.children[0].textContent = `${SIGNS[draft.state] || ""} ${draft.number}`;
    row.children[0].className = `lane-number ${draft.state}`;
    fill(row.children[1], ...draft.bars.filter(lasted).map((bar) => this.bar(bar)), ...this.said(draft));
  }

  /** Beside a draft that was put out: why. On the side that has room. */
  said({ state, lead, bars }) {
    if (state !== "refused" && state !== "rolled_back") { return []; }
    const last = bars[bars.length - 1];
    const at = this.place(last.state === "refused" ? last.from : last.to ?? last.from);
    const text = el("span", "lane-why", `${stateWord(state)}: ${lead}`);
    if (at > 50) { text.style.right = `calc(${100 - at}% + 12px)`; } else { text.style.left = `calc(${at}% + 12px)`; }
    text.style.maxWidth = `calc(${Math.max(at, 100 - at)}% - 16px)`;
    return [text];
  }

  /** Where a time lies in the track, in per cent. */
  place(unix) {
    const [start, end] = this.limits;
    return 100 * Math.min(1, Math.max(0, (unix - start) / (end - start)));
  }

  bar({ state, from, to }) {
    const made = el("span", `bar ${state}`, state === "refused" ? SIGNS.refused : "");
    made.style.left = `${this.place(from)}%`;
    if (state !== "refused") { made.style.width = `${Math.max(0.4, this.place(to ?? this.limits[1]) - this.place(from))}%`; }
    return made;
  }
}

/** A draft that was decided on at once was no candidate for long enough to be seen. */
function lasted({ state, from, to }) {
  return state !== "candidate" || to === null || to - from >= 1;
}

function spoken({ number, state, lead, bars }) {
  const born = bars.length ? `, since ${clock(bars[0].from)}` : "";
  return `draft ${number}: ${stateWord(state)}${born}. ${lead}`;
}
