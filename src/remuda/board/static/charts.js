// Line charts in SVG: linear and log axes, zoom by dragging, values under the pointer or by arrow keys, download.
import { el, save, setAttribute, short, span, svg } from "./dom.js";

const LEFT = 56, RIGHT = 12, TOP = 8, BOTTOM = 30;
const STEPS = 16; // axes grow in steps of a sixteenth at most: between two of them only the ends of lines are new
const TAIL = 24; // points
let charts = 0;

export class Chart {
  constructor(title, { height = 230, onzoom = () => {}, onopen = null, onseen = () => {}, legend = false } = {}) {
    this.title = title;
    this.height = height;
    this.series = [];
    this.log = { x: false, y: false };
    this.xName = "episodes";
    this.range = null; // zoomed, [first, last] of x
    this.cursor = null;
    this.onzoom = onzoom;
    this.clip = `clip-${++charts}`;
    this.picture = svg("svg", { role: "img", tabindex: 0, height });
    this.tip = el("div", { class: "tip", hidden: true });
    this.legend = legend ? el("div", { class: "legend" }) : null;
    this.root = el("section", { class: "chart card" },
      el("h3", {}, el("span", {}, title), el("span", { class: "grow" }),
        onopen ? el("button", { type: "button", onclick: onopen, "aria-label": `${title}, larger` }, "larger") : null,
        el("button", { type: "button", onclick: () => this.zoom(null), "aria-label": `${title}, whole range` }, "all"),
        el("button", { type: "button", onclick: () => this.saveSvg(), "aria-label": `download ${title} as SVG` }, "SVG"),
        el("button", { type: "button", onclick: () => this.saveCsv(), "aria-label": `download ${title} as CSV` }, "CSV")),
      this.legend, this.picture, this.tip);
    this.picture.addEventListener("pointermove", (event) => this.move(event));
    this.picture.addEventListener("pointerleave", () => { if (!this.from) this.point(null); });
    this.picture.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") { this.from = this.inX(event); this.picture.setPointerCapture(event.pointerId); } });
    this.picture.addEventListener("pointerup", (event) => this.release(event));
    this.picture.addEventListener("dblclick", () => this.zoom(null));
    this.picture.addEventListener("keydown", (event) => this.key(event));
    this.visible = true;
    new IntersectionObserver((entries) => { this.visible = entries[entries.length - 1].isIntersecting; onseen(); }).observe(this.root);
    new ResizeObserver(() => { const width = this.picture.clientWidth; if (width !== this.measured) { this.measured = width; this.draw(); } }).observe(this.root);
  }

  set(series, xName) {
    this.series = series;
    this.xName = xName;
    const words = JSON.stringify(series.map((own) => [own.colour, own.name]));
    if (this.legend && this.legend.dataset.shown !== words) {
      this.legend.dataset.shown = words;
      this.legend.replaceChildren(...series.map((own) => el("span", {}, el("span", { class: "swatch", style: { background: own.colour } }), own.name)));
    }
    this.draw();
  }

  zoom(range) { this.range = range; this.draw(); this.onzoom(range); }

  limits() {
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    const { log, range } = this, low = range ? range[0] : -Infinity, high = range ? range[1] : Infinity;
    const include = (y) => { if (log.y && y <= 0) return; if (y < y0) y0 = y; if (y > y1) y1 = y; };
    for (const own of this.series) for (let i = 0; i < own.x.length; i++) {
      const x = own.x[i], y = own.y[i];
      if (x === null || x < low || x > high || (log.x && x <= 0)) continue;
      if (x < x0) x0 = x;
      if (x > x1) x1 = x;
      if (y === null || y === undefined) continue;
      include(y);
      if (own.error?.[i]) { include(y + own.error[i]); include(y - own.error[i]); }
    }
    const isEmpty = !(x1 >= x0);
    if (isEmpty) [x0, x1] = [0, 1];
    if (!(y1 >= y0)) [y0, y1] = log.y ? [.1, 1] : [0, 1];
    if (x0 === x1) [x0, x1] = x0 > 0 ? [x0 / 2, x0 * 1.5] : [x0 - 1, x0 + 1]; // a single value stands in the middle
    if (range) [x0, x1] = range; else [x0, x1] = outward(x0, x1, log.x);
    if (!log.y) { const pad = (y1 - y0) * .03 || Math.abs(y1) * .1 || 1; y0 -= pad; y1 += pad; } else if (y0 === y1) { y0 /= 2; y1 *= 2; }
    [y0, y1] = outward(y0, y1, log.y);
    return { x0, x1, y0, y1, isEmpty };
  }

