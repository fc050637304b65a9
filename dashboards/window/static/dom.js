// Elements. Every text goes in as a text node, so what others wrote into Redis stays text.

/** An element with a class and children; children are elements, or anything else as text. */
export function el(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) { made.className = className; }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

/** Replace the children of `parent`. */
export function fill(parent, ...children) {
  parent.replaceChildren(...children.map((child) => (child instanceof Node ? child : String(child))));
}

/** A cell of so many characters may wrap, anywhere; shorter ones do not. */
const LONG_CHARS = 20;

/** A table: headings, then rows of cells, each an element or text; the first cell of a row heads it.

A wide one becomes a list of its rows where the page is narrow; the roles keep it a table for those who listen to it. */
export function table(headings, rows, caption, isWide = false) {
  const head = as("row", el("tr", "", ...headings.map((text) => as("columnheader", scoped(el("th", "", text), "col")))));
  const body = rows.map((cells) => as("row", el("tr", "", ...cells.map((cell, index) => {
    const made = index ? as("cell", el("td", "", el("span", "", cell))) : as("rowheader", scoped(el("th", "", cell), "row"));
    made.dataset.heading = headings[index];
    made.classList.toggle("long", made.textContent.length > LONG_CHARS);
    return made;
  }))));
  const made = as("table", el("table", isWide ? "wide-table" : "", as("rowgroup", el("thead", "", head)), as("rowgroup", el("tbody", "", ...body))));
  if (caption) { made.prepend(el("caption", "", caption)); }
  const box = el("div", "scroll", made);
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", caption || "table");
  return box;
}

/** Keep one child of `parent` per item, made once by its key and updated after that; focus survives. */
export function keyed(parent, items, keyOf, make, update) {
  const present = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const key = String(keyOf(item));
    const child = present.get(key) || make(item);
    child.dataset.key = key;
    update(child, item);
    present.delete(key);
    return child;
  });
  for (const gone of present.values()) { gone.remove(); }
  wanted.forEach((child, index) => {
    if (parent.children[index] !== child) { parent.insertBefore(child, parent.children[index] || null); }
  });
}

/** A paragraph that says that something is not known, and why. */
export function notKnown(why) {
  return el("p", "unknown", `not known: ${why}`);
}

const opened = new Set();

/** A reason by its lead and its figures; all of it when that is clicked, which survives a redraw. */
export function reason({ lead, figures, why }) {
  if (lead === why) { return el("span", "", why); }
  const made = el("details", "reason", el("summary", "", lead, el("span", "quiet", ` ${figures}`)), why);
  made.open = opened.has(why);
  made.addEventListener("toggle", () => opened[made.open ? "add" : "delete"](why));
  return made;
}

function as(role, element) {
  element.setAttribute("role", role);
  return element;
}

function scoped(cell, scope) {
  cell.scope = scope;
  return cell;
}
