// The last changes and the documents they touched; keys of rows only where somebody asks for them.

import { ask } from "./asking.js";
import { $, make } from "./elements.js";
import { openDocument } from "./search.js";
import { clock, duration, number } from "./words.js";

const SIGNS = { insert: "+", update: "~", delete: "−", truncate: "×" };
let newest = 0; // when the newest batch that is shown was done

// One batch: what changed, the documents it touched, how long it took.
function changeItem(one) {
  const what = make("div", { class: "what" }), touched = make("div", { class: "touched" });
  for (const { op, table, count, keys } of one.changes) {
    const sign = make("span", { class: `op ${op}`, title: op }, SIGNS[op] || "");
    const spoken = make("span", { class: "unseen" }, `${op} `);
    what.append(make("div", {}, sign, spoken, `${number(count)} ${table.replace(/^public\./, "")}`));
    if (keys) what.append(make("div", { class: "keys" }, keys.join(" · ") + (count > keys.length ? " …" : "")));
  }
  if (!one.changes.length) what.append("a batch worked on by Spark’s tasks");
  for (const doc of one.documents) {
    touched.append(make("div", {}, `${number(doc.count)} ${doc.index}`));
    if (!doc.ids) continue;
    const ids = doc.ids.map((id) => idItem(doc.index, id));
    touched.append(make("div", { class: "keys" }, ...ids, doc.count > ids.length ? "…" : ""));
  }
  if (!one.documents.length) touched.append(make("span", { class: "quiet" }, "no document"));
  const title = "from the first commit of the batch until it was durable everywhere";
  const took = make("span", { class: "took", title }, duration(one.latency_s));
  return make("li", {}, make("span", { class: "when" }, clock(one.at)), what, touched, took);
}

// An id opens its document, where there is a sink to read it from.
function idItem(index, id) {
  if ($("searching").hidden) return make("span", { class: "no-link" }, id);
  return make("button", { type: "button", class: "link", onclick: () => openDocument(index, id) }, id);
}

export async function showChanges(anyway = false) {
  const list = $("changes");
  // Somebody reads it; a finger that has touched it is no longer there.
  const isPointedAt = matchMedia("(hover: hover)").matches && list.matches(":hover");
  if (!anyway && (isPointedAt || list.contains(document.activeElement))) return;
  const found = await ask(`/changes?values=${$("show-keys").checked ? 1 : 0}`);
  if (!anyway && found.length && found[0].at === newest) return;
  newest = found.length ? found[0].at : 0;
  list.replaceChildren(...found.slice(0, 40).map(changeItem));
  $("changes-none").hidden = found.length > 0;
}
