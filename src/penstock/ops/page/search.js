// The search box over the local sink, and documents laid out.

import { ask, sentence } from "./asking.js";
import { $, make, say } from "./elements.js";
import { number } from "./words.js";

const MOST = 20;
let searching = 0; // counts questions: an answer to an older one is not shown

export async function search() {
  const [index, query, mine] = [$("search-index").value, $("search-query").value.trim(), ++searching];
  if (!query) {
    $("hits").replaceChildren();
    return say("search-said", "What the local sink holds, as a search engine would find it.");
  }
  try {
    const found = await ask(`/search?${new URLSearchParams({ index, query, limit: MOST + 1 })}`);
    if (mine !== searching) return undefined;
    const fits = found.hits.length, all = found.documents;
    const some = fits > MOST ? `The best ${MOST}.` : fits ? `${fits} found.` : "None fits.";
    say("search-said", `${some} The index has ${number(all)} document${all === 1 ? "" : "s"}.`);
    $("hits").replaceChildren(...found.hits.slice(0, MOST).map((hit) => hitItem(index, hit)));
  } catch (error) {
    if (mine !== searching) return undefined;
    $("hits").replaceChildren();
    say("search-said", sentence(error));
  }
  return undefined;
}

function hitItem(index, hit) {
  const words = hit.excerpt.map((part, at) => (at % 2 ? make("mark", {}, part) : part));
  const item = make("li", {});
  const onclick = () => toggleDocument(item, open, index, hit.id);
  const open = make("button", { type: "button", class: "link id", "aria-expanded": "false", onclick }, hit.id);
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
    body.textContent = sentence(error);
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
      if (close) { out += one + close[1]; at += close[0].length; }
      else { depth += 1; out += `${one}\n${"  ".repeat(depth)}`; }
    } else if ("}]".includes(one)) { depth -= 1; out += `\n${"  ".repeat(depth)}${one}`; }
    else if (one === ",") out += `,\n${"  ".repeat(depth)}`;
    else if (one === ":") out += ": ";
    else if (!/\s/.test(one)) out += one;
  }
  return out;
}

// Show one document by its id, in place of what was found.
export function openDocument(index, id) {
  searching += 1;
  $("search-index").value = index;
  $("search-query").value = "";
  say("search-said", `The document of ${index} with the id ${id}.`);
  const item = hitItem(index, { id, excerpt: [""] });
  $("hits").replaceChildren(item);
  item.querySelector("button").click();
  $("hits").scrollIntoView({ block: "nearest", behavior: "smooth" });
}
