// The board: a list of runs, and tabs about the chosen one. It asks again and again what has changed.
import { Chart, smooth } from "./charts.js";
import { ask, bytes, colour, copyButton, el, short, span } from "./dom.js";
import { Stage } from "./film.js";
import { drawLanes, KIND_COLOURS } from "./lanes.js";
import { studyView } from "./study.js";

const TABS = { herd: "Herd", curves: "Curves", time: "Where time goes", trouble: "What went wrong", plan: "Plan" };
const OVERLAY = ["#3b7dd8", "#e08a1e", "#23855c", "#b93a2d", "#8250b5", "#1aa0a8", "#b59a00", "#d6478f"];
const EVALUATION = "#d6336c";
const MAX_LISTED = 600, FACTS_MS = 8000, EVERY_MS = 1400; // a curve follows its file within two seconds
const state = { runs: [], listed: { studies: [], pages: [] }, id: null, study: null, tab: "herd", others: new Set(), stamps: {}, view: null, control: null, x: "episodes", share: 0.04, log: { x: false, y: false }, agents: true, metric: null };
const main = document.getElementById("main"), filter = document.getElementById("filter");

// The address says what is shown: a page can be sent to somebody who runs a board of the same folder.
function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const id = words.get("run"), study = id === null ? words.get("study") : null;
  const changed = id !== state.id || study !== state.study || words.get("tab") !== state.tab;
  state.id = id;
  state.study = study;
  state.tab = words.get("tab") in TABS ? words.get("tab") : "herd";
  state.others = new Set((words.get("with") || "").split("|").filter(Boolean));
  state.follow = words.has("newest");
  if (changed) { state.metric = null; show(); }
}

function goTo(changes) {
  const words = new URLSearchParams(), next = { run: state.id, tab: state.tab, with: [...state.others].join("|"), ...changes };
  for (const [name, value] of Object.entries(next)) if (value) words.set(name, value);
  location.hash = words.toString();
}

