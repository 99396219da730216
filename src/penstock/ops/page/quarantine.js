// Quarantine: what sinks rejected, with the reason, and replays.

import { ask, sentence } from "./asking.js";
import { $, make, say } from "./elements.js";
import { number } from "./words.js";

const AT_ONCE = 50; // documents in one request: an id may be long
let status = null; // of the deployment, as last told
let quarantined = null; // how many there were when they were last read

export async function showQuarantine(now) {
  status = now;
  if (!now.can.includes("quarantine") || (quarantined === 0 && !now.quarantine)) return;
  const { entries } = await ask("/quarantine");
  quarantined = entries.length;
  $("quarantine-scroll").hidden = !entries.length;
  $("replay-all").hidden = entries.length < 2;
  const advice = "Mend the row or the schema, then replay: the document is built again.";
  // What a replay came to is left to be read for a while.
  if (!$("quarantine-said").dataset.kept) {
    const some = `${number(entries.length)} rejected. ${advice}`;
    say("quarantine-said", entries.length ? some : "Empty: no sink holds back a document.");
  }
  if ($("quarantine").contains(document.activeElement)) return; // a row under somebody's hand stays
  $("quarantine").tBodies[0].replaceChildren(...entries.slice(0, 100).map(entryRow));
}

function entryRow(one) {
  const since = one.since.replace("T", " ").replace(/\.\d+Z$/, "");
  const button = make("button", { type: "button", onclick: () => replay([one]) }, "Replay");
  return make("tr", {}, make("td", {}, one.index), make("td", { class: "id" }, one.id), make("td", {}, one.sink),
    make("td", {}, since), make("td", { class: "why" }, one.reason), make("td", {}, button));
}

export async function replay(entries) {
  const byIndex = new Map(entries.map((one) => [one.index, []]));
  for (const one of entries) byIndex.get(one.index).push(one);
  let taken = 0, rejected = 0;
  try {
    for (const [index, some] of byIndex) {
      for (let at = 0; at < some.length; at += AT_ONCE) {
        const ids = some.slice(at, at + AT_ONCE).map((one) => one.id);
        const done = await ask("/quarantine", { action: "replay", index, ids });
        taken += done.taken;
        rejected += done.rejected;
        say("quarantine-said", `Replaying: ${number(taken)} taken, ${number(rejected)} rejected again.`);
      }
    }
    say("quarantine-said", `Replayed: ${number(taken)} taken, ${number(rejected)} rejected again.`);
  } catch (error) {
    say("quarantine-said", sentence(error));
  }
  $("quarantine-said").dataset.kept = "1";
  setTimeout(() => { delete $("quarantine-said").dataset.kept; }, 6000);
  document.activeElement?.blur();
  if (status) await showQuarantine(status);
}
