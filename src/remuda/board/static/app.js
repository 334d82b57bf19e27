// The board: a list of runs, and tabs about the chosen one. The server tells what has changed, and only that is drawn.
import { Chart, smooth } from "./charts.js";
import { ask, bytes, colour, copyButton, el, setAttribute, setText, short, span } from "./dom.js";
import { Stage } from "./film.js";
import { Follower } from "./follow.js";
import { drawLanes, KIND_COLOURS } from "./lanes.js";
import { studyView } from "./study.js";

const TABS = { herd: "Herd", curves: "Curves", time: "Where time goes", trouble: "What went wrong", plan: "Plan" };
const OVERLAY = ["#3b7dd8", "#e08a1e", "#23855c", "#b93a2d", "#8250b5", "#1aa0a8", "#b59a00", "#d6478f"];
const EVALUATION = "#d6336c";
const MAX_LISTED = 600, POINTS = 400, MANY_POINTS = 2000, SETTLE_MS = 200, PROGRESS_STEPS = 200;
const state = { runs: new Map(), studies: [], pages: [], watched: [], id: null, study: null, tab: "herd", others: new Set(), view: null, control: null, x: "episodes", share: 0.04, log: { x: false, y: false }, agents: true, metric: null };
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
  if (changed) { state.metric = null; show(); } else follow();
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
  const runs = [...state.runs.values()].filter((run) => wanted.every((word) => `${run.name} ${run.game} ${run.status} ${run.engine} ${run.learner}`.toLowerCase().includes(word)))
    .sort((a, b) => isRunning(b) - isRunning(a) || (isRunning(a) ? byName(a, b) : newest(a, b)));
  const list = document.getElementById("list"), focused = document.activeElement?.id;
  const nodes = runs.slice(0, MAX_LISTED).map(listed);
  if (runs.length > MAX_LISTED) nodes.push(el("p", { class: "note" }, `and ${runs.length - MAX_LISTED} more: filter them`));
  if (!runs.length) nodes.push(el("p", { class: "note" }, "No runs here yet. They appear as soon as they start."));
  if (nodes.length === list.children.length && nodes.every((node, i) => node === list.children[i])) return;
  list.replaceChildren(...nodes);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

// A run in the list: made once, then only what changed of it is written.
const known = new Map();
function listed(run) {
  if (!known.has(run.id)) known.set(run.id, makeListed(run, known.size));
  const { node, box, link, badge, facts, progress } = known.get(run.id), isChosen = run.id === state.id;
  setAttribute(node, "class", `run${isChosen ? " chosen" : ""}`);
  box.checked = state.others.has(run.id) || isChosen;
  box.disabled = isChosen;
  setAttribute(link, "href", `#${new URLSearchParams({ run: run.id, tab: state.tab, ...(state.others.size ? { with: [...state.others].join("|") } : {}) })}`);
  if (isChosen) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  setAttribute(badge, "class", `badge ${run.status}`);
  setText(badge, run.status);
  setText(facts, [run.failures ? counted(run.failures, "failure") : null, run.return === null ? null : `return ${short(run.return, 3)}`, run.agents ? counted(run.agents, "agent") : null, run.game, run.engine].filter(Boolean).join(" · "));
  progress.hidden = !(run.status === "running" && run.total);
  if (!progress.hidden) { // a bar of some 300 points needs no finer steps
    setAttribute(progress, "value", Math.floor(PROGRESS_STEPS * (run.episodes || 0) / run.total) / PROGRESS_STEPS);
    setAttribute(progress, "aria-label", `${run.episodes} of ${run.total} episodes`);
  }
  return node;
}

function makeListed(run, number) {
  const box = el("input", { type: "checkbox", id: `box-${number}`, "aria-label": `put ${run.name} into the curves`, onchange: () => { box.checked ? state.others.add(run.id) : state.others.delete(run.id); goTo({}); if (state.view?.choose) state.view.choose(); follow(); } });
  const link = el("a", { id: `run-${number}`, title: run.name }, el("bdi", {}, run.name)), badge = el("span", {}), facts = el("span", { class: "facts" }), progress = el("progress", { max: 1 });
  return { node: el("div", {}, box, link, badge, facts, progress), box, link, badge, facts, progress };
}