function drawList() {
  const wanted = filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  // Runs under way by name, so that they stay where they are; the others by when they changed.
  const isRunning = (run) => run.status === "running", newest = (a, b) => b.changed - a.changed, byName = (a, b) => a.name.localeCompare(b.name, "en", { numeric: true });
  const runs = state.runs.filter((run) => wanted.every((word) => `${run.name} ${run.game} ${run.status} ${run.engine} ${run.learner}`.toLowerCase().includes(word)))
    .sort((a, b) => isRunning(b) - isRunning(a) || (isRunning(a) ? byName(a, b) : newest(a, b)));
  const list = document.getElementById("list"), focused = document.activeElement?.id;
  const nodes = runs.slice(0, MAX_LISTED).map(listed);
  if (runs.length > MAX_LISTED) nodes.push(el("p", { class: "note" }, `and ${runs.length - MAX_LISTED} more: filter them`));
  if (!runs.length) nodes.push(el("p", { class: "note" }, "No runs here yet. They appear as soon as they start."));
  if (nodes.length === list.children.length && nodes.every((node, i) => node === list.children[i])) return;
  list.replaceChildren(...nodes);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

// A run in the list; made anew only when something of it changed.
const known = new Map();
function listed(run) {
  const isChosen = run.id === state.id, others = [...state.others].join("|");
  const words = JSON.stringify([run.status, run.agents, run.return, run.episodes, run.total, run.failures, isChosen, state.tab, others]);
  const before = known.get(run.id);
  if (before?.words === words) return before.node;
  const number = before?.number ?? known.size;
  const node = el("div", { class: `run${isChosen ? " chosen" : ""}` },
    el("input", { type: "checkbox", id: `box-${number}`, "aria-label": `put ${run.name} into the curves`, checked: state.others.has(run.id) || run.id === state.id, disabled: run.id === state.id, onchange: (event) => { event.target.checked ? state.others.add(run.id) : state.others.delete(run.id); goTo({}); if (state.view?.choose) state.view.choose(); } }),
    el("a", { id: `run-${number}`, href: `#${new URLSearchParams({ run: run.id, tab: state.tab, ...(state.others.size ? { with: [...state.others].join("|") } : {}) })}`, "aria-current": run.id === state.id ? "page" : null, title: run.name }, run.name),
    el("span", { class: `badge ${run.status}` }, run.status),
    el("span", { class: "facts" }, [run.failures ? counted(run.failures, "failure") : null, run.game, run.agents ? counted(run.agents, "agent") : null, run.engine, run.return === null ? null : `return ${short(run.return, 3)}`].filter(Boolean).join(" · ")),
    run.status === "running" && run.total ? el("progress", { max: run.total, value: run.episodes || 0, "aria-label": `${run.episodes} of ${run.total} episodes` }) : null);
  known.set(run.id, { words, node, number });
  return node;
}

function drawStudies(found) {
  const links = found.pages.map((page) => el("li", {}, el("a", { href: `/page?${new URLSearchParams(page)}`, target: "_blank", rel: "noopener" }, page.id === "." ? page.file : `${page.id}/${page.file}`)));
  const studies = found.studies.map((study) => el("li", {}, el("a", { href: `#${new URLSearchParams({ study: study.id })}` }, study.id === "." ? "this folder" : study.id), ` (${study.kind})`));
  document.getElementById("studies").replaceChildren(...(studies.length ? [el("h3", {}, "Studies"), el("ul", {}, studies)] : []), ...(links.length ? [el("h3", {}, "Pages"), el("ul", {}, links)] : []));
}

const count = (value) => value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const runOf = (id) => state.runs.find((run) => run.id === id);
const studyOf = (id) => id === null ? undefined : state.listed.studies.find((study) => study.id === id);
const chosen = () => [state.id, ...state.others].filter((id, i, all) => all.indexOf(id) === i && runOf(id));

async function refresh() {
  let found;
  try { found = await ask("/api/runs"); } catch { document.getElementById("live").textContent = "the board does not answer"; return; }
  const before = JSON.stringify(state.runs);
  state.runs = found.runs;
  state.allowControl = found.control;
  document.getElementById("root").textContent = found.root;
  const running = found.runs.filter((run) => run.status === "running").length;
  const words = `${counted(found.runs.length, "run")}, ${running} under way`;
  const live = document.getElementById("live");
  if (live.textContent !== words) live.textContent = words;
  if (JSON.stringify(found.runs) !== before) drawList();
  state.listed = found;
  const studies = JSON.stringify([found.studies, found.pages]);
  if (studies !== state.studies) { state.studies = studies; drawStudies(found); }
  if (state.follow && !state.id && running) goTo({ run: found.runs.filter((run) => run.status === "running").sort((a, b) => b.changed - a.changed)[0].id });
  if ((runOf(state.id) || studyOf(state.study)) && !state.view) show();
  drawHead();
  const shown = state.view?.ids ? state.view.ids() : chosen();
  if (state.view) await state.view.update(shown.filter((id) => state.stamps[id] !== runOf(id).stamp || runOf(id).status === "running"));
  for (const id of shown) if (runOf(id)) state.stamps[id] = runOf(id).stamp;
}

let head = null;
function drawHead() {
  const run = runOf(state.id);
  if (!run || !head) return;
  const rest = run.total && run.episodes && run.wall_s ? (run.total - run.episodes) / run.episodes * run.wall_s : null;
  const stats = [["episodes", `${count(run.episodes)} of ${count(run.total)}`], ["mean return", short(run.return)], ["agent-steps/s", short(run.steps_per_s)], ["trained for", span(run.wall_s)],
    run.status === "running" ? ["time left", span(rest)] : ["state", run.status], ["failures", String(run.failures)]];
  head.replaceChildren(...stats.map(([name, value]) => el("div", { class: "stat" }, el("b", {}, value), el("span", {}, name))));
}

function show() {
  const run = runOf(state.id), study = studyOf(state.study);
  document.getElementById("layout").classList.toggle("chosen", Boolean(run || study)); // a phone shows a shorter list then
  if (study) {
    head = null;
    state.view = studyView(main, study, () => state.runs, () => state.listed.pages);
    document.title = `${study.id} · remuda board`;
    drawList();
    state.view.update(state.view.ids());
    return;
  }
  if (!run) { state.view = null; head = null; if (state.id === null) main.replaceChildren(el("p", { class: "note" }, "Choose a run or a study. Those under way come first. Boxes put more runs into the same curves.")); drawList(); return; }
  head = el("div", { class: "stats" });
  const panel = el("section", { id: "panel", role: "tabpanel", "aria-labelledby": `tab-${state.tab}`, tabindex: -1 });
  const tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "about the run", onkeydown: (event) => {
    const names = Object.keys(TABS), at = names.indexOf(state.tab), step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) { event.preventDefault(); state.focusTab = true; goTo({ tab: names[(at + step + names.length) % names.length] }); }
  } }, Object.entries(TABS).map(([name, title]) => el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(name === state.tab), "aria-controls": "panel", tabindex: name === state.tab ? 0 : -1, onclick: () => { state.focusTab = true; goTo({ tab: name }); } }, title)));
  main.replaceChildren(el("h2", { id: "title", style: { marginTop: ".2rem" } }, run.name), head, tabs, panel);
  document.title = `${run.name} · remuda board`;
  state.view = { herd: herdView, curves: curvesView, time: timeView, trouble: troubleView, plan: planView }[state.tab](panel);
  drawHead();
  drawList();
  if (state.focusTab) { state.focusTab = false; document.getElementById(`tab-${state.tab}`).focus(); }
  state.view.update(chosen());
}