  scales() {
    const { x0, x1, y0, y1, isEmpty } = this.limits(), width = this.width;
    const along = (log, a, b, from, to) => {
      const f = log ? (v) => Math.log10(Math.max(v, 1e-300)) : (v) => v, low = f(Math.max(a, log ? 1e-12 : -Infinity)), high = f(b);
      const to_ = (v) => from + (f(v) - low) / (high - low || 1) * (to - from);
      to_.back = (p) => { const v = low + (p - from) / (to - from) * (high - low); return log ? 10 ** v : v; };
      return to_;
    };
    return { x: along(this.log.x, x0, x1, LEFT, width - RIGHT), y: along(this.log.y, y0, y1, this.height - BOTTOM, TOP), x0, x1, y0, y1, isEmpty };
  }

  // The frame is made anew when an axis has changed; else only lines with other points are written.
  draw() {
    this.width = Math.max(220, this.measured || this.root.clientWidth - 28 || 400);
    const scale = this.scale = this.scales(), frame = JSON.stringify([this.width, this.height, scale.x0, scale.x1, scale.y0, scale.y1, scale.isEmpty, this.log, this.xName]);
    if (frame !== this.frame) { this.frame = frame; this.drawFrame(scale); }
    const same = this.lines.length === this.series.length && this.series.every((own, i) => this.lines[i].name === own.name && !this.lines[i].dots === !own.dots);
    if (!same) { this.group.replaceChildren(); this.lines = this.series.map((own) => this.makeLine(own)); }
    this.series.forEach((own, i) => own.dots ? this.dots(this.lines[i], own) : this.line(this.lines[i], own));
    const words = this.words();
    if (words !== this.label) { this.label = words; this.picture.setAttribute("aria-label", words); }
  }

