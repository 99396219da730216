// Elements of the page: found, made and filled. What comes from the database is only ever put in as text.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function make(kind, attributes = {}, ...children) {
  const found = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") found.addEventListener("click", value);
    else if (value !== undefined && value !== false) found.setAttribute(name, value === true ? "" : value);
  }
  found.append(...children);
  return found;
}

export function draw(kind, attributes = {}, text) {
  const found = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  if (text !== undefined) found.textContent = text;
  return found;
}

export function say(id, text) {
  const found = $(id);
  if (found.textContent !== text) found.textContent = text;
}

export function big(id, number, unit) {
  const text = number + unit;
  if ($(id).textContent !== text) $(id).replaceChildren(number, unit ? make("small", {}, unit) : "");
}
