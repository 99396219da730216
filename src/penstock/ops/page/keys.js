// Keys and the theme.

import { $, say } from "./elements.js";

const ACTS = {
  "/": () => $("search-query").focus(),
  k: () => $("show-keys").click(),
  t: () => theme(true),
  "?": () => $("keys").showModal(),
};
const THEMES = ["system", "light", "dark"];

// Show the theme that was chosen here before, or the `next` one.
export function theme(next) {
  const kept = localStorage.getItem("penstock-theme") || "system";
  const now = next ? THEMES[(THEMES.indexOf(kept) + 1) % 3] : kept;
  if (next) localStorage.setItem("penstock-theme", now);
  if (now === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = now;
  say("theme-word", now);
  $("theme").setAttribute("aria-label", `Theme: ${now}`);
}

// Whether single keys act: nowhere before somebody was let in, and not where that was turned off here.
function act(key) {
  return !$("content").hidden && !$("keys").open && $("keys-on").checked && ACTS[key];
}

// As it was chosen here before; a change is kept.
export function keepKeys() {
  const box = $("keys-on");
  box.checked = localStorage.getItem("penstock-keys") !== "off";
  box.addEventListener("change", () => localStorage.setItem("penstock-keys", box.checked ? "on" : "off"));
}

export function onKey(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const deed = act(event.key.toLowerCase());
  if (deed) { event.preventDefault(); deed(); }
}
