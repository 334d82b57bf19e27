// Small helpers. Text from runs only ever becomes text: nothing here takes HTML.
const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export const el = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, children);

// Only what differs is written: even the same text makes the browser lay out and draw anew.
export function setText(element, text) { if (element.textContent !== text) element.textContent = text; }
export function setAttribute(element, name, value) { if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value); }

export async function ask(path, query = {}) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

export function short(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return Number(value.toPrecision(digits)).toLocaleString("en");
}

export function span(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

export function bytes(count) {
  if (!Number.isFinite(count)) return "–";
  return count >= 2 ** 30 ? `${(count / 2 ** 30).toFixed(1)} GiB` : `${Math.round(count / 2 ** 20)} MiB`;
}

export function colour(text, other = "#888888") {
  return typeof text === "string" && /^#[0-9a-fA-F]{6}$/.test(text) ? text : other;
}

export function save(name, type, content) {
  const link = el("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

export function copyButton(text) {
  const button = el("button", { type: "button", "aria-label": `copy ${text}`, onclick: async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { button.textContent = "select it"; }
    button.removeAttribute("aria-label"); // what came of it is to be heard
  } }, "copy");
  return button;
}
