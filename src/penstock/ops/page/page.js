// The page of a running deployment: asks it once a second and draws what it says. What comes from the database is only
// ever put into the page as text.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const WINDOW_S = 300;
const AT_ONCE = 50; // documents in one request: an id may be long
const STAGES = ["settle", "resolve", "build", "write", "flush"];

// Making elements ------------------------------------------------------------------------------------------------

function make(kind, attributes = {}, ...children) {
  const found = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") found.addEventListener("click", value);
    else if (value !== undefined && value !== false) found.setAttribute(name, value === true ? "" : value);
  }
  found.append(...children);
  return found;
}

function draw(kind, attributes = {}, text) {
  const found = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  if (text !== undefined) found.textContent = text;
  return found;
}

function say(id, text) {
  const found = $(id);
  if (found.textContent !== text) found.textContent = text;
}

function big(id, number, unit) {
  const text = number + unit;
  if ($(id).textContent !== text) $(id).replaceChildren(number, unit ? make("small", {}, unit) : "");
}

// Words for numbers ----------------------------------------------------------------------------------------------

const count = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const number = (value) => (value == null ? "–" : count.format(value));
const rate = (value) => (value == null ? "–" : value > 0 && value < 10 ? value.toFixed(1) : count.format(value));

function bytes(value) {
  if (value == null) return ["–", ""];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < 4) { value /= 1024; unit += 1; }
  return [unit && value < 100 ? value.toFixed(1) : value.toFixed(0), [" B", " KiB", " MiB", " GiB", " TiB"][unit]];
}

function span(seconds) {
  if (seconds == null) return ["–", ""];
  if (seconds < 0.9995) return [(seconds * 1000).toFixed(0), " ms"];
  if (seconds < 60) return [seconds < 10 ? seconds.toFixed(1) : seconds.toFixed(0), " s"];
  if (seconds < 5400) return [(seconds / 60).toFixed(seconds < 600 && seconds % 60 ? 1 : 0), " min"];
  return seconds < 172800 ? [(seconds / 3600).toFixed(1), " h"] : [(seconds / 86400).toFixed(0), " days"];
}

const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

// Asking ---------------------------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, said) {
    super(said.error || "It does not answer.");
    this.status = status;
    this.hint = said.hint || "";
  }
}

async function ask(path, body) {
  const how = { cache: "no-store", credentials: "same-origin" };
  if (body) Object.assign(how, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const answer = await fetch(path, how);
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, said);
  return said;
}

async function enter(secret) {
  try {
    await ask("/session", { secret });
    return "";
  } catch (error) {
    return `${error.message}. ${error.hint || ""}`;
  }
}

// Charts ---------------------------------------------------------------------------------------------------------

function ceiling(value) {
  if (value > 50) return [60, 120, 300, 600, 1200, 3600, 7200, 21600, 86400].find((one) => one >= value) || Math.ceil(value / 86400) * 86400;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}

function binaryCeiling(value) {
  return 2 ** Math.ceil(Math.log2(value));
}

// A line over the last minutes. `pick` gives the value of a point (or null), `words` makes it text.
class LineChart {
  constructor(svg, name, { pick, words, least, top }) {
    Object.assign(this, { svg, name, pick, words, least, top, at: null, points: [] });
    svg.addEventListener("pointermove", (event) => this.read(event.offsetX));
    svg.addEventListener("pointerleave", () => { this.at = null; this.show(); });
    svg.addEventListener("blur", () => { this.at = null; this.show(); });
    svg.addEventListener("keydown", (event) => this.step(event));
    new ResizeObserver(() => this.show()).observe(svg);
  }

  read(x) {
    const { left, right, width } = this.frame();
    const when = this.now - this.window * (1 - (x - left) / (width - left - right));
    this.at = this.points.reduce((best, one) => (best && Math.abs(best.at - when) < Math.abs(one.at - when) ? best : one), null);
    this.show();
  }