function herdView(panel) {
  const id = state.id, stage = new Stage(id), note = el("p", { class: "note" }, "No film yet. Films are written as training goes on; games without a scene or picture have none.");
  panel.replaceChildren(note, stage.root);
  state.stage = stage;
  return { update: async (ids) => {
    if (!ids.includes(id)) return;
    const { films } = await ask("/api/run", { id });
    note.hidden = films.length > 0;
    stage.root.hidden = !films.length;
    await stage.offer(films);
  } };
}

function curvesView(panel) {
  const charts = new Map(), grid = el("div", { class: "charts" }), key = el("div", { class: "legend" });
  const check = (name, text, get, set) => el("label", {}, el("input", { type: "checkbox", id: name, checked: get(), onchange: (event) => { set(event.target.checked); redraw(); } }), text);
  const smoothing = el("input", { type: "range", id: "smoothing", min: 0, max: 30, value: state.share * 100, oninput: () => { state.share = Number(smoothing.value) / 100; redraw(); } });
  const axis = el("select", { id: "axis", onchange: () => { state.x = axis.value; for (const chart of charts.values()) chart.range = null; drawn.clear(); load(chosen()); } }, [["episodes", "episodes"], ["agent_steps", "agent steps"], ["wall_s", "time"]].map(([value, text]) => el("option", { value, selected: value === state.x }, text)));
  panel.replaceChildren(el("div", { class: "bar" }, el("label", {}, "against ", axis), el("label", {}, "smoothing ", smoothing),
    check("agents", "each agent", () => state.agents, (on) => { state.agents = on; }), check("logx", "log x", () => state.log.x, (on) => { state.log.x = on; }), check("logy", "log y", () => state.log.y, (on) => { state.log.y = on; }),
    el("button", { type: "button", id: "back", hidden: !state.metric, onclick: () => { state.metric = null; show(); } }, "all metrics")), key, grid);
  const data = new Map(), facts = new Map(), asked = new Map(), drawn = new Set(); // charts out of sight are drawn once, and again when they are seen

  async function load(ids) {
    for (const id of ids) {
      if (state.view !== view) return;
      if (performance.now() - (asked.get(id) ?? -Infinity) < FACTS_MS) continue; // which metrics there are changes rarely
      try { facts.set(id, await ask("/api/run", { id })); asked.set(id, performance.now()); } catch { continue; }
    }
    const own = facts.get(state.id);
    if (!own) return;
    const metrics = state.metric ? [state.metric] : own.metrics, due = metrics.filter((metric) => !charts.has(metric) || charts.get(metric).visible || !drawn.has(metric));
    for (const metric of due) drawn.add(metric);
    await Promise.all(ids.map((id) => fetchCurves(id, due.flatMap((metric) => [["metrics.csv", metric], ...((facts.get(id)?.evaluations || []).includes(metric) ? [["evaluations.csv", metric]] : [])]))));
    if (state.view !== view) return;
    for (const metric of metrics) if (!charts.has(metric)) {
      const chart = new Chart(metric, { height: state.metric ? 480 : 230, onzoom: (range) => zoomed(metric, range), onseen: () => { drawn.delete(metric); load(chosen()); }, onopen: state.metric ? null : () => { state.metric = metric; show(); } });
      charts.set(metric, chart);
      grid.append(chart.root);
    }
    grid.classList.toggle("one", Boolean(state.metric));
    redraw(due);
  }

  async function fetchCurve(id, table, metric, range = charts.get(metric)?.range) {
    const query = { id, table, metric, x: state.x, points: state.metric ? 1200 : 240 };
    if (range) Object.assign(query, { first: range[0], last: range[1] });
    try {
      const found = await ask("/api/curve", query);
      if (query.x === state.x) data.set(`${id}|${table}|${metric}`, found); // an answer for the axis before would be drawn on the wrong one
    } catch { /* the next second asks again */ }
  }

  // All curves of a run in one answer; those that are zoomed are asked for one by one.
  async function fetchCurves(id, wanted) {
    const isZoomed = ([, metric]) => Boolean(charts.get(metric)?.range), together = wanted.filter((own) => !isZoomed(own)), x = state.x;
    const alone = wanted.filter(isZoomed).map(([table, metric]) => fetchCurve(id, table, metric));
    try {
      const found = together.length ? await ask("/api/curves", { id, x, points: state.metric ? 1200 : 240, curves: JSON.stringify(together) }) : [];
      if (x === state.x) together.forEach(([table, metric], i) => data.set(`${id}|${table}|${metric}`, found[i]));
    } catch { /* the next second asks again */ }
    await Promise.all(alone);
  }

  async function zoomed(metric, range) {
    await Promise.all(chosen().flatMap((id) => [fetchCurve(id, "metrics.csv", metric, range), fetchCurve(id, "evaluations.csv", metric, range)]));
    redraw();
  }

  function redraw(metrics = [...charts.keys()]) {
    const ids = chosen(), several = ids.length > 1, ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
    const entry = (shade, words) => el("span", {}, el("span", { class: "swatch", style: { background: shade } }), words), shadesOf = facts.get(state.id)?.colours || [];
    const legend = JSON.stringify([ids, ink, state.agents, shadesOf]);
    if (legend !== key.dataset.shown) key.replaceChildren(...(several ? ids.map((id, i) => entry(OVERLAY[i % OVERLAY.length], runOf(id).name)) : [entry(ink, "mean of the herd"), entry(EVALUATION, "evaluation (greedy), 95 %"),
      ...(state.agents && shadesOf.length > 1 ? shadesOf.slice(0, 20).map((shade, agent) => entry(colour(shade), `agent ${agent}`)) : []), shadesOf.length > 20 ? `and ${shadesOf.length - 20} more agents` : ""]));
    key.dataset.shown = legend;
    for (const metric of metrics) {
      const chart = charts.get(metric), series = [];
      ids.forEach((id, i) => {
        const own = data.get(`${id}|metrics.csv|${metric}`), tests = data.get(`${id}|evaluations.csv|${metric}`), shades = facts.get(id)?.colours || [];
        const tone = several ? OVERLAY[i % OVERLAY.length] : ink, name = several ? runOf(id).name : "mean of the herd";
        if (own) {
          if (state.agents && !several) own.agents.forEach((y, agent) => series.push({ name: `agent ${agent}`, colour: colour(shades[agent]), x: own.x, y: smooth(y, state.share), width: 1.1, opacity: .75 }));
          series.push({ name: `${name}, raw`, quiet: true, colour: tone, x: own.x, y: own.mean, width: 1, opacity: .25 });
          series.push({ name, main: true, colour: tone, x: own.x, y: smooth(own.mean, state.share), width: 2.2 });
        }
        if (tests && tests.x.length) series.push({ name: several ? `${name}, evaluation` : "evaluation (greedy)", colour: several ? tone : EVALUATION, x: tests.x, y: tests.mean, error: tests.error, dots: true });
      });
      chart.log = state.log;
      chart.set(series, state.x);
    }
  }

  const view = { update: load, choose: () => { drawn.clear(); load(chosen()); } };
  return view;
}