  drawFrame(scale) {
    const { x, y } = scale, height = this.height, picture = this.picture;
    picture.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    picture.setAttribute("height", height);
    const parts = [svg("clipPath", { id: this.clip }, svg("rect", { x: LEFT - 4, y: TOP - 4, width: this.width - LEFT - RIGHT + 8, height: height - TOP - BOTTOM + 8 }))];
    const name = (value) => this.xName !== "wall_s" ? short(value) : scale.x1 - scale.x0 < 10 ? `${short(value, 3)} s` : span(value);
    const ticksOf = (...axis) => scale.isEmpty ? [] : ticks(...axis);
    for (const value of ticksOf(scale.x0, scale.x1, this.log.x, this.width / 90)) parts.push(svg("line", { x1: x(value), x2: x(value), y1: TOP, y2: height - BOTTOM, stroke: "currentColor", "stroke-opacity": .08 }), svg("text", { x: x(value), y: height - 14, "text-anchor": "middle" }, name(value)));
    for (const value of ticksOf(scale.y0, scale.y1, this.log.y, height / 45)) parts.push(svg("line", { x1: LEFT, x2: this.width - RIGHT, y1: y(value), y2: y(value), stroke: "currentColor", "stroke-opacity": .08 }), svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value, 3)));
    if (scale.isEmpty) parts.push(svg("text", { x: this.width / 2, y: height / 2, "text-anchor": "middle" }, this.series.length && this.range ? "no values in this part" : "no values yet"));
    parts.push(svg("text", { x: this.width - RIGHT, y: height - 2, "text-anchor": "end" }, { wall_s: "time", agent_steps: "agent steps" }[this.xName] || this.xName));
    this.group = svg("g", { "clip-path": `url(#${this.clip})`, fill: "none" });
    this.lines = [];
    this.mark = svg("g", {});
    picture.replaceChildren(...parts, this.group, this.mark);
    if (this.cursor !== null) this.point(this.cursor);
  }

  makeLine(own) {
    const node = own.dots ? svg("g", {}) : svg("path", { "stroke-linejoin": "round", "data-series": own.name });
    const tail = own.dots ? null : svg("path", { "stroke-linejoin": "round", "data-tail": own.name });
    this.group.append(...[node, tail].filter(Boolean));
    return { name: own.name, dots: own.dots, node, tail, x: [], y: [], pieces: [], split: 0 };
  }

  isShown(v) { return v !== null && v !== undefined && !(this.log.y && v <= 0); }

  dots(line, own) {
    const words = JSON.stringify([own.x, own.y, own.error, own.colour]), { x, y } = this.scale;
    if (words === line.words) return;
    line.words = words;
    line.node.replaceChildren();
    own.x.forEach((at, i) => {
      if (!this.isShown(own.y[i])) return;
      const error = own.error && own.error[i];
      if (error) line.node.append(svg("line", { x1: x(at), x2: x(at), y1: y(own.y[i] - error), y2: y(own.y[i] + error), stroke: own.colour, "stroke-width": 1.5 }));
      line.node.append(svg("circle", { cx: x(at), cy: y(own.y[i]), r: 3.5, fill: own.colour }));
    });
  }

  line(line, own) {
    const { x, y } = this.scale, { pieces, node, tail } = line, count = own.x.length, isAt = (i) => this.isShown(own.y[i]) && own.x[i] !== null && !(this.log.x && own.x[i] <= 0);
    for (const part of [node, tail]) {
      setAttribute(part, "stroke", own.colour);
      setAttribute(part, "stroke-width", (own.width || 1.2) + (count === 1 ? 4 : 0)); // a point is to be seen
      setAttribute(part, "stroke-opacity", own.opacity ?? 1);
      setAttribute(part, "stroke-linecap", count === 1 ? "round" : "butt"); // a single point is a line of no length, which round ends make a disc
    }
    let first = 0;
    while (first < count && first < pieces.length && line.x[first] === own.x[first] && line.y[first] === own.y[first]) first++;
    if (first === count && count === pieces.length && count) return;
    const isNew = !pieces.length;
    pieces.length = first;
    for (let i = first; i < count; i++) pieces.push(isAt(i) ? `${i && isAt(i - 1) ? "L" : "M"}${x(own.x[i]).toFixed(1)} ${y(own.y[i]).toFixed(1)}` : "");
    [line.x, line.y] = [own.x, own.y];
    // The browser draws anew the whole box of a path that changes, so the end of a long line is a path of its own.
    if (isNew || first < line.split || count - line.split > 3 * TAIL) {
      line.split = count > 3 * TAIL ? Math.min(first || count, count - TAIL) : count;
      node.setAttribute("d", (pieces.slice(0, line.split).join("") || "M0 0") + (count === 1 ? "h.01" : ""));
    }
    const from = Math.max(0, line.split - 1);
    tail.setAttribute("d", line.split < count ? pieces.slice(from).join("").replace(/^L/, "M") : "");
  }

  words() {
    const main = this.series.filter((own) => own.main && own.y.length).map((own) => { const known = own.y.filter((v) => v !== null); return `${own.name} from ${short(known[0])} to ${short(known[known.length - 1])}`; });
    return `${this.title} against ${this.xName}: ${main.join("; ") || "no values yet"}. Arrow keys read values, plus and minus zoom, zero shows all.`;
  }

  inX(event) { const box = this.picture.getBoundingClientRect(); return (event.clientX - box.left) * this.width / box.width; }

  move(event) {
    const at = this.inX(event);
    if (this.from) { this.band(this.from, at); return; }
    this.point(this.scale.x.back(at));
  }

  band(a, b) { this.mark.replaceChildren(svg("rect", { x: Math.min(a, b), width: Math.abs(a - b), y: TOP, height: this.height - TOP - BOTTOM, fill: "currentColor", "fill-opacity": .12 })); }

  release(event) {
    const from = this.from, to = this.inX(event);
    this.from = null;
    if (from && Math.abs(from - to) > 8) this.zoom([from, to].map((p) => this.scale.x.back(p)).sort((a, b) => a - b));
  }

  // The values nearest to x, in a box and as a line through the chart.
  point(value) {
    this.cursor = value;
    if (value === null || !this.series.length) { this.tip.hidden = true; this.mark?.replaceChildren(); return; }
    const rows = [];
    let at = null;
    for (const own of this.series) {
      const i = nearest(own.x, value);
      if (i < 0 || own.y[i] === null || own.quiet) continue;
      at ??= own.x[i];
      rows.push({ own, value: own.y[i], x: own.x[i] });
    }
    if (at === null) return;
    const place = this.scale.x(at);
    this.mark.replaceChildren(svg("line", { x1: place, x2: place, y1: TOP, y2: this.height - BOTTOM, stroke: "currentColor", "stroke-opacity": .4 }),
      ...rows.slice(0, 14).map((row) => svg("circle", { cx: this.scale.x(row.x), cy: this.scale.y(row.value), r: 3, fill: row.own.colour })));
    this.tip.replaceChildren(el("div", {}, `${this.xName === "wall_s" ? span(at) : short(at, 6)} ${this.xName === "wall_s" ? "" : this.xName}`),
      ...rows.slice(0, 14).map((row) => el("div", {}, el("span", { class: "swatch", style: { background: row.own.colour } }), `${row.own.name}: ${short(row.value, 5)}`)),
      rows.length > 14 ? el("div", {}, `and ${rows.length - 14} more`) : "");
    this.tip.hidden = false;
    const share = place / this.width;
    this.tip.style.top = "2.4rem";
    this.tip.style.left = share < .5 ? `${share * 100 + 3}%` : "auto";
    this.tip.style.right = share < .5 ? "auto" : `${(1 - share) * 100 + 3}%`;
    this.said = rows.slice(0, 3).map((row) => `${row.own.name} ${short(row.value, 5)}`).join(", ");
  }

  key(event) {
    const { x0, x1 } = this.scale, middle = this.cursor ?? (x0 + x1) / 2, step = (x1 - x0) / 60;
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") { this.point(Math.min(x1, Math.max(x0, middle + (event.key === "ArrowRight" ? step : -step)))); this.picture.setAttribute("aria-label", `${short(this.cursor, 6)} ${this.xName}: ${this.said || ""}`); }
    else if (event.key === "+" || event.key === "=") this.zoom([middle - (x1 - x0) / 4, middle + (x1 - x0) / 4]);
    else if (event.key === "-") this.zoom(null);
    else if (event.key === "0" || event.key === "Escape") this.zoom(null);
    else return;
    event.preventDefault();
  }

  saveSvg() {
    const copy = this.picture.cloneNode(true), style = getComputedStyle(document.documentElement);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", this.width);
    copy.setAttribute("color", style.getPropertyValue("--ink"));
    copy.setAttribute("font-family", "sans-serif");
    copy.setAttribute("font-size", "11");
    copy.querySelectorAll("text").forEach((own) => own.setAttribute("fill", style.getPropertyValue("--soft")));
    copy.prepend(svg("rect", { width: this.width, height: this.height, fill: style.getPropertyValue("--card") }));
    save(`${file(this.title)}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(copy));
  }

  saveCsv() {
    const cell = (text) => { const own = String(text ?? ""); return /[",\n]/.test(own) ? `"${own.replaceAll('"', '""')}"` : own; };
    const rows = [["series", this.xName, this.title]];
    for (const own of this.series) if (!own.quiet) own.x.forEach((at, i) => rows.push([own.name, at, own.y[i]]));
    save(`${file(this.title)}.csv`, "text/csv", rows.map((row) => row.map(cell).join(",")).join("\n") + "\n");
  }
}

