// A study: how far it is, its variants with their runs, their curves over each other, what failed, its report.
import { Chart, smooth } from "./charts.js";
import { ask, copyButton, el, short } from "./dom.js";

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a63c9", "#7f7f7f"];
const MAX_CURVES = 64, POINTS = 200;

// Runs below a study's folder, by variant; those of a sweep or search stand alone.
export function groupsOf(study, runs) {
  const prefix = study.id === "." ? "" : `${study.id}/`, groups = new Map();
  for (const run of runs) {
    if (!run.id.startsWith(prefix)) continue;
    const words = run.id.slice(prefix.length).split("/"), folder = words.length > 1 ? words.slice(1) : words;
    const name = study.kind === "study" && folder.length > 1 ? folder.slice(0, -1).join("/") : folder.join("/");
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push({ ...run, short: folder[folder.length - 1] });
  }
  for (const own of groups.values()) own.sort((a, b) => a.short.localeCompare(b.short, "en", { numeric: true }));
  return new Map([...groups].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })));
}

export function studyView(panel, study, runsNow, pagesNow) {
  const stats = el("div", { class: "stats" }), links = el("p", {}), table = el("div", { class: "scroll" }), rest = el("div"), key = el("div", { class: "legend" });
  const kinds = el("select", { id: "study-table", onchange: () => { data.clear(); load([...members()].map((run) => run.id)); } }, [["evaluations.csv", "evaluations"], ["metrics.csv", "training"]].map(([value, text]) => el("option", { value }, text)));
  let chart = null, facts = null;
  const data = new Map(), chartPlace = el("div"), shown = new Map();
  // Parts are made anew only when something of them changed: otherwise whoever stands on a link with the keyboard is thrown off.
  const changed = (part, facts) => { const words = JSON.stringify(facts); if (shown.get(part) === words) return false; shown.set(part, words); return true; };
  panel.replaceChildren(el("h2", { id: "title", style: { marginTop: ".2rem" } }, study.id === "." ? "this folder" : study.id), stats, links, el("div", { class: "bar" }, el("label", {}, "curves of ", kinds)), key, chartPlace, table, rest);
  const groups = () => groupsOf(study, runsNow());
  const members = () => [...groups().values()].flat();
  const colourOf = (i) => COLOURS[i % COLOURS.length];

  function drawTable() {
    const all = members(), done = all.filter((run) => run.status === "finished" || run.status === "stopped").length, running = all.filter((run) => run.status === "running").length;
    const planned = facts?.planned, failed = Object.keys(facts?.failed || {}).length;
    stats.replaceChildren(...[["kind", study.kind], ["runs", planned ? `${done} of ${planned}` : String(all.length)], ["under way", String(running)], ["failed", String(failed)], ["variants", String(groups().size)]]
      .filter(([name]) => name !== "variants" || study.kind === "study").map(([name, value]) => el("div", { class: "stat" }, el("b", {}, value), el("span", {}, name))));
    const pages = pagesNow().filter((page) => page.id === study.id);
    if (!changed("table", [pages, all.map((run) => [run.id, run.status, run.return, run.episodes])])) return;
    links.replaceChildren(...pages.flatMap((page, i) => [i ? " · " : "", el("a", { href: `/page?${new URLSearchParams(page)}`, target: "_blank", rel: "noopener" }, page.file)]));
    if (!all.length) { table.replaceChildren(); return; }
    table.replaceChildren(el("h3", {}, study.kind === "study" ? "Variants" : "Runs"), el("table", {}, el("thead", {}, el("tr", {}, [study.kind === "study" ? "variant" : "run", "done", "mean return now", "runs"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, [...groups()].slice(0, 200).map(([name, own], i) => {
        const returns = own.map((run) => run.return).filter((value) => value !== null), mean = returns.reduce((sum, value) => sum + value, 0) / returns.length;
        return el("tr", {}, el("th", { scope: "row", style: { textAlign: "left" } }, el("span", { class: "swatch", style: { background: colourOf(i) } }), name), el("td", {}, `${own.filter((run) => run.status === "finished").length} of ${own.length}`), el("td", {}, returns.length ? short(mean) : "–"),
          el("td", {}, el("div", { class: "members" }, own.map((run) => el("a", { class: `badge ${run.status}`, href: `#${new URLSearchParams({ run: run.id, tab: "curves" })}`, title: `${run.status}, ${Math.round(run.episodes || 0)} of ${run.total ?? "?"} episodes` }, run.short)))));
      }))));
  }

  function drawRest() {
    if (!changed("rest", facts)) return;
    rest.replaceChildren(...[
      ...Object.entries(facts.failed).map(([name, why]) => el("article", { class: "failure" }, el("h3", {}, `${name} failed`), el("pre", {}, why))),
      facts.rows.length ? el("h3", {}, "Trials") : null,
      facts.rows.length ? el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, facts.head.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, facts.rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell))))))) : null,
      Object.keys(facts.commands).length ? el("h3", {}, "Commands") : null,
      ...Object.entries(facts.commands).map(([name, command]) => el("div", { class: "command" }, el("span", { class: "soft", style: { minWidth: "5rem" } }, name), el("code", {}, command), copyButton(command)))].filter(Boolean));
  }

  async function load(ids) {
    facts = await ask("/api/study", { id: study.id });
    if (!chart) { chart = new Chart(facts.metric, { height: 360, onzoom: () => {} }); chartPlace.append(chart.root); }
    const wanted = new Set(members().slice(0, MAX_CURVES).map((run) => run.id));
    await Promise.all(ids.filter((id) => wanted.has(id)).map(async (id) => {
      const from = kinds.value;
      try {
        const found = await ask("/api/curve", { id, table: from, metric: facts.metric, points: POINTS });
        if (from === kinds.value) data.set(id, found);
      } catch { /* asked again */ }
    }));
    drawTable();
    drawRest();
    drawCurves();
  }

  function drawCurves() {
    const series = [];
    [...groups()].forEach(([name, own], i) => {
      const curves = own.map((run) => data.get(run.id)).filter((found) => found && found.x.length);
      own.forEach((run) => { const found = data.get(run.id); if (found?.x.length) series.push({ name: run.short === name ? name : `${name}, ${run.short}`, colour: colourOf(i), x: found.x, y: smooth(found.mean, .04), width: 1, opacity: own.length > 1 ? .55 : 1, main: own.length === 1 }); });
      if (curves.length > 1) series.push({ name: `${name}, mean of ${curves.length}`, main: true, colour: colourOf(i), width: 2.6, ...meanOf(curves) });
    });
    chart.root.hidden = !series.length;
    chart.set(series, "episodes");
    key.replaceChildren(...[...groups().keys()].slice(0, 24).map((name, i) => el("span", {}, el("span", { class: "swatch", style: { background: colourOf(i) } }), name)));
  }

  return { needs: ["metrics.csv", "evaluations.csv", "result.json"], ids: () => members().map((run) => run.id), update: load };
}

// The mean over curves, where all of them have values.
export function meanOf(curves) {
  const first = Math.max(...curves.map((own) => own.x[0])), last = Math.min(...curves.map((own) => own.x[own.x.length - 1]));
  const x = [...new Set(curves.flatMap((own) => own.x))].filter((value) => value >= first && value <= last).sort((a, b) => a - b);
  return { x, y: x.map((value) => { const known = curves.map((own) => at(own, value)).filter((found) => found !== null); return known.length === curves.length ? known.reduce((sum, found) => sum + found, 0) / known.length : null; }) };
}

function at(curve, value) {
  const i = curve.x.findIndex((own) => own >= value);
  if (i < 0 || curve.mean[i] === null) return null;
  if (i === 0 || curve.x[i] === value || curve.mean[i - 1] === null) return curve.mean[i];
  const share = (value - curve.x[i - 1]) / (curve.x[i] - curve.x[i - 1]);
  return curve.mean[i - 1] + share * (curve.mean[i] - curve.mean[i - 1]);
}
