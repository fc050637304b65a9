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
    const row = el("button", "lane-row", el("span", "lane-number", number), el("span", "lane-track"), el("span", "lane-state"));
    row.type = "button";
    row.addEventListener("click", () => this.onChoose(number));
    return row;
  }

  update(row, draft) {
    row.setAttribute("aria-pressed", String(draft.number === this.chosen));
    row.setAttribute("aria-label", spoken(draft));
    row.title = spoken(draft);
    fill(row.children[1], ...draft.bars.map((bar) => this.bar(bar)));
    row.children[2].textContent = `${SIGNS[draft.state] || ""} ${stateWord(draft.state)}`;
    row.children[2].className = `lane-state ${draft.state}`;
  }

  bar({ state, from, to }) {
    const [start, end] = this.limits;
    const place = (unix) => 100 * Math.min(1, Math.max(0, (unix - start) / (end - start)));
    const made = el("span", `bar ${state}`, state === "refused" ? SIGNS.refused : "");
    made.style.left = `${place(from)}%`;
    if (state !== "refused") { made.style.width = `${Math.max(0.4, place(to ?? end) - place(from))}%`; }
    return made;
  }
}

function spoken({ number, state, why, bars }) {
  const born = bars.length ? `, since ${clock(bars[0].from)}` : "";
  return `draft ${number}: ${stateWord(state)}${born}. ${why}`;
}