const file = (title) => title.replace(/[^\w-]+/g, "-").slice(0, 60) || "chart";

function nearest(x, value) {
  let low = 0, high = x.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (x[middle] <= value) low = middle; else high = middle; }
  if (!x.length) return -1;
  return Math.abs(x[high] - value) < Math.abs(x[low] - value) ? high : low;
}

// Limits at or beyond the given ones that change only in steps, as values come.
function outward(low, high, log) {
  const [a, b] = log ? [Math.log10(Math.max(low, 1e-12)), Math.log10(high)] : [low, high], unit = 2 ** Math.floor(Math.log2((b - a) / STEPS));
  if (!Number.isFinite(unit) || unit === 0) return [low, high];
  const found = [Math.floor(a / unit) * unit, Math.ceil(b / unit) * unit];
  return log ? found.map((v) => 10 ** v) : found;
}

export function ticks(low, high, log, wanted) {
  const count = Math.max(2, Math.min(8, Math.floor(wanted)));
  if (log && high / Math.max(low, 1e-12) >= 4) {
    const from = Math.floor(Math.log10(Math.max(low, 1e-12))), to = Math.ceil(Math.log10(high)), found = [];
    const parts = to - from <= 3 ? [1, 2, 5] : [1], jump = Math.max(1, Math.ceil((to - from) / count));
    for (let power = from; power <= to; power += jump) for (const part of parts) { const value = part * 10 ** power; if (value >= low && value <= high) found.push(value); }
    if (found.length >= 2) return found;
  }
  const raw = (high - low) / count, unit = 10 ** Math.floor(Math.log10(raw)), steps = [.2, .5, 1, 2, 5, 10].map((n) => n * unit), first = steps.findIndex((step) => step >= raw);
  const found = every(steps[first] || raw, low, high);
  return found.length < 2 && first > 0 ? every(steps[first - 1], low, high) : found; // one number says nothing about a scale
}

function every(step, low, high) {
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  return found;
}

// A running mean over a share of the points; unknown values do not count.
export function smooth(values, share) {
  const reach = Math.round(values.length * share / 2);
  if (reach < 1) return values;
  const sums = [0], counts = [0];
  values.forEach((value, i) => { sums.push(sums[i] + (value ?? 0)); counts.push(counts[i] + (value === null ? 0 : 1)); });
  return values.map((_, i) => { const a = Math.max(0, i - reach), b = Math.min(values.length, i + reach + 1), n = counts[b] - counts[a]; return n ? (sums[b] - sums[a]) / n : null; });
}