function timeView(panel) {
  const id = state.id, lanes = el("div", { class: "card" }), processes = el("div", { class: "card scroll" }), stats = el("div", { class: "stats" }), grid = el("div", { class: "charts" });
  const shares = new Chart("seconds spent per second", { legend: true }), rate = new Chart("episodes per second"), lag = new Chart("policy lag, versions", { legend: true });
  grid.append(shares.root, rate.root, lag.root);
  panel.replaceChildren(stats, lanes, grid, processes);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return { update: async (ids) => {
    if (!ids.includes(id)) return;
    const { columns, lanes: found, mfu, processes: own } = await ask("/api/system", { id });
    const wall = columns.wall_s || [], reach = Math.max(1, Math.round(wall.length / 40));
    const perSecond = (name) => wall.map((_, i) => { const own = columns[name] || [], a = Math.max(0, i - reach), b = Math.min(wall.length - 1, i + reach); return wall[b] > wall[a] && own[b] !== null ? (own[b] - own[a]) / (wall[b] - wall[a]) : null; });
    shares.set([["collect_wall_s", "collecting", "collect"], ["learn_wall_s", "learning", "learn"], ["collectors_waited_s", "collectors wait", "wait"], ["learners_waited_s", "learners wait", "move"], ["loop_waited_s", "loop waits", "film"]]
      .filter(([name]) => (columns[name] || []).some((value) => value > 0))
      .map(([name, title, kind]) => ({ name: title, main: true, colour: css(KIND_COLOURS[kind]), x: wall, y: perSecond(name), width: 2 })), "wall_s");
    rate.set([{ name: "episodes/s", main: true, colour: css("--blue"), x: wall, y: perSecond("episodes"), width: 2 }], "wall_s");
    lag.set([["lag_mean", "mean", "--blue"], ["lag_max", "largest", "--orange"]].map(([name, title, tone]) => ({ name: title, main: true, colour: css(tone), x: wall, y: columns[name] || [], width: 2 })), "wall_s");
    const lastOf = (name) => { const all = columns[name] || []; return all[all.length - 1]; };
    const cores = own.reduce((sum, process) => sum + (process.cores || 0), 0), memory = own.reduce((sum, process) => sum + process.bytes, 0);
    stats.replaceChildren(...[["versions published", short(lastOf("versions_published"), 7)], ["slots in use", short(lastOf("slots_used"))], ["episodes dropped", short(lastOf("episodes_dropped"))], ...Object.entries(mfu).map(([name, value]) => [`MFU, ${name}`, `${short(100 * value, 3)} %`]), ...(own.length ? [["cores in use", own.some((process) => process.cores !== null) ? cores.toFixed(2) : "–"], ["memory", bytes(memory)], ["processes", String(own.length)]] : [])]
      .map(([name, value]) => el("div", { class: "stat" }, el("b", {}, value), el("span", {}, name))));
    drawLanes(lanes, found);
    processes.replaceChildren(el("h3", {}, "Processes"), own.length ? el("table", {}, el("thead", {}, el("tr", {}, ["process", "cores", "processor time", "memory"].map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, own.map((process) => el("tr", {}, el("td", {}, `${process.pid}${process.first ? " (loop)" : ""}`), el("td", {}, process.cores === null ? "–" : process.cores.toFixed(2)), el("td", {}, span(process.cpu_s)), el("td", {}, bytes(process.bytes)))))) : el("p", { class: "note" }, "The run is not under way on this machine."));
  } };
}

function troubleView(panel) {
  const id = state.id;
  return { update: async (ids) => {
    if (!ids.includes(id)) return;
    const run = await ask("/api/run", { id }), counts = run.result.failures || {}, restarts = (Array.isArray(run.result.processes) ? run.result.processes : []).filter((own) => own.restarts);
    const text = JSON.stringify([run.failures, run.trouble, counts, restarts]);
    if (text === panel.dataset.shown) return;
    panel.dataset.shown = text;
    panel.replaceChildren(...[
      run.failures.length ? el("h3", {}, `Failed episodes${run.failures.length < (runOf(id)?.failures || 0) ? `, the newest ${run.failures.length} of ${runOf(id).failures}` : ""}`) : el("p", { class: "note" }, "No episode has failed."),
      ...run.failures.map((own) => el("article", { class: "failure" }, el("h3", {}, `Failure ${own.number}: ${own.message}`), el("p", { class: "soft" }, `worker ${own.worker}, ${own.purpose} episodes ${JSON.stringify(own.episodes)}, turn ${own.turn}`), el("div", { class: "command" }, el("code", {}, own.command), copyButton(own.command)), el("details", {}, el("summary", {}, "traceback"), el("pre", {}, own.traceback || "")))),
      run.trouble.length ? el("h3", {}, "What the run said") : null,
      run.trouble.length ? el("pre", {}, run.trouble.join("\n")) : null,
      run.trouble.length ? el("div", { class: "command" }, el("span", { class: "soft" }, run.commands.again.startsWith("remuda replay") ? "to play and learn it again" : "to train it again in one process"), el("code", {}, run.commands.again), copyButton(run.commands.again)) : null,
      Object.keys(counts).length ? el("p", {}, `Counted when it ended: ${Object.entries(counts).map(([name, value]) => `${name.replaceAll("_", " ")} ${Array.isArray(value) ? value.length : value}`).join(", ")}.`) : null,
      restarts.length ? el("p", {}, `Restarts: ${restarts.map((own) => `${own.name} ${own.restarts}`).join(", ")}.`) : null].filter(Boolean));
  } };
}

function flat(value, prefix = "") {
  if (value && typeof value === "object" && !Array.isArray(value)) return Object.entries(value).flatMap(([name, own]) => flat(own, prefix ? `${prefix}.${name}` : name));
  return [[prefix, Array.isArray(value) ? JSON.stringify(value) : String(value)]];
}

function planView(panel) {
  const onlyDifferent = el("input", { type: "checkbox", id: "different" });
  const said = el("p", { role: "status", class: "note" });
  const load = async () => {
    const ids = chosen(), runs = await Promise.all(ids.map((id) => ask("/api/run", { id }))), own = runs[0];
    const plans = runs.map((run) => new Map(flat(run.config))), names = [...new Set(plans.flatMap((plan) => [...plan.keys()]))];
    const differs = (name) => new Set(plans.map((plan) => plan.get(name))).size > 1;
    const rows = names.filter((name) => !onlyDifferent.checked || differs(name));
    const control = state.allowControl ? el("div", { class: "bar card" }, el("button", { type: "button", id: "stop", disabled: runOf(own.id)?.status !== "running", onclick: () => act("/api/stop", { id: own.id }) }, "save and stop"), more, el("button", { type: "button", id: "extend", disabled: runOf(own.id)?.status === "running", onclick: () => act("/api/extend", { id: own.id, total_episodes: Number(more.value) }) }, "extend")) : null;
    panel.replaceChildren(...[control, said, el("h3", {}, "Commands"), ...Object.entries(own.commands).filter(([name]) => name !== "again").map(([name, command]) => el("div", { class: "command" }, el("span", { class: "soft", style: { minWidth: "5rem" } }, name), el("code", {}, command), copyButton(command))),
      el("h3", {}, runs.length > 1 ? "Settings, and what differs" : "Settings"), runs.length > 1 ? el("label", { class: "soft" }, onlyDifferent, " only what differs") : null,
      el("div", { class: "scroll" }, el("table", { class: "words" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "setting"), ids.map((id) => el("th", { scope: "col" }, runOf(id)?.name ?? id)))), el("tbody", {}, rows.map((name) => el("tr", { class: runs.length > 1 && differs(name) ? "differs" : null }, el("th", { scope: "row" }, name), plans.map((plan) => el("td", {}, plan.get(name) ?? "–"))))))),
      el("h3", {}, "Notes"), el("pre", {}, own.notes.join("\n") || "none")].filter(Boolean));
  };
  const more = el("input", { type: "number", id: "more", min: 1, "aria-label": "episodes in all", value: 2 * (runOf(state.id)?.total || 1000) });
  const act = async (path, body) => {
    const { token } = await ask("/api/control");
    const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json", "X-Remuda-Control": token || "" }, body: JSON.stringify(body) });
    const content = await answer.json();
    said.textContent = content.said || content.error;
  };
  onlyDifferent.addEventListener("change", load);
  let shown = null;
  return { choose: load, update: async (ids) => { const now = JSON.stringify(chosen().map((id) => [id, runOf(id)?.status])); if (now !== shown && ids.length) { shown = now; await load(); } } };
}

// What is drawn on canvases and in charts has the colours of the theme before.
function repaint() {
  if (state.view) state.view.update(chosen());
  if (state.stage?.root.isConnected) state.stage.show(state.stage.index);
}

document.getElementById("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
  repaint();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
if (localStorage.getItem("theme")) document.documentElement.dataset.theme = localStorage.getItem("theme") === "dark" ? "dark" : "light";
filter.addEventListener("input", drawList);
addEventListener("hashchange", readAddress);
addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, textarea, [role=img]") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); filter.focus(); }
  if (state.id !== null && /^[1-5]$/.test(event.key)) goTo({ tab: Object.keys(TABS)[Number(event.key) - 1] });
  if (event.key === " " && state.tab === "herd" && state.stage && event.target.tagName !== "BUTTON") { event.preventDefault(); state.stage.toggle(); }
});
readAddress();
(async function live() {
  const began = performance.now();
  try { await refresh(); } catch (error) { console.warn(String(error)); }
  setTimeout(live, document.hidden ? 5000 : Math.max(300, EVERY_MS - (performance.now() - began)));
})();
