// Promote and roll back. The token is in memory alone and leaves in a header; the board refuses what it no longer is.
import { el, fill } from "./dom.js";
import { clock, stateWord } from "./format.js";

const part = (name) => document.getElementById(`act-${name}`);

export class Acts {
  constructor(box, speculator) {
    Object.assign(this, { box, speculator });
    this.offered = null; // the draft on the page, as the page knows it
    this.done = null; // the last act, whose adoption is shown
    this.members = [];
    part("promote").addEventListener("click", () => this.act("promote"));
    part("rollback").addEventListener("click", () => this.act("rollback"));
    part("form").addEventListener("submit", (event) => event.preventDefault());
  }

  offer(panel) {
    if (this.offered && this.offered.number !== panel.number) { part("number").value = ""; }
    this.offered = panel.why_unknown ? null : { number: panel.number, state: panel.state };
    part("promote").disabled = !panel.may_promote;
    part("rollback").disabled = !panel.may_roll_back;
    part("promote").textContent = panel.why_unknown ? "Promote" : `Promote draft ${panel.number}`;
    part("rollback").textContent = panel.why_unknown ? "Roll back" : `Roll back draft ${panel.number}`;
    part("offer").textContent = panel.act_text || "";
  }

  forbid() {
    part("promote").disabled = true;
    part("rollback").disabled = true;
  }

  async act(name) {
    const { offered } = this;
    if (!offered) { return; }
    const [why, typed, token] = ["why", "number", "token"].map((field) => part(field).value.trim());
    if (typed !== String(offered.number)) { this.say("refused", `typed ${typed || "nothing"}, expected ${offered.number}`); return; }
    if (!why || !token) { this.say("refused", `${why ? "a token" : "a reason"} is needed`); return; }
    this.say("waiting", "asking the board");
    const body = JSON.stringify({ speculator: this.speculator(), number: offered.number, was: offered.state, why });
    try {
      const headers = { "Content-Type": "application/json", "X-Paceline-Token": token };
      await this.answer(await fetch(`/acts/${name}`, { method: "POST", headers, body }));
    } catch (error) {
      this.say("refused", `no answer: ${error.message}. Whether the board took it, its history above will say`);
    }
  }

  async answer(reply) {
    const told = await reply.json();
    if (!reply.ok) { this.say("refused", told.refused || `answered ${reply.status}`); return; }
    this.done = { live: told.live, at: told.at, text: told.text };
    part("number").value = "";
    this.draw();
  }

  say(kind, text) {
    this.done = null;
    fill(part("result"), el("p", kind, kind === "refused" ? `✕ refused: ${text}` : text));
  }

  /** Which replicas took what the last act made live. */
  adoption({ members }) {
    this.members = members.filter((member) => member.member.startsWith("replica:"));
    if (this.done) { this.draw(); }
  }

  draw() {
    const { live, at, text } = this.done;
    const lines = this.members.map((one) => el("li", "", `${one.draft === live ? "✓" : "…"} ${one.member}: ${adopted(one, live)}`));
    const none = this.members.length ? [] : [el("p", "quiet", "no replica is known; the board is changed all the same")];
    fill(part("result"), el("p", "done", `${text}, at ${clock(at)}. Adoption:`), el("ul", "", ...lines), ...none);
  }
}

function adopted({ draft, presence }, live) {
  if (presence !== "alive") { return `${stateWord(presence)}, unknown`; }
  if (draft === live) { return `drafts with ${live}`; }
  return draft === null ? "does not say what it drafts with" : `still drafts with ${draft}`;
}