function drawStudies() {
  const links = state.pages.map((page) => el("li", {}, el("a", { href: `/page?${new URLSearchParams(page)}`, target: "_blank", rel: "noopener" }, page.id === "." ? page.file : `${page.id}/${page.file}`)));
  const studies = state.studies.map((study) => el("li", {}, el("a", { href: `#${new URLSearchParams({ study: study.id })}` }, study.id === "." ? "this folder" : study.id), ` (${study.kind})`));
  document.getElementById("studies").replaceChildren(...(studies.length ? [el("h3", {}, "Studies"), el("ul", {}, studies)] : []), ...(links.length ? [el("h3", {}, "Pages"), el("ul", {}, links)] : []));
}

const count = (value) => value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const runOf = (id) => state.runs.get(id);
const studyOf = (id) => id === null ? undefined : state.studies.find((study) => study.id === id);
const chosen = () => [state.id, ...state.others].filter((id, i, all) => all.indexOf(id) === i && runOf(id));

// What the server must tell of: the chosen runs, and the curves in sight.
const follower = new Follower(receive, () => { document.getElementById("live").textContent = "the board does not answer"; });
function follow(waitMs = 0) { follower.ask({ ids: state.study === null ? chosen() : [], ...(state.view?.wish ? state.view.wish() : {}) }, waitMs); }

// Everything that a line of the server changes is drawn at once: each picture that the browser makes costs as much as a chart.
function receive(news, wish) {
  if ("root" in news) setText(document.getElementById("root"), news.root);
  if ("control" in news) state.allowControl = news.control;
  for (const part of ["watched", "studies", "pages"]) if (part in news) state[part] = news[part];
  if (news.studies || news.pages) drawStudies();
  const before = new Map((news.runs || []).map((run) => [run.id, state.runs.get(run.id)]));
  for (const run of news.runs || []) state.runs.set(run.id, run);
  for (const id of news.gone || []) state.runs.delete(id);
  const running = [...state.runs.values()].filter((run) => run.status === "running");
  setText(document.getElementById("live"), `${counted(state.runs.size, "run")}, ${running.length} under way`);
  // Runs under way stay where they are in the list.
  const keepsOrder = !news.gone && !filter.value && [...before].every(([id, run]) => run?.status === "running" && runOf(id).status === "running");
  if (keepsOrder) for (const id of before.keys()) listed(runOf(id));
  else if (before.size || news.gone) drawList();
  if (!state.hasListed && state.runs.size) { state.hasListed = true; chooseFirst(); }
  if (state.follow && !state.id && running.length) goTo({ run: running.sort((a, b) => b.changed - a.changed)[0].id });
  if ((runOf(state.id) || studyOf(state.study)) && !state.view) { show(); return; }
  drawHead();
  if (!state.view) { follow(); return; }
  if (news.curves && state.view.receive) state.view.receive(news.curves, wish);
  const shown = new Set(state.view.ids ? state.view.ids() : chosen());
  const changed = [...before].filter(([id, run]) => shown.has(id) && hasChanged(run, runOf(id), state.view.needs)).map(([id]) => id);
  if (changed.length) state.view.update(changed).catch((error) => console.warn(String(error)));
}

// Whoever opens the board sees a run at once; on a phone, where the list fills the page, the list.
function chooseFirst() {
  const link = document.querySelector("#list a");
  if (link && !location.hash && !matchMedia("(max-width: 760px)").matches) location.replace(link.href);
}

// Whether any of the files that a tab shows has changed; `stamp` has a word for each of the watched ones.
function hasChanged(before, now, files) {
  if (!before || before.status !== now.status) return true;
  const [a, b] = [before.stamp.split("-"), now.stamp.split("-")];
  return state.watched.some((file, i) => files.includes(file) && a[i] !== b[i]);
}

let head = null;
const STATS = ["episodes", "mean return", "agent-steps/s", "trained for", "state", "failures"];
function makeHead() {
  head = STATS.map((name) => ({ name: el("span", {}, name), value: el("b", {}, "") }));
  return el("div", { class: "stats head" }, head.map(({ name, value }) => el("div", { class: "stat" }, value, " ", name)));
}

function drawHead() {
  const run = runOf(state.id);
  if (!run || !head) return;
  const rest = run.total && run.episodes && run.wall_s ? (run.total - run.episodes) / run.episodes * run.wall_s : null, isRunning = run.status === "running";
  const values = [count(run.episodes), short(run.return), short(run.steps_per_s), span(run.wall_s), isRunning ? span(rest) : run.status, String(run.failures)];
  values.forEach((value, i) => setText(head[i].value, value));
  setText(head[0].name, `of ${count(run.total)} episodes`);
  setText(head[4].name, isRunning ? "time left" : "state");
}

