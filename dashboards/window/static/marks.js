// What stands on the chart beside its lines: drafts that went live, refusals, rollbacks, drift, and traffic that moved.

const LABEL_ROOM_PX = 24;
/** From one stripe of a hatch to the next. */
const STRIPE_PX = 6;

/** Under the lines: shades where labels differ from those when the live draft was judged, stripes where drift was found. */
export function drawShades(plot, panel, ink) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.fillStyle = ink.shade;
  for (const [from, to] of panel.moved) {
    const left = inside(plot, from);
    ctx.fillRect(left, bbox.top, inside(plot, to) - left, bbox.height);
  }
  ctx.fillStyle = ink.drift;
  for (const [from, to] of panel.drifted) { stripe(plot, inside(plot, from), inside(plot, to)); }
  ctx.restore();
}

/** Upright stripes, the first one wide: it says when. */
function stripe({ ctx, bbox }, left, right) {
  ctx.fillRect(left, bbox.top, 3 * devicePixelRatio, bbox.height);
  for (let x = left; x < right; x += STRIPE_PX * devicePixelRatio) { ctx.fillRect(x, bbox.top, devicePixelRatio, bbox.height); }
}

/** A line with the draft's number per swap, an arrow per rollback, a cross with the number per refusal. */
export function drawMarks(plot, panel, ink) {
  const { ctx } = plot;
  ctx.save();
  ctx.font = `600 ${12 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  let labelled = -Infinity;
  for (const mark of panel.marks) {
    if (mark.at < panel.from || mark.at > panel.until) { continue; }
    const x = plot.valToPos(mark.at, "x", true);
    if (mark.kind === "refused") { cross(plot, x, mark.number, ink); continue; }
    const hasRoom = x - labelled > LABEL_ROOM_PX * devicePixelRatio;
    rule(plot, x, mark.kind === "returned" ? ink.wrong : ink.text, hasRoom ? `${mark.kind === "returned" ? "↩" : ""}${mark.number}` : "");
    if (hasRoom) { labelled = x; }
  }
  ctx.restore();
}

function rule(plot, x, colour, label) {
  const { ctx, bbox } = plot;
  ctx.strokeStyle = colour;
  ctx.fillStyle = colour;
  ctx.lineWidth = devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.fillText(label, x, bbox.top - 5 * devicePixelRatio);
}

function cross(plot, x, number, ink) {
  const { ctx, bbox } = plot;
  const size = 4 * devicePixelRatio;
  const y = bbox.top + bbox.height - 2 * size;
  ctx.strokeStyle = ink.wrong;
  ctx.lineWidth = 2 * devicePixelRatio;
  ctx.beginPath();
  for (const turn of [-1, 1]) {
    ctx.moveTo(x - size, y - turn * size);
    ctx.lineTo(x + size, y + turn * size);
  }
  ctx.stroke();
  ctx.fillStyle = ink.wrong;
  ctx.fillText(number, x, y - 2 * size);
}

function inside(plot, unix) {
  const { left, width } = plot.bbox;
  return Math.min(left + width, Math.max(left, plot.valToPos(unix, "x", true)));
}
