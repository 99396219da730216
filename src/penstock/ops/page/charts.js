// Charts as SVG: a line over the last minutes that can be read by pointer and keys, a line in a tile, a histogram.

import { draw } from "./elements.js";
import { clock, duration, number } from "./words.js";

const WINDOW_S = 300;
const ROUND_S = [60, 120, 300, 600, 1200, 3600, 7200, 21600, 86400];

// The top of an axis: a round number of seconds, or a power of two of bytes.
export function ceiling(value) {
  if (value > 50) return ROUND_S.find((one) => one >= value) || Math.ceil(value / 86400) * 86400;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}

export function binaryCeiling(value) {
  return 2 ** Math.ceil(Math.log2(value));
}

// A line over the last minutes. `pick` gives the value of a point (or null), `words` makes it text.
export class LineChart {
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
    const away = (one) => Math.abs(one.at - when);
    this.at = this.points.reduce((best, one) => (best && away(best) < away(one) ? best : one), null);
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
    const { clientWidth: width, clientHeight: height } = this.svg;
    return { left: 58, right: 6, above: 8, below: 18, width: width || 600, height: height || 112 };
  }

  update(history, now) {
    this.now = now;
    this.points = history.filter((one) => one.at >= now - WINDOW_S && this.pick(one) != null);
    this.window = this.points.length ? Math.min(WINDOW_S, Math.max(60, now - this.points[0].at)) : WINDOW_S;
    if (this.at && this.at.at < now - this.window) this.at = null; // it has moved out of what is drawn
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
      const value = most * part, at = y(value);
      parts.push(draw("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }));
      parts.push(draw("text", { class: "axis", x: left - 8, y: at + 4, "text-anchor": "end" }, this.words(value)));
    }
    const step = (this.window > 150 ? 60 : 30) * (width < 450 ? 2 : 1);
    for (let ago = 0; x(this.now - ago) > left + 20; ago += step) {
      const text = ago % 60 ? `−${ago} s` : ago ? `−${ago / 60} min` : "now";
      const anchor = ago ? "middle" : "end";
      parts.push(draw("text", { class: "axis", x: x(this.now - ago), y: height - 3, "text-anchor": anchor }, text));
    }
    if (this.points.length > 1) {
      const line = this.points.map((one) => `${x(one.at).toFixed(1)},${y(this.pick(one)).toFixed(1)}`).join("L");
      const [first, last] = [this.points[0], this.points[this.points.length - 1]];
      parts.push(draw("path", { class: "area", d: `M${x(first.at)},${y(0)}L${line}L${x(last.at)},${y(0)}Z` }));
      parts.push(draw("path", { class: "stroke", d: `M${line}` }));
    }
    if (this.at) parts.push(...this.crosshair(x(this.at.at), y(this.pick(this.at)), width, above, height - below));
    this.svg.replaceChildren(...parts);
    this.svg.setAttribute("aria-label", `${this.name}, ${this.spoken()}`);
  }

  // What a screen reader says: the point that is read, or the last one.
  spoken() {
    const last = this.points[this.points.length - 1];
    if (this.at) return `${clock(this.at.at)}: ${this.words(this.pick(this.at))}`;
    return last ? `now ${this.words(this.pick(last))}` : "nothing yet";
  }

  crosshair(x, y, width, top, bottom) {
    const [anchor, aside] = x > width * 0.7 ? ["end", -9] : ["start", 9];
    const text = `${this.words(this.pick(this.at))} at ${clock(this.at.at)}`;
    return [
      draw("line", { class: "cross", x1: x, x2: x, y1: top, y2: bottom }),
      draw("circle", { class: "dot", cx: x, cy: y, r: 4.5 }),
      draw("text", { class: "tip", x: x + aside, y: Math.max(top + 12, y - 9), "text-anchor": anchor }, text),
    ];
  }
}

export function sparkline(svg, values) {
  const known = values.filter((one) => one != null).slice(-90);
  if (known.length < 3) return svg.replaceChildren();
  const most = Math.max(1e-6, ...known);
  svg.setAttribute("viewBox", "0 0 100 30");
  svg.setAttribute("preserveAspectRatio", "none");
  const x = (at) => ((at / (known.length - 1)) * 100).toFixed(2), y = (one) => (29 - (one / most) * 26).toFixed(2);
  const line = known.map((one, at) => `${x(at)},${y(one)}`).join("L");
  return svg.replaceChildren(
    draw("path", { class: "area", d: `M0,30L${line}L100,30Z` }),
    draw("path", { class: "stroke", d: `M${line}`, "vector-effect": "non-scaling-stroke" }),
  );
}

// Ten buckets for each power of ten: the place of a bound on the axis is its logarithm.
export function histogram(svg, latency) {
  const { bounds_s: bounds, counts } = latency;
  const total = counts.reduce((sum, one) => sum + one, 0);
  const [left, right, above, below] = [6, 6, 36, 18];
  const [width, height] = [svg.clientWidth || 400, svg.clientHeight || 168];
  const used = counts.map((one, at) => (one ? at : -1)).filter((at) => at >= 0);
  const from = Math.min(10, ...used), to = Math.max(30, ...used.map((at) => at + 1));
  const x = (at) => left + ((width - left - right) * (at - from)) / (to - from);
  const most = Math.max(1, ...counts);
  const floor = height - below;
  const parts = [draw("line", { class: "grid", x1: left, x2: width - right, y1: floor, y2: floor })];
  counts.forEach((one, at) => {
    if (!one || at < from || at >= to) return;
    const tall = Math.max(1.5, ((height - above - below) * one) / most);
    const wide = Math.max(1, x(at + 1) - x(at) - 2);
    const bar = draw("rect", { class: "bar", x: x(at) + 1, width: wide, y: floor - tall, height: tall, rx: 1.5 });
    bar.append(draw("title", {}, `up to ${duration(bounds[at] ?? bounds[bounds.length - 1])}: ${number(one)}`));
    parts.push(bar);
  });
  for (let at = 0; at <= to; at += 10) {
    if (at < from) continue;
    // A bucket ends where its bound is: bound number `at` stands behind bar number `at`.
    const place = Math.min(x(at + 1), width - right);
    const anchor = place > width - 30 ? "end" : "middle", text = duration(bounds[at] ?? 1000);
    parts.push(draw("text", { class: "axis", x: place, y: height - 3, "text-anchor": anchor }, text));
  }
  const marks = [["p50", latency.counts_p50_s], ["p99", latency.counts_p99_s]].filter((one) => one[1] != null && total);
  marks.forEach(([name, value], at) => {
    const place = x(Math.log10(value / bounds[0]) * 10 + 1);
    parts.push(draw("line", { class: "mark", x1: place, x2: place, y1: at ? 4 : 18, y2: height - below }));
    const [anchor, aside] = place > width - 90 ? ["end", -5] : ["start", 5], text = `${name} ${duration(value)}`;
    parts.push(draw("text", { class: "mark-text", x: place + aside, y: at ? 12 : 26, "text-anchor": anchor }, text));
  });
  svg.replaceChildren(...parts);
  const words = marks.map(([name, value]) => `${name} ${duration(value)}`).join(", ");
  svg.setAttribute("aria-label", total ? `${number(total)} transactions, ${words}` : "no transaction yet");
}