function show() {
  const run = runOf(state.id), study = studyOf(state.study);
  document.getElementById("layout").classList.toggle("chosen", Boolean(run || study)); // a phone shows a shorter list then
  if (study) {
    head = null;
    state.view = studyView(main, study, () => [...state.runs.values()], () => state.pages);
    document.title = `${study.id} · remuda board`;
    drawList();
    follow();
    state.view.update(state.view.ids());
    return;
  }
  if (!run) { state.view = null; head = null; if (state.id === null) main.replaceChildren(el("p", { class: "note" }, "Choose a run or a study. Those under way come first. Boxes put more runs into the same curves.")); drawList(); follow(); return; }
  const panel = el("section", { id: "panel", role: "tabpanel", "aria-labelledby": `tab-${state.tab}`, tabindex: -1 });
  const tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "about the run", onkeydown: (event) => {
    const names = Object.keys(TABS), at = names.indexOf(state.tab), step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) { event.preventDefault(); state.focusTab = true; goTo({ tab: names[(at + step + names.length) % names.length] }); }
  } }, Object.entries(TABS).map(([name, title]) => el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(name === state.tab), "aria-controls": "panel", tabindex: name === state.tab ? 0 : -1, onclick: () => { state.focusTab = true; goTo({ tab: name }); } }, title)));
  main.replaceChildren(el("h2", { id: "title", style: { marginTop: ".2rem" } }, run.name), makeHead(), tabs, panel);
  document.title = `${run.name} · remuda board`;
  state.view = { herd: herdView, curves: curvesView, time: timeView, trouble: troubleView, plan: planView }[state.tab](panel);
  drawHead();
  drawList();
  revealChosen();
  if (state.focusTab) { state.focusTab = false; document.getElementById(`tab-${state.tab}`).focus(); }
  follow();
  state.view.update(chosen());
}

// The list may be long; only it is scrolled, not the page.
function revealChosen() {
  const list = document.getElementById("runs"), row = list.querySelector(".run.chosen");
  if (!row) return;
  const [around, own] = [list.getBoundingClientRect(), row.getBoundingClientRect()];
  if (own.top < around.top || own.bottom > around.bottom) list.scrollTop += own.top - around.top - around.height / 2;
}

