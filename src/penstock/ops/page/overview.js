// The upper half: how it stands, the pipeline as a flow, figures at a glance, where the time goes.

import { sparkline } from "./charts.js";
import { $, big, make, say } from "./elements.js";
import { duration, number, rate, size, span } from "./words.js";

const STAGES = ["settle", "resolve", "build", "write", "flush"];
const NOTHING = "\u00a0"; // keeps the line's place
let medians = []; // of latency, one a look

export function showState(now) {
  const indexes = Object.values(now.indexes), phases = indexes.map((one) => one.phase);
  const rebuilt = indexes.every((one) => one.phase !== "seeding" || one.rebuild);
  const away = Object.entries(now.away || {}), marked = Object.entries(now.marked || {});
  // The worst that is the matter.
  const [word, kind] = now.trouble ? ["in trouble, trying again", "bad"]
    : phases.includes("stopped") ? ["an index is stopped", "bad"]
    : away.length ? ["a sink is left behind", "bad"]
    : marked.length ? ["an index has to be reconciled", "warn"]
    : phases.includes("seeding") ? [rebuilt ? "reindexing" : "seeding", "busy"]
    : phases.includes("waiting") ? ["starting", "busy"]
    : now.source && !now.source.reachable ? ["the server does not answer", "bad"] : ["live", "good"];
  say("state", word);
  $("state").className = `pill ${kind}`;
  const restarts = now.restarts ? `, ${now.restarts} restart${now.restarts > 1 ? "s" : ""}` : "";
  say("running", `running for ${duration(now.running_s)}${restarts}`);
  document.title = `${word} · Penstock`;
  const repair = (index) => `Run penstock reconcile --repair ${index}.`;
  const wrong = [
    now.trouble.split("\n")[0],
    ...away.map(([sink, why]) => `Sink ${sink} is left behind: ${why}`),
    ...marked.map(([index, why]) => `Index ${index} has to be reconciled: ${why}. ${repair(index)}`),
  ].filter(Boolean);
  $("trouble").hidden = !wrong.length;
  say("trouble", wrong.join(" · "));
}

// Water in the pipe before a station: whether it runs, and how fast.
function runs(id, perSecond, text) {
  const flow = Math.max(0, perSecond || 0);
  const pipe = $(id).parentElement;
  pipe.classList.toggle("runs", flow > 0.05);
  // From a drop every three seconds to a stream; changed in steps, since a change makes the water jump.
  const pace = Math.max(0.35, 3 / (1 + Math.floor(Math.log10(1 + flow) * 2)));
  pipe.style.setProperty("--pace", `${pace.toFixed(2)}s`);
  say(id, text);
}

export function showFlow(now) {
  const source = now.source || {}, speeds = now.rates;
  say("lsn-written", source.written || "–");
  say("lsn-confirmed", source.confirmed || "–");
  say("lsn-applied", now.position === "0/0" ? "–" : now.position);
  say("slot-name", now.slot);
  say("note-postgres", serverNote(source, speeds));
  say("note-slot", slotNote(source));
  say("note-engine", now.batches ? batchesNote(now) : "waits for changes");
  say("sinks-title", now.sinks.length > 1 ? "Sinks" : "Sink");
  say("sinks", now.sinks.map((one) => one.name).join(", "));
  const kinds = [...new Set(now.sinks.map((one) => one.type))], indexes = Object.keys(now.indexes).length;
  say("note-sinks", `${kinds.join(", ")} · ${indexes} ${indexes === 1 ? "index" : "indexes"}`);
  runs("pipe-wal", speeds.wal_bytes_per_s / 1000, "");
  runs("pipe-changes", speeds.changes_per_s, `${rate(speeds.changes_per_s)} changes/s`);
  runs("pipe-documents", speeds.documents_per_s, `${rate(speeds.documents_per_s)} docs/s`);
}

function serverNote(source, speeds) {
  if (source.reachable === false) return "does not answer";
  return speeds.wal_bytes_per_s == null ? NOTHING : `${size(speeds.wal_bytes_per_s)} of WAL a second`;
}

function slotNote(source) {
  if (source.slot_lost) return "lost: WAL it needed is gone";
  const use = source.slot_active ? "active" : "not in use";
  return source.reachable ? `${use}, holds ${size(source.slot_retained_bytes)}` : NOTHING;
}

function batchesNote(now) {
  // Direct: written by the driver itself, without a job of Spark's.
  return `${number(now.batches)} batches, ${Math.round((100 * now.direct_batches) / now.batches)} % direct`;
}

export function showTiles(now, history) {
  const { latency, rates } = now, { lag_s, lag_bytes } = now.source || {};
  big("tile-latency", ...span(latency.p50_s));
  const within = `median; 99 % within ${duration(latency.p99_s)}`;
  say("tile-latency-note", latency.p99_s == null ? "nothing in the last minute" : within);
  const isCurrent = lag_s != null && lag_s < 1; // less than a look ago is no lag
  big("tile-lag", ...(isCurrent ? ["0", " s"] : span(lag_s)));
  say("tile-lag-note", lag_bytes == null ? NOTHING : `${size(lag_bytes)} of WAL`);
  big("tile-changes", rate(rates.changes_per_s), " a second");
  say("tile-changes-note", `${number(now.changes)} in all`);
  big("tile-documents", rate(rates.documents_per_s), " a second");
  const written = Object.values(now.indexes).reduce((sum, one) => sum + one.seeded + one.written + one.deleted, 0);
  say("tile-documents-note", `${number(written)} in all`);
  medians = [...medians, latency.p50_s].slice(-300);
  sparkline($("spark-latency"), medians);
  sparkline($("spark-lag"), history.map((one) => one.lag_bytes));
  sparkline($("spark-changes"), history.map((one) => one.changes_per_s));
  sparkline($("spark-documents"), history.map((one) => one.documents_per_s));
}

export function showStages(now) {
  const total = STAGES.reduce((sum, one) => sum + (now.stages_s[one] || 0), 0);
  const part = (one) => (total ? (now.stages_s[one] || 0) / total : 0);
  if (!$("stages").children.length) {
    $("stages").append(...STAGES.map((_, at) => make("i", { class: `s${at + 1}` })));
    $("stages-key").append(...STAGES.map((_, at) => make("li", {}, make("i", { class: `s${at + 1}` }), make("span"))));
  }
  const words = STAGES.map((one) => `${one} ${Math.round(part(one) * 100)} %`);
  STAGES.forEach((one, at) => {
    $("stages").children[at].style.flexGrow = part(one).toFixed(4);
    $("stages-key").children[at].lastChild.textContent = words[at];
  });
  $("stages").setAttribute("aria-label", words.join(", "));
}
