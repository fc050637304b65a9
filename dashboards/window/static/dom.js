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

/** A table: headings, then rows of cells, each an element or text; the first cell of a row heads it. */
export function table(headings, rows, caption) {
  const head = el("tr", "", ...headings.map((text) => scoped(el("th", "", text), "col")));
  const body = rows.map((cells) => el("tr", "", ...cells.map((cell, index) => (
    index ? el("td", "", cell) : scoped(el("th", "", cell), "row")))));
  const made = el("table", "", el("thead", "", head), el("tbody", "", ...body));
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

function scoped(cell, scope) {
  cell.scope = scope;
  return cell;
}