function herdView(panel) {
  const id = state.id, stage = new Stage(id, () => [...state.runs.values()].some((run) => run.status === "running")), note = el("p", { class: "note" }, "No film. Evaluations leave films as training goes on; with pictures=false, and in games without a scene or picture, there are none.");
  panel.replaceChildren(note, stage.root);
  state.stage = stage;
  return { needs: ["films"], update: async (ids) => {
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
  const axis = el("select", { id: "axis", onchange: () => { state.x = axis.value; for (const chart of charts.values()) chart.range = null; data.clear(); follow(); } }, [["episodes", "episodes"], ["agent_steps", "agent steps"], ["wall_s", "time"]].map(([value, text]) => el("option", { value, selected: value === state.x }, text)));
  panel.replaceChildren(el("div", { class: "bar" }, el("label", {}, "against ", axis), el("label", {}, "smoothing ", smoothing),
    check("agents", "each agent", () => state.agents, (on) => { state.agents = on; }), check("logx", "log x", () => state.log.x, (on) => { state.log.x = on; }), check("logy", "log y", () => state.log.y, (on) => { state.log.y = on; }),
    el("button", { type: "button", id: "back", hidden: !state.metric, onclick: () => { state.metric = null; show(); } }, "all metrics")), key, grid);
  const data = new Map(), facts = new Map(), keyOf = (id, table, metric) => `${id}|${table}|${metric}`;

  // Metrics and colours of the chosen runs, then a chart for each metric; its curves come by themselves.
  async function load(ids) {
    const asked = ids.filter((id) => !facts.get(id)?.metrics.length || facts.get(id).agents !== runOf(id)?.agents);
    for (const id of asked) try { const agents = runOf(id)?.agents; facts.set(id, { ...await ask("/api/run", { id }), agents }); } catch { continue; }
    const own = facts.get(state.id);
    if (state.view !== view || !own) return;
    for (const metric of state.metric ? [state.metric] : own.metrics) if (!charts.has(metric)) {
      const chart = new Chart(metric, { height: state.metric ? 480 : 230, onzoom: (range) => zoomed(metric, range), onseen: () => follow(SETTLE_MS), onopen: state.metric ? null : () => { state.metric = metric; show(); } });
      charts.set(metric, chart);
      grid.append(chart.root);
    }
    grid.classList.toggle("one", Boolean(state.metric));
    if (asked.length) redraw();
    follow(SETTLE_MS);
  }

  // Charts out of sight are drawn once, and again when they are seen.
  function wish() {
    const isDrawn = (metric) => chosen().every((id) => data.has(keyOf(id, "metrics.csv", metric)));
    const metrics = [...charts.keys()].filter((metric) => charts.get(metric).visible || !isDrawn(metric));
    return { x: state.x, points: state.metric ? MANY_POINTS : POINTS, metrics,
      once: metrics.filter((metric) => !charts.get(metric).visible), ranges: Object.fromEntries(metrics.filter((metric) => charts.get(metric).range).map((metric) => [metric, charts.get(metric).range])) };
  }

  // A part of a curve takes the place of what was there from its first point on.
  function receive(curves, asked) {
    if (asked.x !== state.x) return;
    const changed = new Set();
    for (const { id, table, metric, ...part } of curves) {
      if (String(asked.ranges[metric]) !== String(charts.get(metric)?.range ?? undefined)) continue; // of the range before
      const key = keyOf(id, table, metric), before = data.get(key), join = (old, own) => old.slice(0, part.from).concat(own);
      data.set(key, part.from && before ? { ...part, x: join(before.x, part.x), mean: join(before.mean, part.mean), error: join(before.error, part.error), agents: part.agents.map((own, agent) => join(before.agents[agent] || [], own)) } : part);
      changed.add(metric);
    }
    redraw([...changed].filter((metric) => charts.has(metric)));
  }

  async function fetchCurve(id, table, metric, range) {
    const query = { id, table, metric, x: state.x, points: state.metric ? MANY_POINTS : POINTS };
    if (range) Object.assign(query, { first: range[0], last: range[1] });
    try {
      const found = await ask("/api/curve", query);
      if (query.x === state.x && charts.get(metric).range === range) data.set(keyOf(id, table, metric), found); // else it is of an axis or a range before
    } catch { /* it comes with the next change */ }
  }

  async function zoomed(metric, range) {
    await Promise.all(chosen().flatMap((id) => [fetchCurve(id, "metrics.csv", metric, range), fetchCurve(id, "evaluations.csv", metric, range)]));
    redraw([metric]);
    follow(SETTLE_MS);
  }

  function redraw(metrics = [...charts.keys()]) {
    const ids = chosen(), several = ids.length > 1, ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
    const entry = (shade, words) => el("span", {}, el("span", { class: "swatch", style: { background: shade } }), words), shadesOf = facts.get(state.id)?.colours || [];
    const modes = new Set(ids.map((id) => facts.get(id)?.config.evaluate_mode || "greedy"));
    const evaluated = `evaluation${modes.size > 1 ? "" : ` (${[...modes][0]})`}`;
    const isEvaluated = [...charts.keys()].some((metric) => data.get(keyOf(ids[0], "evaluations.csv", metric))?.x.length);
    const legend = JSON.stringify([ids, ink, state.agents, shadesOf, isEvaluated, evaluated]);
    if (legend !== key.dataset.shown) key.replaceChildren(...(several ? [...ids.map((id, i) => entry(OVERLAY[i % OVERLAY.length], runOf(id).name)), isEvaluated ? `dots: ${evaluated}, 95 %` : ""] : [entry(ink, shadesOf.length > 1 ? "mean of the herd" : "the agent"), isEvaluated ? entry(EVALUATION, `${evaluated}, 95 %`) : "",
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
        if (tests && tests.x.length) series.push({ name: several ? `${name}, evaluation` : evaluated, colour: several ? tone : EVALUATION, x: tests.x, y: tests.mean, error: tests.error, dots: true });
      });
      chart.log = state.log;
      chart.set(series, state.x);
    }
  }

  const view = { needs: ["config.yaml"], wish, receive, repaint: () => redraw(), update: async (ids) => { if (ids.length) await load(ids); }, choose: () => { redraw(); load(chosen()); } };
  return view;
}

function timeView(panel) {
  const id = state.id, lanes = el("div", { class: "card" }), processes = el("div", { class: "card scroll" }), stats = el("div", { class: "stats" }), grid = el("div", { class: "charts" });
  const shares = new Chart("seconds per second", { legend: true }), rate = new Chart("episodes per second"), lag = new Chart("policy lag, versions", { legend: true });
  grid.append(shares.root, rate.root, lag.root);
  const mfuNote = el("p", { class: "note", hidden: true }, "MFU above 100 %: it counts plain dense products, and this run needed fewer.");
  panel.replaceChildren(stats, mfuNote, lanes, grid, processes);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return { needs: ["system.csv", "result.json", "lanes"], update: async (ids) => {
    if (!ids.includes(id)) return;
    const { columns, lanes: found, mfu, processes: own } = await ask("/api/system", { id });
    const wall = columns.wall_s || [], reach = Math.max(1, Math.round(wall.length / 40));
    const perSecond = (name) => wall.map((_, i) => { const own = columns[name] || [], a = Math.max(0, i - reach), b = Math.min(wall.length - 1, i + reach); return wall[b] > wall[a] && own[b] !== null ? (own[b] - own[a]) / (wall[b] - wall[a]) : null; });
    shares.set([["collect_cpu_s", "collecting (processor)", "collect"], ["learn_cpu_s", "learning (processor)", "learn"], ["collectors_waited_s", "collectors wait", "wait"], ["learners_waited_s", "learners wait", "move"], ["loop_waited_s", "loop waits", "film"]]
      .filter(([name]) => (columns[name] || []).some((value) => value > 0))
      .map(([name, title, kind]) => ({ name: title, main: true, colour: css(KIND_COLOURS[kind]), x: wall, y: perSecond(name), width: 2 })), "wall_s");
    rate.set([{ name: "episodes/s", main: true, colour: css("--blue"), x: wall, y: perSecond("episodes"), width: 2 }], "wall_s");
    lag.set([["lag_mean", "mean", "--blue"], ["lag_max", "largest", "--orange"]].map(([name, title, tone]) => ({ name: title, main: true, colour: css(tone), x: wall, y: columns[name] || [], width: 2 })), "wall_s");
    const lastOf = (name) => { const all = columns[name] || []; return all[all.length - 1]; };
    const cores = own.reduce((sum, process) => sum + (process.cores || 0), 0), memory = own.reduce((sum, process) => sum + process.bytes, 0);
    stats.replaceChildren(...[["versions published", short(lastOf("versions_published"), 7)], ["slots in use", short(lastOf("slots_used"))], ["episodes dropped", short(lastOf("episodes_dropped"))], ...Object.entries(mfu).map(([name, value]) => [`MFU, ${name}`, `${short(100 * value, 3)} %`]), ...(own.length ? [["cores in use", own.some((process) => process.cores !== null) ? cores.toFixed(2) : "–"], ["memory", bytes(memory)], ["processes", String(own.length)]] : [])]
      .map(([name, value]) => el("div", { class: "stat" }, el("b", {}, value), el("span", {}, name))));
    mfuNote.hidden = !Object.values(mfu).some((share) => share > 1);
    drawLanes(lanes, found);
    processes.replaceChildren(el("h3", {}, "Processes"), own.length ? el("table", {}, el("thead", {}, el("tr", {}, ["process", "cores", "processor time", "memory"].map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, own.map((process) => el("tr", {}, el("td", {}, `${process.pid}${process.first ? " (loop)" : ""}`), el("td", {}, process.cores === null ? "–" : process.cores.toFixed(2)), el("td", {}, span(process.cpu_s)), el("td", {}, bytes(process.bytes)))))) : el("p", { class: "note" }, "The run is not under way on this machine."));
  } };
}

function troubleView(panel) {
  const id = state.id;
  return { needs: ["failures", "console.log", "result.json"], update: async (ids) => {
    if (!ids.includes(id)) return;
    const run = await ask("/api/run", { id }), all = Object.entries(run.result.failures || {}).map(([name, value]) => [name.replaceAll("_", " "), Array.isArray(value) ? value.length : value]), counts = all.filter(([, number]) => number), restarts = (Array.isArray(run.result.processes) ? run.result.processes : []).filter((own) => own.restarts);
    const text = JSON.stringify([run.failures, run.trouble, all, restarts]);
    if (text === panel.dataset.shown) return;
    panel.dataset.shown = text;
    panel.replaceChildren(...[
      run.failures.length ? el("h3", {}, `Failed episodes${run.failures.length < (runOf(id)?.failures || 0) ? `, the newest ${run.failures.length} of ${runOf(id).failures}` : ""}`) : el("p", { class: "note" }, "No episode has failed."),
      ...run.failures.map((own) => el("article", { class: "failure" }, el("h3", {}, `Failure ${own.number}: ${own.message}`), el("p", { class: "soft" }, `worker ${own.worker}, ${own.purpose} episodes ${JSON.stringify(own.episodes)}, turn ${own.turn}`), el("div", { class: "command" }, el("code", {}, own.command), copyButton(own.command)), el("details", {}, el("summary", {}, "traceback"), el("pre", {}, own.traceback || "")))),
      run.trouble.length ? el("h3", {}, "What the run said") : null,
      run.trouble.length ? el("pre", {}, run.trouble.join("\n")) : null,
      run.trouble.length ? el("div", { class: "command" }, el("span", { class: "soft" }, run.commands.again.startsWith("remuda replay") ? "to play and learn it again" : "to train it again in one process"), el("code", {}, run.commands.again), copyButton(run.commands.again)) : null,
      all.length ? el("p", { class: "note" }, counts.length ? `Counted when it ended: ${counts.map(([name, number]) => `${name} ${number}`).join(", ")}.` : "When it ended, no episode had been given up or was invalid, and no update had been skipped.") : null,
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
    const control = state.allowControl ? el("div", { class: "bar card" }, el("button", { type: "button", id: "stop", disabled: runOf(own.id)?.status !== "running", onclick: () => act("/api/stop", { id: own.id }) }, "save and stop"), el("label", {}, "episodes in all ", more), el("button", { type: "button", id: "extend", disabled: runOf(own.id)?.status === "running", onclick: () => act("/api/extend", { id: own.id, total_episodes: Number(more.value) }) }, "extend")) : null;
    const focused = panel.contains(document.activeElement) && document.activeElement.id;
    panel.replaceChildren(...[control, said, el("h3", {}, "Commands"), ...Object.entries(own.commands).filter(([name]) => name !== "again").map(([name, command]) => el("div", { class: "command" }, el("span", { class: "soft", style: { minWidth: "5rem" } }, name), el("code", {}, command), copyButton(command))),
      el("h3", {}, runs.length > 1 ? "Settings, and what differs" : "Settings"), runs.length > 1 ? el("label", { class: "soft" }, onlyDifferent, " only what differs") : null,
      el("div", { class: "scroll" }, el("table", { class: "words" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "setting"), ids.map((id) => el("th", { scope: "col" }, runOf(id)?.name ?? id)))), el("tbody", {}, rows.map((name) => el("tr", { class: runs.length > 1 && differs(name) ? "differs" : null }, el("th", { scope: "row" }, name), plans.map((plan) => el("td", {}, plan.get(name) ?? "–"))))))),
      el("h3", {}, "Notes"), el("pre", {}, own.notes.join("\n") || "none")].filter(Boolean));
    if (focused) (panel.querySelector(`[id="${focused}"]:not(:disabled)`) || panel).focus(); // who uses the keyboard stays here
  };
  const more = el("input", { type: "number", id: "more", min: 1, value: 2 * (runOf(state.id)?.total || 1000) });
  const act = async (path, body) => {
    const { token } = await ask("/api/control");
    const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json", "X-Remuda-Control": token || "" }, body: JSON.stringify(body) });
    const content = await answer.json();
    said.textContent = content.said || content.error;
  };
  onlyDifferent.addEventListener("change", load);
  let shown = null;
  return { needs: ["config.yaml"], choose: load, update: async (ids) => { const now = JSON.stringify(chosen().map((id) => [id, runOf(id)?.status])); if (now !== shown && ids.length) { shown = now; await load(); } } };
}

// What is drawn on canvases and in charts has the colours of the theme before.
function repaint() {
  if (state.view?.repaint) state.view.repaint();
  else if (state.view) state.view.update(state.view.ids ? state.view.ids() : chosen());
  if (state.stage?.root.isConnected) state.stage.repaint();
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
  // Boxes and sliders take no letters: from them the keys lead on.
  if (event.target.closest("input:not([type=checkbox], [type=range]), select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); filter.focus(); }
  if (state.id !== null && /^[1-5]$/.test(event.key)) goTo({ tab: Object.keys(TABS)[Number(event.key) - 1] });
  if (event.key === " " && state.tab === "herd" && state.stage && !event.target.closest("button, input")) { event.preventDefault(); state.stage.toggle(); }
});
readAddress();
follow();
