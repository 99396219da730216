// Keys and the theme.

import { $, say } from "./elements.js";

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

export function onKey(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = {
    "/": () => $("search-query").focus(),
    k: () => $("show-keys").click(),
    t: () => theme(true),
    "?": () => $("keys").showModal(),
  }[event.key.toLowerCase()];
  if (act && !$("keys").open) { event.preventDefault(); act(); }
}
