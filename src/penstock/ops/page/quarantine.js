// Quarantine: what sinks rejected, with the reason, and replays. A row that stays is not touched, so it keeps the focus;
// one that goes hands it to the next.

import { ask, sentence } from "./asking.js";
import { $, make, say } from "./elements.js";
import { number } from "./words.js";

const SHOWN = 100; // entries in the table
const AT_ONCE = 50; // documents in one request: an id may be long
let status = null; // of the deployment, as last told
let quarantined = null; // how many there were when they were last read

export async function showQuarantine(now) {
  status = now;
  if (!now.can.includes("quarantine") || (quarantined === 0 && !now.quarantined)) return;
  const { entries, total } = await ask(`/quarantine?limit=${SHOWN}`);
  quarantined = total;
  const advice = "A row that is fixed leaves by itself. After fixing the sink, replay: the document is built again.";
  // What a replay came to is left to be read for a while.
  if (!$("quarantine-said").dataset.kept) {
    const shown = total > entries.length ? ` The oldest ${entries.length} of ${number(total)} are shown.` : "";
    const some = `${number(total)} rejected. ${advice}${shown}`;
    say("quarantine-said", total ? some : "Empty: no document waits here that a sink rejected.");
  }
  keepingFocus(() => {
    $("quarantine-scroll").hidden = !total;
    $("replay-all").hidden = total < 2;
    showRows(entries);
  });
}

function showRows(entries) {
  const body = $("quarantine").tBodies[0], wanted = new Map(entries.map((one) => [JSON.stringify(one), one]));
  const known = new Map([...body.rows].map((row) => [row.dataset.entry, row]));
  for (const [entry, row] of known) if (!wanted.has(entry)) row.remove();
  let next = body.rows[0] || null; // what is moved loses the focus: only what is new is put in
  for (const [entry, one] of wanted) {
    if (known.get(entry) === next && next) next = next.nextElementSibling;
    else body.insertBefore(known.get(entry) || entryRow(one, entry), next);
  }
}

// Where what has the focus goes, the row that takes its place gets it, or the heading.
function keepingFocus(change) {
  const held = document.activeElement, rows = $("quarantine").tBodies[0].rows;
  const at = [...rows].findIndex((row) => row.contains(held)), isOurs = at >= 0 || held === $("replay-all");
  change();
  if (!isOurs || (held.isConnected && held.checkVisibility())) return;
  const row = at < 0 ? null : rows[Math.min(at, rows.length - 1)];
  (row ? row.querySelector("button") : $("quarantine-title")).focus();
}

function entryRow(one, entry) {
  const since = one.since.replace("T", " ").replace(/\.\d+Z$/, "");
  const button = make("button", { type: "button", onclick: () => replay([one]) }, "Replay");
  return make("tr", { "data-entry": entry }, make("td", {}, one.index), make("td", { class: "id" }, one.id), make("td", {}, one.sink),
    make("td", {}, since), make("td", { class: "why" }, one.reason), make("td", {}, button));
}

// Everything, a portion at a time: what is rejected again stays where it was in the list, and is not met twice.
export function replayAll() {
  return told(async (done) => {
    for (let after = ""; after !== null;) {
      const some = await ask(`/quarantine?limit=${AT_ONCE}&after=${encodeURIComponent(after)}`);
      await send(some.entries, done);
      after = some.next;
    }
  });
}

const replay = (entries) => told((done) => send(entries, done));

async function send(entries, done) {
  for (const index of new Set(entries.map((one) => one.index))) {
    const ids = entries.filter((one) => one.index === index).map((one) => one.id);
    const { taken, rejected } = await ask("/quarantine", { action: "replay", index, ids });
    done(taken, rejected);
  }
}

// Do it, and say what it comes to.
async function told(act) {
  let taken = 0, rejected = 0;
  const sum = () => `${number(taken)} taken, ${number(rejected)} rejected again.`;
  $("quarantine-said").dataset.kept = "1";
  try {
    await act((more, again) => {
      taken += more;
      rejected += again;
      say("quarantine-said", `Replaying: ${sum()}`);
    });
    say("quarantine-said", `Replayed: ${sum()}`);
  } catch (error) {
    say("quarantine-said", sentence(error));
  }
  setTimeout(() => {
    delete $("quarantine-said").dataset.kept;
    quarantined = null; // so that the next look says how it stands
  }, 6000);
  if (status) await showQuarantine(status);
}
