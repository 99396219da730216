// The table of indexes: state, backfill, counts, and the button that builds one anew.

import { ask, sentence } from "./asking.js";
import { $, make } from "./elements.js";
import { duration, number, rate } from "./words.js";

const rows = new Map(); // by index: its row, and the sum and time that its speed is reckoned from
const COUNTS = { seeded: "seeded", written: "written", deleted: "deleted", speed: "a second" };
const CHIPS = { live: "good", seeding: "busy", waiting: "", stopped: "bad" };

function indexRow(name, can) {
  const parts = {
    chip: make("span", { class: "chip" }),
    bar: make("progress", { "aria-label": `backfill of ${name}` }),
    left: make("span"),
    act: make("td"),
  };
  for (const [one, label] of Object.entries(COUNTS)) parts[one] = make("td", { class: "n", "data-label": label });
  if (can.includes("reindex")) {
    parts.act.append(make("button", { type: "button", onclick: () => reindex(name) }, "Reindex"));
  }
  const backfill = make("div", { class: "fill" }, parts.bar, parts.left);
  const row = make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, parts.chip), make("td", {}, backfill),
    parts.seeded, parts.written, parts.deleted, parts.speed, parts.act);
  const option = make("option", { value: name }, name);
  $("indexes").tBodies[0].append(row);
  $("search-index").append(option);
  return { parts, row, option, last: null, speed: null };
}

export function showIndexes(now) {
  for (const [name, { row, option }] of rows) {
    if (name in now.indexes) continue;
    row.remove();
    option.remove();
    rows.delete(name);
  }
  for (const [name, one] of Object.entries(now.indexes)) {
    if (!rows.has(name)) rows.set(name, indexRow(name, now.can));
    const held = rows.get(name), { parts } = held;
    parts.chip.textContent = one.rebuild ? "reindexing" : one.phase;
    parts.chip.className = `chip ${one.rebuild ? "busy" : CHIPS[one.phase] || ""}`;
    held.row.title = one.reason || one.rebuild_error || "";
    for (const button of parts.act.children) button.disabled = one.phase !== "live" || Boolean(one.rebuild);
    parts.bar.hidden = one.phase === "stopped";
    parts.bar.max = one.chunks || 1;
    parts.bar.value = one.phase === "live" ? parts.bar.max : one.chunks_done;
    parts.left.textContent = backfillWords(one);
    for (const what of ["seeded", "written", "deleted"]) parts[what].textContent = number(one[what]);
    parts.speed.textContent = rate(speed(held, one.seeded + one.written + one.deleted, now.running_s));
  }
}

function backfillWords(one) {
  if (one.rebuild_error) return `not built anew: ${one.rebuild_error}`;
  if (one.phase === "seeding") {
    const share = one.chunks ? `${Math.floor((100 * one.chunks_done) / one.chunks)} %` : "";
    return share + (one.eta_s == null ? "" : `, ${duration(one.eta_s)} to go`);
  }
  return one.rebuild || (one.phase === "live" ? "complete" : one.reason);
}

// Documents a second, smoothed over a few looks; a seed that begins counts from its own, which is no speed.
function speed(held, sum, at) {
  if (held.last && at > held.last.at && sum >= held.last.sum) {
    const fresh = (sum - held.last.sum) / (at - held.last.at);
    held.speed = held.speed == null ? fresh : held.speed * 0.7 + fresh * 0.3;
  }
  held.last = { sum, at };
  return held.speed != null && held.speed < 0.05 ? 0 : held.speed;
}

async function reindex(name) {
  if (!window.confirm(`Build the whole index ${name} anew, beside the one that is read now?`)) return;
  try {
    await ask("/reindex", { index: name });
  } catch (error) {
    window.alert(sentence(error));
  }
}
