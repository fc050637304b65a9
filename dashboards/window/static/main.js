// Wires the stream to the panels. Each panel module draws one panel from its JSON.
import { Accept, shownTimes } from "./accept.js";
import { Acts } from "./acts.js";
import { drawDraft } from "./draft.js";
import { el, fill, notKnown } from "./dom.js";
import { clock } from "./format.js";
import { drawHeadline, unknownHeadline } from "./headline.js";
import { Lane } from "./lane.js";
import { drawLoop } from "./loop.js";
import { drawMembers } from "./members.js";
import { drawPositions } from "./positions.js";
import { Stream } from "./stream.js";
import { drawWhy } from "./why.js";

const at = (id) => document.getElementById(id);
const asked = new URLSearchParams(location.search);
const choice = { speculator: asked.get("speculator") || "", span: asked.get("span") || "900", draft: asked.get("draft") || "" };

const accept = new Accept(at("chart"), at("readout"), at("legend"), at("accept-summary"), at("accept-unknown"));
const lane = new Lane(at("lane"), at("lane-note"), (number) => chooseDraft(number));
const acts = new Acts(at("acts"), () => choice.speculator);

const DRAW = {
  headline: (panel) => drawHeadline(at("headline"), panel),
  accept: (panel) => { accept.show(panel); lane.axis(shownTimes(panel)); },
  lane: (panel) => lane.show(panel),
  positions: (panel) => drawPositions(at("positions"), panel),
  why: (panel) => drawWhy(at("why"), panel),
  draft: (panel) => { drawDraft(at("draft"), at("draft-title"), panel); at("acts").hidden = Boolean(panel.why_unknown); acts.offer(panel); lane.choose(panel.number); },
  loop: (panel) => drawLoop(at("loop"), panel),
  members: (panel) => { drawMembers(at("members"), panel); acts.adoption(panel); },
};

/** Where a panel's words stand that has another name there. */
const BOXES = { accept: "accept-summary" };

const stream = new Stream({ onPanels: show, onTrouble: trouble, onLink: link });

function show({ panels, speculator, speculators }) {
  choice.speculator = speculator;
  grey(null);
  for (const [name, panel] of Object.entries(panels)) { draw(name, panel); }
  at("speculator").textContent = speculator;
  document.title = `paceline ${speculator}`;
  offerSpeculators(speculators, speculator);
  linkApi();
}

/** Draw one panel; a fault in one leaves the others alone, and is said on the console and in its place. */
function draw(name, panel) {
  try { DRAW[name](panel); } catch (error) {
    console.error(name, error);
    const box = at(BOXES[name] || name);
    if (box) { fill(box, notKnown(`this page cannot draw it, ${error.message}`)); }
  }
}

/** The board cannot be read: nothing of what stands on the page is known to be so now. */
function trouble({ message, since, speculator }) {
  if (speculator) { choice.speculator = speculator; }
  grey(`Nothing below is known to be so now. Since ${clock(since)}: ${message}`);
  unknownHeadline(at("headline"), "the board cannot be read");
  connection("unread", "connected, board not readable");
}

function link(word, since) {
  connection(word, word === "live" ? "live" : `stream lost since ${clock(since)}`);
  if (word === "lost") {
    grey(`Stream lost since ${clock(since)}: paceline window does not answer. What stands below is of that time.`);
    unknownHeadline(at("headline"), "paceline window does not answer");
  }
}

function connection(word, text) {
  if (at("connection").textContent !== text) { at("connection").textContent = text; }
  at("connection").dataset.link = word;
}

function grey(text) {
  document.body.classList.toggle("grey", text !== null);
  at("trouble").hidden = text === null;
  if (text !== null && at("trouble").textContent !== text) { at("trouble").textContent = text; }
  if (text !== null) { acts.forbid(); }
}

function open() {
  const query = new URLSearchParams({ span: choice.span });
  if (choice.speculator) { query.set("speculator", choice.speculator); }
  if (choice.draft) { query.set("draft", choice.draft); }
  history.replaceState(null, "", `?${query}`);
  stream.open(query.toString());
}

function chooseDraft(number) {
  choice.draft = String(number);
  open();
  at("draft-section").scrollIntoView({ block: "nearest" });
  at("draft-title").focus({ preventScroll: true });
}

function offerSpeculators(names, chosen) {
  const select = at("speculator-choice");
  at("speculators").hidden = names.length < 2;
  if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
    fill(select, ...names.map((name) => Object.assign(el("option", "", name), { value: name })));
  }
  select.value = chosen;
}

function linkApi() {
  const query = `speculator=${encodeURIComponent(choice.speculator)}`;
  if (at("api").dataset.query === query) { return; }
  at("api").dataset.query = query;
  const links = Object.keys(DRAW).map((name) => Object.assign(el("a", "", name), { href: `/api/${name}.json?${query}` }));
  fill(at("api"), ...links.flatMap((one) => [one, " "]));
}

at("speculator-choice").addEventListener("change", (event) => {
  choice.speculator = event.target.value;
  choice.draft = "";
  open();
});
at("spans").addEventListener("click", (event) => {
  if (!event.target.dataset.span) { return; }
  choice.span = event.target.dataset.span;
  pressSpan();
  open();
});
function pressSpan() {
  for (const button of at("spans").children) { button.setAttribute("aria-pressed", String(button.dataset.span === choice.span)); }
}
pressSpan();
open();