  step(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way || !this.points.length) return;
    event.preventDefault();
    const here = this.at ? this.points.findIndex((one) => one.at === this.at.at) : this.points.length;
    this.at = this.points[Math.min(this.points.length - 1, Math.max(0, here + way))];
    this.show();
  }

  frame() {
    return { left: 58, right: 6, above: 8, below: 18, width: this.svg.clientWidth || 600, height: this.svg.clientHeight || 112 };
  }

  update(history, now) {
    this.now = now;
    this.points = history.filter((one) => one.at >= now - WINDOW_S && this.pick(one) != null);
    this.window = this.points.length ? Math.min(WINDOW_S, Math.max(60, now - this.points[0].at)) : WINDOW_S;
    this.show();
  }

  show() {
    if (!this.now) return;
    const { left, right, above, below, width, height } = this.frame();
    const most = this.top(Math.max(this.least, ...this.points.map(this.pick)));
    const x = (at) => left + (width - left - right) * (1 - (this.now - at) / this.window);
    const y = (value) => above + (height - above - below) * (1 - value / most);
    const parts = [];
    for (const part of [0, 0.5, 1]) {
      parts.push(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(most * part), y2: y(most * part) }));
      parts.push(draw("text", { class: "axis", x: left - 8, y: y(most * part) + 4, "text-anchor": "end" }, this.words(most * part)));
    }
    const step = (this.window > 150 ? 60 : 30) * (width < 450 ? 2 : 1);
    for (let ago = 0; x(this.now - ago) > left + 20; ago += step) {
      const text = ago % 60 ? `−${ago} s` : ago ? `−${ago / 60} min` : "now";
      parts.push(draw("text", { class: "axis", x: x(this.now - ago), y: height - 3, "text-anchor": ago ? "middle" : "end" }, text));
    }
    if (this.points.length > 1) {
      const line = this.points.map((one) => `${x(one.at).toFixed(1)},${y(this.pick(one)).toFixed(1)}`).join("L");
      const [first, last] = [this.points[0], this.points[this.points.length - 1]];
      parts.push(draw("path", { class: "area", d: `M${x(first.at)},${y(0)}L${line}L${x(last.at)},${y(0)}Z` }));
      parts.push(draw("path", { class: "stroke", d: `M${line}` }));
    }
    if (this.at) parts.push(...this.crosshair(x(this.at.at), y(this.pick(this.at)), width, above, height - below));
    this.svg.replaceChildren(...parts);
    const last = this.points[this.points.length - 1];
    const read = this.at ? `${clock(this.at.at)}: ${this.words(this.pick(this.at))}` : last ? `now ${this.words(this.pick(last))}` : "nothing yet";
    this.svg.setAttribute("aria-label", `${this.name}, ${read}`);
  }

  crosshair(x, y, width, top, bottom) {
    const anchor = x > width * 0.7 ? "end" : "start";
    const text = `${this.words(this.pick(this.at))} at ${clock(this.at.at)}`;
    return [
      draw("line", { class: "cross", x1: x, x2: x, y1: top, y2: bottom }),
      draw("circle", { class: "dot", cx: x, cy: y, r: 4.5 }),
      draw("text", { class: "tip", x: x + (anchor === "end" ? -9 : 9), y: Math.max(top + 12, y - 9), "text-anchor": anchor }, text),
    ];
  }
}

function sparkline(svg, values) {
  const known = values.filter((one) => one != null).slice(-90);
  if (known.length < 3) return svg.replaceChildren();
  const most = Math.max(1e-6, ...known);
  svg.setAttribute("viewBox", "0 0 100 30");
  svg.setAttribute("preserveAspectRatio", "none");
  const line = known.map((one, at) => `${((at / (known.length - 1)) * 100).toFixed(2)},${(29 - (one / most) * 26).toFixed(2)}`).join("L");
  return svg.replaceChildren(
    draw("path", { class: "area", d: `M0,30L${line}L100,30Z` }),
    draw("path", { class: "stroke", d: `M${line}`, "vector-effect": "non-scaling-stroke" }),
  );
}

