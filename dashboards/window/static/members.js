// Panel 8: everybody of the last seven days, and what is wrong.
import { el, fill, table } from "./dom.js";
import { clock, span, UNKNOWN } from "./format.js";

const SIGNS = { alive: "✓", silent: "✕", ended: "·", left: "✕" };

export function drawMembers(box, { members, alarms }) {
  fill(box, alarms.length ? alarmList(alarms) : el("p", "quiet", "no alarm stands"), members.length ? memberTable(members) : el("p", "unknown", "nobody was seen in the last 7 days"));
}

function alarmList(alarms) {
  return el("ul", "alarms", ...alarms.map((alarm) => {
    const when = alarm.active ? "stands now" : `ended or told at ${clock(alarm.at)}`;
    const about = alarm.version === null ? "" : ` on draft ${alarm.version}`;
    return el("li", alarm.active ? "alarm active" : "alarm", el("strong", "", `${alarm.active ? "✕" : "·"} ${alarm.alarm}`),
      ` ${alarm.member}${about}, ${when}: ${alarm.detail}. Done: ${alarm.action}`);
  }));
}

function memberTable(members) {
  const rows = members.map((one) => [one.member, mark(one), one.unseen_s < 3 ? "now" : `${span(one.unseen_s)} ago`,
    one.draft === null ? "" : one.draft, one.paceline || UNKNOWN, one.host, one.doing]);
  return table(["member", "state", "last seen", "draft", "paceline", "host", "doing"], rows, "Members of the last 7 days", true);
}

function mark({ presence }) {
  return el("span", `presence ${presence}`, `${SIGNS[presence] || "?"} ${presence}`);
}
