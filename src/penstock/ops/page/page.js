// The page of a running deployment: asks it once a second and has the other files draw what it says.

import { ask, enter } from "./asking.js";
import { showChanges } from "./changes.js";
import { LineChart, binaryCeiling, ceiling, histogram } from "./charts.js";
import { $, say } from "./elements.js";
import { showIndexes } from "./indexes.js";
import { keepKeys, onKey, theme } from "./keys.js";
import { showFlow, showStages, showState, showTiles } from "./overview.js";
import { replayAll, showQuarantine } from "./quarantine.js";
import { search } from "./search.js";
import { duration, size } from "./words.js";

const charts = [
  new LineChart($("chart-lag-s"), "Seconds behind", {
    pick: (one) => one.lag_s, words: duration, least: 1, top: ceiling,
  }),
  new LineChart($("chart-lag-bytes"), "Bytes behind", {
    pick: (one) => one.lag_bytes, words: size, least: 32768, top: binaryCeiling,
  }),
];
let history = []; // of lag and rates, a point a second
let skew = 0; // of this machine's clock against the deployment's
let told = null; // its last answer
let watching = false;

function show(now) {
  if (!told) $("searching").hidden = !now.sinks.some((one) => one.type === "local");
  told = now;
  showState(now);
  showFlow(now);
  showTiles(now, history);
  showStages(now);
  showIndexes(now);
  histogram($("chart-latency"), now.latency);
  for (const chart of charts) chart.update(history, Date.now() / 1000 + skew);
}

async function beat() {
  const now = await ask("/status");
  skew = now.now - Date.now() / 1000;
  const last = history.length ? history[history.length - 1].at : 0;
  history = [...history, ...(await ask(`/history?after=${last}`))].slice(-900);
  $("door").hidden = true;
  $("content").hidden = false;
  $("content").classList.remove("stale");
  show(now);
  await showChanges();
  await showQuarantine(now);
}

// For ever, until the deployment knows this browser no longer: then the door is shown. Once at a time.
async function watch() {
  if (watching) return;
  watching = true;
  for (;;) {
    let pause = 1000;
    if (!document.hidden || !told) {
      try {
        await beat();
      } catch (error) {
        if (error.status === 401) return shut("");
        $("content").classList.add("stale");
        say("state", "not answering");
        $("state").className = "pill bad";
        pause = 2000;
      }
    }
    await new Promise((done) => { setTimeout(done, pause); });
  }
}

function shut(why) {
  watching = false;
  $("content").hidden = true;
  $("door").hidden = false;
  say("state", "closed");
  $("state").className = "pill warn";
  if (why) say("door-why", why);
  $("door-token").focus();
}

// By the code of a link, where there is one: true if it let this browser in.
async function admit() {
  const code = location.hash.slice(1);
  if (!/^[\w-]{20,}$/.test(code)) return false;
  window.history.replaceState(null, "", "/"); // what is left in the history opens nothing
  const why = await enter(code);
  if (why) say("door-why", why);
  return !why;
}

async function begin() {
  theme(false);
  keepKeys();
  document.addEventListener("keydown", onKey);
  $("theme").addEventListener("click", () => theme(true));
  $("keys-help").addEventListener("click", () => $("keys").showModal());
  $("show-keys").addEventListener("change", () => showChanges(true));
  $("replay-all").addEventListener("click", replayAll);
  $("search").addEventListener("submit", (event) => { event.preventDefault(); search(); });
  let waiting = 0;
  $("search").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(search, 150); });
  $("door-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const why = await enter($("door-token").value.trim());
    $("door-token").value = "";
    if (!why) watch();
    else if (!watching) shut(why);
  });
  window.addEventListener("hashchange", async () => { if (await admit()) watch(); });
  await admit();
  watch();
}

begin();