function histogram(svg, latency) {
  const { bounds_s: bounds, counts } = latency;
  const total = counts.reduce((sum, one) => sum + one, 0);
  const [left, right, above, below] = [6, 6, 36, 18];
  const [width, height] = [svg.clientWidth || 400, svg.clientHeight || 168];
  const used = counts.map((one, at) => (one ? at : -1)).filter((at) => at >= 0);
  const from = Math.min(10, ...used), to = Math.max(30, ...used.map((at) => at + 1));
  const x = (at) => left + ((width - left - right) * (at - from)) / (to - from);
  const most = Math.max(1, ...counts);
  const parts = [draw("line", { class: "grid", x1: left, x2: width - right, y1: height - below, y2: height - below })];
  counts.forEach((one, at) => {
    if (!one || at < from || at >= to) return;
    const tall = Math.max(1.5, ((height - above - below) * one) / most);
    const bar = draw("rect", { class: "bar", x: x(at) + 1, width: Math.max(1, x(at + 1) - x(at) - 2), y: height - below - tall, height: tall, rx: 1.5 });
    bar.append(draw("title", {}, `up to ${span(bounds[at] ?? bounds[bounds.length - 1]).join("")}: ${number(one)}`));
    parts.push(bar);
  });
  for (let at = 0; at <= to; at += 10) {
    if (at < from) continue;
    // A bucket ends where its bound is: bound number `at` stands behind bar number `at`.
    const place = Math.min(x(at + 1), width - right);
    parts.push(draw("text", { class: "axis", x: place, y: height - 3, "text-anchor": place > width - 30 ? "end" : "middle" }, span(bounds[at] ?? 1000).join("")));
  }
  const marks = [["p50", latency.p50_s], ["p99", latency.p99_s]].filter((one) => one[1] != null && total);
  marks.forEach(([name, value], at) => {
    const place = x(Math.log10(value / bounds[0]) * 10 + 1);
    parts.push(draw("line", { class: "mark", x1: place, x2: place, y1: at ? 4 : 18, y2: height - below }));
    const anchor = place > width - 90 ? "end" : "start";
    parts.push(draw("text", { class: "mark-text", x: place + (anchor === "end" ? -5 : 5), y: at ? 12 : 26, "text-anchor": anchor }, `${name} ${span(value).join("")}`));
  });
  svg.replaceChildren(...parts);
  const words = marks.map(([name, value]) => `${name} ${span(value).join("")}`).join(", ");
  svg.setAttribute("aria-label", total ? `${number(total)} transactions, ${words}` : "no transaction yet");
}

// What is shown --------------------------------------------------------------------------------------------------

const charts = [
  new LineChart($("chart-lag-s"), "Seconds behind", { pick: (one) => one.lag_s, words: (value) => span(value).join(""), least: 1, top: ceiling }),
  new LineChart($("chart-lag-bytes"), "Bytes behind", { pick: (one) => one.lag_bytes, words: (value) => bytes(value).join(""), least: 32768, top: binaryCeiling }),
];
let history = [];
let skew = 0; // of this machine's clock against the deployment's
let told = null;
let medians = [];
const rows = new Map();

function showState(now) {
  const indexes = Object.values(now.indexes), phases = indexes.map((one) => one.phase);
  const rebuilt = indexes.every((one) => one.phase !== "seeding" || one.rebuild);
  const away = Object.entries(now.away || {}), marked = Object.entries(now.marked || {});
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
  say("running", `running for ${span(now.running_s).join("")}${restarts}`);
  document.title = `${word} · Penstock`;
  const wrong = [now.trouble.split("\n")[0], ...away.map(([sink, why]) => `Sink ${sink} is left behind: ${why}`),
    ...marked.map(([index, why]) => `Index ${index} has to be reconciled: ${why}. Run penstock reconcile --repair ${index}.`)].filter(Boolean);
  $("trouble").hidden = !wrong.length;
  say("trouble", wrong.join(" · "));
}

