// Line charts in SVG: linear and log axes, zoom by dragging, values under the pointer or by arrow keys, download.
import { el, save, short, span, svg } from "./dom.js";

const LEFT = 56, RIGHT = 12, TOP = 8, BOTTOM = 30;
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
    new IntersectionObserver(([entry]) => { const before = this.visible; this.visible = entry.isIntersecting; if (this.visible && !before) onseen(); }).observe(this.root);
    new ResizeObserver(() => { if (this.picture.clientWidth !== this.width) this.draw(); }).observe(this.root);
  }

  set(series, xName) {
    this.series = series;
    this.xName = xName;
    this.legend?.replaceChildren(...series.map((own) => el("span", {}, el("span", { class: "swatch", style: { background: own.colour } }), own.name)));
    this.draw();
  }

  zoom(range) { this.range = range; this.draw(); this.onzoom(range); }

  limits() {
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const own of this.series) own.x.forEach((x, i) => {
      if (x === null || (this.range && (x < this.range[0] || x > this.range[1])) || (this.log.x && x <= 0)) return;
      x0 = Math.min(x0, x); x1 = Math.max(x1, x);
      for (const y of [own.y[i], own.error && own.y[i] !== null ? own.y[i] + (own.error[i] || 0) : null, own.error && own.y[i] !== null ? own.y[i] - (own.error[i] || 0) : null]) {
        if (y === null || y === undefined || (this.log.y && y <= 0)) continue;
        y0 = Math.min(y0, y); y1 = Math.max(y1, y);
      }
    });
    if (this.range) [x0, x1] = this.range;
    if (!(x1 >= x0)) [x0, x1] = [0, 1];
    if (!(y1 >= y0)) [y0, y1] = this.log.y ? [.1, 1] : [0, 1];
    if (x0 === x1) x1 = x0 + 1;
    if (!this.log.y) { const pad = (y1 - y0) * .05 || Math.abs(y1) * .1 || 1; y0 -= pad; y1 += pad; } else if (y0 === y1) { y0 /= 2; y1 *= 2; }
    return { x0, x1, y0, y1 };
  }

  scales() {
    const { x0, x1, y0, y1 } = this.limits(), width = this.width;
    const along = (log, a, b, from, to) => {
      const f = log ? (v) => Math.log10(Math.max(v, 1e-300)) : (v) => v, low = f(Math.max(a, log ? 1e-12 : -Infinity)), high = f(b);
      const to_ = (v) => from + (f(v) - low) / (high - low || 1) * (to - from);
      to_.back = (p) => { const v = low + (p - from) / (to - from) * (high - low); return log ? 10 ** v : v; };
      return to_;
    };
    return { x: along(this.log.x, x0, x1, LEFT, width - RIGHT), y: along(this.log.y, y0, y1, this.height - BOTTOM, TOP), x0, x1, y0, y1 };
  }

  draw() {
    this.width = Math.max(220, this.picture.clientWidth || this.root.clientWidth - 28 || 400);
    const scale = this.scale = this.scales(), { x, y } = scale, height = this.height;
    const picture = this.picture;
    picture.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    picture.setAttribute("height", height);
    const parts = [svg("clipPath", { id: this.clip }, svg("rect", { x: LEFT - 4, y: TOP - 4, width: this.width - LEFT - RIGHT + 8, height: height - TOP - BOTTOM + 8 }))];
    const name = (value) => this.xName !== "wall_s" ? short(value) : scale.x1 - scale.x0 < 10 ? `${short(value, 3)} s` : span(value);
    for (const value of ticks(scale.x0, scale.x1, this.log.x, this.width / 90)) parts.push(svg("line", { x1: x(value), x2: x(value), y1: TOP, y2: height - BOTTOM, stroke: "currentColor", "stroke-opacity": .08 }), svg("text", { x: x(value), y: height - 14, "text-anchor": "middle" }, name(value)));
    for (const value of ticks(scale.y0, scale.y1, this.log.y, height / 45)) parts.push(svg("line", { x1: LEFT, x2: this.width - RIGHT, y1: y(value), y2: y(value), stroke: "currentColor", "stroke-opacity": .08 }), svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value, 3)));
    parts.push(svg("text", { x: this.width - RIGHT, y: height - 2, "text-anchor": "end" }, { wall_s: "time", agent_steps: "agent steps" }[this.xName] || this.xName));
    const lines = svg("g", { "clip-path": `url(#${this.clip})`, fill: "none" });
    for (const own of this.series) this.line(lines, own, x, y);
    this.mark = svg("g", {});
    picture.replaceChildren(...parts, lines, this.mark);
    picture.setAttribute("aria-label", this.words());
  }

  line(group, own, x, y) {
    const ok = (v) => v !== null && v !== undefined && !(this.log.y && v <= 0);
    if (own.dots) {
      own.x.forEach((at, i) => {
        if (!ok(own.y[i])) return;
        const error = own.error && own.error[i];
        if (error) group.append(svg("line", { x1: x(at), x2: x(at), y1: y(own.y[i] - error), y2: y(own.y[i] + error), stroke: own.colour, "stroke-width": 1.5 }));
        group.append(svg("circle", { cx: x(at), cy: y(own.y[i]), r: 3.5, fill: own.colour }));
      });
      return;
    }
    let path = "", pen = "M";
    own.x.forEach((at, i) => { if (!ok(own.y[i]) || (this.log.x && at <= 0)) { pen = "M"; return; } path += `${pen}${x(at).toFixed(1)} ${y(own.y[i]).toFixed(1)}`; pen = "L"; });
    group.append(svg("path", { d: path || "M0 0", stroke: own.colour, "stroke-width": own.width || 1.2, "stroke-opacity": own.opacity ?? 1, "stroke-linejoin": "round", "data-series": own.name }));
    if (own.x.length === 1 && ok(own.y[0])) group.append(svg("circle", { cx: x(own.x[0]), cy: y(own.y[0]), r: 3, fill: own.colour }));
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

export function ticks(low, high, log, wanted) {
  const count = Math.max(2, Math.min(8, Math.floor(wanted)));
  if (log && high / Math.max(low, 1e-12) >= 4) {
    const from = Math.floor(Math.log10(Math.max(low, 1e-12))), to = Math.ceil(Math.log10(high)), found = [];
    const parts = to - from <= 3 ? [1, 2, 5] : [1], jump = Math.max(1, Math.ceil((to - from) / count));
    for (let power = from; power <= to; power += jump) for (const part of parts) { const value = part * 10 ** power; if (value >= low && value <= high) found.push(value); }
    if (found.length >= 2) return found;
  }
  const raw = (high - low) / count, unit = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= raw) || raw, found = [];
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
