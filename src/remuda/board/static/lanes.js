// Lanes: how each thread of each process spent the last minutes, drawn in bins; a bin's height is the time of its kinds.
import { el, span } from "./dom.js";

export const KIND_COLOURS = { collect: "--blue", learn: "--orange", move: "--violet", film: "--green", wait: "--grey" };
const HEIGHT = 22;

export function drawLanes(card, { bin_s: binS, lanes }) {
  if (!lanes.length) { card.replaceChildren(el("h3", {}, "Lanes"), el("p", { class: "note" }, "This run has left no lanes.")); return; }
  const bins = Math.max(...lanes.flatMap((lane) => Object.values(lane.kinds).map((own) => own.length)));
  const used = lanes.map((lane) => firstUsed(lane, bins)), first = Math.min(...used), shown = Math.max(8, bins - first);
  card.replaceChildren(el("h3", {}, `Lanes, the last ${span(shown * binS)}`),
    el("div", { class: "legend" }, Object.entries(KIND_COLOURS).map(([kind, tone]) => el("span", {}, el("span", { class: "swatch", style: { background: `var(${tone})` } }), kind))),
    ...lanes.map((lane) => {
      const words = wordsOf(lane, bins - shown, shown);
      const canvas = el("canvas", { width: shown * 4, height: HEIGHT, role: "img", "aria-label": `${lane.process}: ${words}` });
      draw(canvas, lane, bins - shown);
      const thread = lane.thread && lane.thread !== "MainThread" ? `, ${lane.thread}` : "";
      return el("div", { class: "lane", title: words }, el("span", {}, `${lane.process}${thread}`), canvas, el("span", { class: "soft" }, words));
    }));
}

function firstUsed(lane, bins) {
  for (let i = 0; i < bins; i++) if (Object.values(lane.kinds).some((own) => own[i] > 0)) return i;
  return bins;
}

function wordsOf(lane, from, shown) {
  return Object.keys(KIND_COLOURS).filter((kind) => lane.kinds[kind]).map((kind) => {
    const share = lane.kinds[kind].slice(from).reduce((sum, value) => sum + value, 0) / shown;
    return share >= .5 ? `${kind} ${Math.round(share)} %` : share > 0 ? `${kind} below 1 %` : null;
  }).filter(Boolean).join(", ") || "nothing measured";
}

function draw(canvas, lane, from) {
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const top = new Array(canvas.width / 4).fill(HEIGHT);
  for (const [kind, tone] of Object.entries(KIND_COLOURS)) {
    pen.fillStyle = style.getPropertyValue(tone);
    (lane.kinds[kind] || []).slice(from).forEach((share, i) => {
      if (!share) return;
      const height = share / 100 * HEIGHT;
      top[i] -= height;
      pen.fillRect(i * 4, Math.max(0, top[i]), 4, height);
    });
  }
}