function runs(id, perSecond, text) {
  const pipe = $(id).parentElement;
  pipe.classList.toggle("runs", perSecond > 0.05);
  // From a drop every three seconds to a stream; changed in steps, since a change makes the water jump.
  const pace = Math.max(0.35, 3 / (1 + Math.floor(Math.log10(1 + perSecond) * 2)));
  pipe.style.setProperty("--pace", `${pace.toFixed(2)}s`);
  say(id, text);
}

function showFlow(now) {
  const source = now.source || {}, speeds = now.rates;
  say("lsn-written", source.written || "–");
  say("lsn-confirmed", source.confirmed || "–");
  say("lsn-applied", now.position === "0/0" ? "–" : now.position);
  say("slot-name", now.slot);
  say("note-postgres", source.reachable === false ? "does not answer" : speeds.wal_bytes_per_s == null ? "\u00a0" : `${bytes(speeds.wal_bytes_per_s).join("")} of WAL a second`);
  const slot = source.slot_lost ? "lost: WAL it needed is gone" : source.reachable ? `${source.slot_active ? "active" : "not in use"}, holds ${bytes(source.slot_retained_bytes).join("")}` : "\u00a0";
  say("note-slot", slot);
  const batches = now.batches ? `${number(now.batches)} batches, ${Math.round((100 * now.direct_batches) / now.batches)} % direct` : "waits for changes";
  say("note-engine", batches);
  say("sinks-title", now.sinks.length > 1 ? "Sinks" : "Sink");
  say("sinks", now.sinks.map((one) => one.name).join(", "));
  say("note-sinks", `${[...new Set(now.sinks.map((one) => one.type))].join(", ")} · ${Object.keys(now.indexes).length} indexes`);
  runs("pipe-wal", speeds.wal_bytes_per_s / 1000, "");
  runs("pipe-changes", speeds.changes_per_s, `${rate(speeds.changes_per_s)} changes/s`);
  runs("pipe-documents", speeds.documents_per_s, `${rate(speeds.documents_per_s)} docs/s`);
}

function showTiles(now) {
  const { latency, rates, source } = now;
  big("tile-latency", ...span(latency.p50_s));
  say("tile-latency-note", latency.p99_s == null ? "nothing in the last minute" : `median; 99 % within ${span(latency.p99_s).join("")}`);
  big("tile-lag", ...(source && source.lag_s != null ? (source.lag_s < 1 ? ["0", " s"] : span(source.lag_s)) : ["–", ""]));
  say("tile-lag-note", source && source.lag_bytes != null ? `${bytes(source.lag_bytes).join("")} of WAL` : "\u00a0");
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

function showStages(now) {
  const total = STAGES.reduce((sum, one) => sum + (now.stages_s[one] || 0), 0);
  const part = (one) => (total ? (now.stages_s[one] || 0) / total : 0);
  if (!$("stages").children.length) {
    $("stages").append(...STAGES.map((_, at) => make("i", { class: `s${at + 1}` })));
    $("stages-key").append(...STAGES.map((one, at) => make("li", {}, make("i", { class: `s${at + 1}` }), make("span"))));
  }
  const words = STAGES.map((one) => `${one} ${Math.round(part(one) * 100)} %`);
  STAGES.forEach((one, at) => {
    $("stages").children[at].style.flexGrow = part(one).toFixed(4);
    $("stages-key").children[at].lastChild.textContent = words[at];
  });
  $("stages").setAttribute("aria-label", words.join(", "));
}

const CHIPS = { live: "good", seeding: "busy", waiting: "", stopped: "bad" };

function indexRow(name) {
  const parts = { chip: make("span", { class: "chip" }), bar: make("progress", { "aria-label": `backfill of ${name}` }), left: make("span") };
  for (const one of ["seeded", "written", "deleted", "speed"]) parts[one] = make("td", { class: "n" });
  parts.act = make("td");
  const row = make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, parts.chip), make("td", {}, make("div", { class: "fill" }, parts.bar, parts.left)),
    parts.seeded, parts.written, parts.deleted, parts.speed, parts.act);
  if (told.can.includes("reindex")) parts.act.append(make("button", { type: "button", onclick: () => reindex(name) }, "Reindex"));
  $("indexes").tBodies[0].append(row);
  $("search-index").append(make("option", { value: name }, name));
  return { parts, row, last: null, speed: null };
}

