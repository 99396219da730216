// Numbers as people read them; `bytes` and `span` give the unit apart, since tiles show it smaller.

const count = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const number = (value) => (value == null ? "–" : count.format(value));
export const rate = (value) => (value > 0 && value < 10 ? value.toFixed(1) : number(value));
export const size = (value) => bytes(value).join("");
export const duration = (seconds) => span(seconds).join("");

export function bytes(value) {
  if (value == null) return ["–", ""];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < 4) { value /= 1024; unit += 1; }
  return [unit && value < 100 ? value.toFixed(1) : value.toFixed(0), [" B", " KiB", " MiB", " GiB", " TiB"][unit]];
}

export function span(seconds) {
  if (seconds == null) return ["–", ""];
  if (seconds < 0.9995) return [(seconds * 1000).toFixed(0), " ms"];
  if (seconds < 60) return [seconds < 10 ? seconds.toFixed(1) : seconds.toFixed(0), " s"];
  if (seconds < 5400) return [(seconds / 60).toFixed(seconds < 600 && seconds % 60 ? 1 : 0), " min"];
  return seconds < 172800 ? [(seconds / 3600).toFixed(1), " h"] : [(seconds / 86400).toFixed(0), " days"];
}

export const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