function showIndexes(now) {
  for (const [name, { row }] of rows) if (!(name in now.indexes)) { row.remove(); rows.delete(name); }
  for (const [name, one] of Object.entries(now.indexes)) {
    if (!rows.has(name)) rows.set(name, indexRow(name));
    const held = rows.get(name), { parts } = held;
    parts.chip.textContent = one.rebuild ? "reindexing" : one.phase;
    parts.chip.className = `chip ${one.rebuild ? "busy" : CHIPS[one.phase] || ""}`;
    held.row.title = one.reason || one.rebuild_error || "";
    for (const button of parts.act.children) button.disabled = one.phase !== "live" || Boolean(one.rebuild);
    parts.bar.hidden = one.phase === "stopped";
    parts.bar.max = one.chunks || 1;
    parts.bar.value = one.phase === "live" ? parts.bar.max : one.chunks_done;
    const share = one.chunks ? `${Math.floor((100 * one.chunks_done) / one.chunks)} %` : "";
    parts.left.textContent = one.rebuild_error ? `not built anew: ${one.rebuild_error}` : one.rebuild && one.phase !== "seeding" ? one.rebuild : one.phase === "live" ? "complete" : one.phase === "seeding" ? share + (one.eta_s == null ? "" : `, ${span(one.eta_s).join("")} to go`) : one.reason;
    for (const what of ["seeded", "written", "deleted"]) parts[what].textContent = number(one[what]);
    const sum = one.seeded + one.written + one.deleted;
    if (held.last && now.running_s > held.last.at) {
      const fresh = (sum - held.last.sum) / (now.running_s - held.last.at);
      held.speed = held.speed == null ? fresh : held.speed * 0.7 + fresh * 0.3;
    }
    held.last = { sum, at: now.running_s };
    parts.speed.textContent = rate(held.speed == null ? null : held.speed < 0.05 ? 0 : held.speed);
  }
}

async function reindex(name) {
  if (!window.confirm(`Build the whole index ${name} anew, beside the one that is read now?`)) return;
  try {
    await ask("/reindex", { index: name });
  } catch (error) {
    window.alert(`${error.message}. ${error.hint || ""}`);
  }
}

// Last changes ---------------------------------------------------------------------------------------------------

let newest = 0;

function changeItem(one) {
  const what = make("div", { class: "what" }), touched = make("div", { class: "touched" });
  for (const change of one.changes) {
    const sign = { insert: "+", update: "~", delete: "−", truncate: "×" }[change.op] || "";
    what.append(make("div", {}, make("span", { class: `op ${change.op}`, title: change.op }, sign), make("span", { class: "unseen" }, `${change.op} `), `${number(change.count)} ${change.table.replace(/^public\./, "")}`));
    if (change.keys) what.append(make("div", { class: "keys" }, change.keys.join(" · ") + (change.count > change.keys.length ? " …" : "")));
  }
  if (!one.changes.length) what.append("a large batch");
  for (const doc of one.documents) {
    touched.append(make("div", {}, `${number(doc.count)} ${doc.index}`));
    if (!doc.ids) continue;
    const ids = doc.ids.map((id) => make("button", { type: "button", class: "link", onclick: () => openDocument(doc.index, id) }, id));
    touched.append(make("div", { class: "keys" }, ...ids, doc.count > ids.length ? "…" : ""));
  }
  if (!one.documents.length) touched.append(make("span", { class: "quiet" }, "no document"));
  return make("li", {}, make("span", { class: "when" }, clock(one.at)), what, touched,
    make("span", { class: "took", title: "from the first commit of the batch until it was durable everywhere" }, span(one.latency_s).join("")));
}

async function showChanges(anyway = false) {
  const list = $("changes");
  if (!anyway && (list.matches(":hover") || list.contains(document.activeElement))) return; // somebody reads it
  const found = await ask(`/changes?values=${$("show-keys").checked ? 1 : 0}`);
  if (!anyway && found.length && found[0].at === newest) return;
  newest = found.length ? found[0].at : 0;
  list.replaceChildren(...found.slice(0, 40).map(changeItem));
  $("changes-none").hidden = found.length > 0;
}

// Search ---------------------------------------------------------------------------------------------------------

let searching = 0;

async function search() {
  const [index, query, mine] = [$("search-index").value, $("search-query").value.trim(), ++searching];
  if (!query) { $("hits").replaceChildren(); return say("search-said", "What the local sink holds, as a search engine would find it."); }
  try {
    const found = await ask(`/search?${new URLSearchParams({ index, query, limit: 20 })}`);
    if (mine !== searching) return undefined;
    say("search-said", found.hits.length === 20 ? `The best 20 of ${number(found.documents)} documents.` : found.hits.length ? `${found.hits.length} of ${number(found.documents)} documents.` : `None of ${number(found.documents)} documents fits.`);
    $("hits").replaceChildren(...found.hits.map((hit) => hitItem(index, hit)));
  } catch (error) {
    if (mine !== searching) return undefined;
    $("hits").replaceChildren();
    say("search-said", `${error.message}. ${error.hint || ""}`);
  }
  return undefined;
}

function hitItem(index, hit) {
  const words = hit.excerpt.map((part, at) => (at % 2 ? make("mark", {}, part) : part));
  const item = make("li", {});
  const open = make("button", { type: "button", class: "link id", "aria-expanded": "false", onclick: () => toggleDocument(item, open, index, hit.id) }, hit.id);
  item.append(open, " ", ...words);
  return item;
}

async function toggleDocument(item, button, index, id) {
  const shown = item.querySelector("pre");
  button.setAttribute("aria-expanded", String(!shown));
  if (shown) return shown.remove();
  const body = make("pre", { tabindex: "0" }, "…");
  item.append(body);
  try {
    const found = await ask(`/document?${new URLSearchParams({ index, id })}`);
    body.textContent = found.document == null ? "There is no such document (any more)." : pretty(found.document);
  } catch (error) {
    body.textContent = `${error.message}. ${error.hint || ""}`;
  }
  return undefined;
}

// Laid out with the digits that it has: a number is not read and written again.
function pretty(text) {
  let depth = 0, out = "", inside = false;
  for (let at = 0; at < text.length; at += 1) {
    const one = text[at];
    if (inside) {
      out += one;
      if (one === "\\") { at += 1; out += text[at]; } else if (one === '"') inside = false;
    } else if (one === '"') { inside = true; out += one; }
    else if ("{[".includes(one)) {
      const close = text.slice(at + 1).match(/^\s*([}\]])/);
      if (close) { out += one + close[1]; at += close[0].length; } else { depth += 1; out += `${one}\n${"  ".repeat(depth)}`; }
    } else if ("}]".includes(one)) { depth -= 1; out += `\n${"  ".repeat(depth)}${one}`; }
    else if (one === ",") out += `,\n${"  ".repeat(depth)}`;
    else if (one === ":") out += ": ";
    else if (!/\s/.test(one)) out += one;
  }
  return out;
}

function openDocument(index, id) {
  searching += 1;
  $("search-index").value = index;
  $("search-query").value = "";
  say("search-said", `The document of ${index} with the id ${id}.`);
  const item = hitItem(index, { id, excerpt: [""] });
  $("hits").replaceChildren(item);
  item.querySelector("button").click();
  $("hits").scrollIntoView({ block: "nearest", behavior: "smooth" });
}

// Quarantine -----------------------------------------------------------------------------------------------------

let quarantined = null;

async function showQuarantine(now) {
  if (!now.can.includes("quarantine") || (quarantined === 0 && !now.quarantine)) return;
  const { entries } = await ask("/quarantine");
  quarantined = entries.length;
  $("quarantine-scroll").hidden = !entries.length;
  $("replay-all").hidden = entries.length < 2;
  if (!$("quarantine-said").dataset.kept) say("quarantine-said", entries.length ? `${number(entries.length)} rejected. Mend the row or the schema, then replay: the document is built again.` : "Empty: no sink holds back a document.");
  if ($("quarantine").contains(document.activeElement)) return;
  $("quarantine").tBodies[0].replaceChildren(...entries.slice(0, 100).map((one) => make("tr", {},
    make("td", {}, one.index), make("td", { class: "id" }, one.id), make("td", {}, one.sink), make("td", {}, one.since.replace("T", " ").replace(/\.\d+Z$/, "")), make("td", { class: "why" }, one.reason),
    make("td", {}, make("button", { type: "button", onclick: () => replay([one]) }, "Replay")))));
}

async function replay(entries) {
  const byIndex = Map.groupBy ? Map.groupBy(entries, (one) => one.index) : entries.reduce((all, one) => all.set(one.index, [...(all.get(one.index) || []), one]), new Map());
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
    say("quarantine-said", `${error.message}. ${error.hint || ""}`);
  }
  $("quarantine-said").dataset.kept = "1";
  setTimeout(() => { delete $("quarantine-said").dataset.kept; }, 6000);
  document.activeElement?.blur();
  if (told) await showQuarantine(told);
}

// The beat -------------------------------------------------------------------------------------------------------

function show(now) {
  if (!told) $("searching").hidden = !now.sinks.some((one) => one.type === "local");
  told = now;
  showState(now);
  showFlow(now);
  showTiles(now);
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

async function watch() {
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
  $("content").hidden = true;
  $("door").hidden = false;
  say("state", "closed");
  $("state").className = "pill warn";
  if (why) say("door-why", why);
  $("door-token").focus();
}

// Keys, theme, door ----------------------------------------------------------------------------------------------

const THEMES = ["system", "light", "dark"];

function theme(next) {
  const kept = localStorage.getItem("penstock-theme") || "system";
  const now = next ? THEMES[(THEMES.indexOf(kept) + 1) % 3] : kept;
  if (next) localStorage.setItem("penstock-theme", now);
  if (now === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = now;
  say("theme-word", now);
  $("theme").setAttribute("aria-label", `Theme: ${now}`);
}

function onKey(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = {
    "/": () => $("search-query").focus(), k: () => $("show-keys").click(), t: () => theme(true), "?": () => $("keys").showModal(),
  }[event.key.toLowerCase()];
  if (act && !$("keys").open) { event.preventDefault(); act(); }
}

async function begin() {
  theme(false);
  document.addEventListener("keydown", onKey);
  $("theme").addEventListener("click", () => theme(true));
  $("keys-help").addEventListener("click", () => $("keys").showModal());
  $("show-keys").addEventListener("change", () => showChanges(true));
  $("replay-all").addEventListener("click", async () => replay((await ask("/quarantine")).entries));
  $("search").addEventListener("submit", (event) => { event.preventDefault(); search(); });
  let waiting = 0;
  $("search").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(search, 150); });
  $("door-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const why = await enter($("door-token").value.trim());
    $("door-token").value = "";
    if (why) shut(why); else watch();
  });
  const code = location.hash.slice(1);
  if (/^[\w-]{20,}$/.test(code)) {
    window.history.replaceState(null, "", "/"); // what is left in the history opens nothing
    const why = await enter(code);
    if (why) say("door-why", why);
  }
  watch();
}

begin();
