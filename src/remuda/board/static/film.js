// Plays films: the grid, network or pictures of one episode on a canvas, several side by side with common controls.
import { ask, colour, el, setAttribute, setText, short } from "./dom.js";

const FACING = [[0, -1], [0, 1], [-1, 0], [1, 0]]; // up, down, left, right
const MAX_CELLS = 4_000_000, MIN_CELL = 4, MOST_SCALED = 3;
const MARGIN = 28, LINES_HIGH = 72; // kept free below a field, in points: the card's edge, and words about the turn
const REST_MS = 120_000; // a film that plays takes more than curves do: it rests when nobody has touched the page for so long
const WORDS_MS = 1000; // turn and scores while it plays: writing them with each picture cost a third of the whole
// A picture costs Chromium some 4 ms, however little of it has changed: few of them per second while something trains.
const SPEEDS = [2, 4, 8, 16, 32], USUAL_SPEED = 4, BUSY_PICTURES = 3;

export class Film {
  constructor(data) {
    this.data = data;
    this.turns = Array.isArray(data.turns) ? data.turns : [];
    this.kinds = (Array.isArray(data.kinds) ? data.kinds : []).map(([name, shade, shape]) => ({ name: String(name), colour: colour(shade), shape }));
    this.agents = (Array.isArray(data.agents) ? data.agents : []).map(String);
    this.colours = this.agents.map((_, i) => colour((data.colours || [])[i]));
    const size = Array.isArray(data.size) ? data.size.map(Number) : [];
    this.rows = size[0] || 0;
    this.cols = size[1] || 0;
    if (!(this.rows * this.cols <= MAX_CELLS)) this.rows = this.cols = 0;
    this.hasLines = this.turns.some((turn) => turn.lines?.length);
    this.grid = this.kinds.length > 0 && this.rows > 0;
    this.pictures = new Map();
    this.reset();
  }

  // What the legend explains: of a grid what is to be seen in the film besides the floor, of boxes everything.
  seen() {
    if (!this.grid) return this.kinds;
    const cells = new Set(), shades = new Set();
    for (const turn of this.turns) {
      for (const [, kind] of turn.cells || []) cells.add(kind);
      for (const [, , shade] of turn.beams || []) shades.add(colour(shade));
      for (const own of turn.agents || []) if (own[4]) shades.add(colour(own[4]));
    }
    return this.kinds.filter((kind, number) => number && (cells.has(number) || shades.has(kind.colour)));
  }

  get last() { return Math.max(0, this.turns.length - 1); }

  reset() {
    this.at = -1;
    this.cells = new Uint8Array(this.grid ? this.rows * this.cols : 0);
    this.above = new Map(); // beams and agents on the canvas, by cell
    this.boxes = [];
    this.forget();
  }

  // The next picture is drawn as a whole: the canvas shows something else.
  forget() { this.changed = null; }

  go(index) {
    const target = Math.max(0, Math.min(index, this.last));
    if (target < this.at) this.reset();
    while (this.at < target) {
      const turn = this.turns[++this.at];
      for (const [cell, kind] of turn.cells || []) if (cell >= 0 && cell < this.cells.length) { this.cells[cell] = kind; this.changed?.add(cell); }
      for (const [number, ...look] of turn.boxes || []) this.boxes[number] = look;
    }
    return this.turns[this.at];
  }

  // Only what differs from the picture before is drawn: of a film that stands at its end, nothing.
  draw(canvas, index, room) {
    const turn = this.go(index);
    if (!turn || (this.changed && this.drawn === this.at)) return;
    this.drawn = this.at;
    if (this.grid) this.drawGrid(canvas, turn, room);
    else if (this.kinds.length) this.drawBoxes(canvas, room);
    else this.drawPicture(canvas, turn, room);
  }

  drawGrid(canvas, turn, room) {
    const cell = Math.max(MIN_CELL, Math.floor(fitting(room, this.cols, this.rows)));
    const pen = this.prepare(canvas, this.cols * cell, this.rows * cell), above = new Map();
    const add = (row, col, thing) => { const at = row * this.cols + col; if (!above.has(at)) above.set(at, []); above.get(at).push(thing); };
    for (const [row, col, shade] of turn.beams || []) add(row, col, { beam: colour(shade) });
    for (const [number, row, col, facing, ring] of turn.agents || []) {
      add(row, col, { number, facing, ring });
      const [dx, dy] = FACING[facing] || [0, 0]; // a nose reaches into the next cell, which is drawn anew with it
      if (row + dy >= 0 && row + dy < this.rows && col + dx >= 0 && col + dx < this.cols) add(row + dy, col + dx, {});
    }
    const touched = this.changed ? new Set([...this.changed, ...this.above.keys(), ...above.keys()]) : this.cells.keys();
    for (const i of touched) if (i < this.cells.length) this.drawCell(pen, i, cell, above.get(i) || []);
    const agents = [...above].flatMap(([i, things]) => i < this.cells.length ? things.filter(({ number }) => number !== undefined).map((own) => [own, ...this.middle(i, cell)]) : []);
    for (const [{ number, ring }, ...place] of agents) agent(pen, number, this.colours[number] || "#888888", ...place, cell, ring);
    for (const [{ facing }, ...place] of agents) if (FACING[facing]) nose(pen, FACING[facing], ...place, cell);
    this.above = above;
    this.changed = new Set();
  }

  // A point of the canvas is one of the screen, so that the browser has nothing to scale.
  prepare(canvas, width, height) {
    const [wide, high] = [Math.max(1, Math.round(width)), Math.max(1, Math.round(height))];
    if (canvas.width !== wide || canvas.height !== high) {
      canvas.width = wide;
      canvas.height = high;
      canvas.style.width = `${wide / devicePixelRatio}px`;
      this.forget();
    }
    return canvas.getContext("2d", { alpha: false });
  }

  middle(i, cell) { return [(i % this.cols + .5) * cell, (Math.floor(i / this.cols) + .5) * cell]; }

  drawCell(pen, i, cell, things) {
    const kind = this.kinds[this.cells[i]] || this.kinds[0], isGround = kind.shape === "cell";
    const x = (i % this.cols) * cell, y = Math.floor(i / this.cols) * cell;
    pen.fillStyle = isGround ? kind.colour : this.kinds[0].colour;
    pen.fillRect(x, y, cell, cell);
    pen.lineWidth = 1;
    if (cell >= 12) { pen.strokeStyle = "rgb(0 0 0 / 6%)"; pen.strokeRect(x + .5, y + .5, cell - 1, cell - 1); }
    for (const { beam } of things) if (beam) { pen.fillStyle = beam + "a5"; pen.fillRect(x, y, cell, cell); }
    if (!isGround) item(pen, kind, ...this.middle(i, cell), cell);
  }

  drawBoxes(canvas, room) {
    const columns = (this.data.columns || []).map(String), places = this.data.boxes || [];
    const most = Math.max(1, ...columns.map((_, c) => places.filter((place) => place[1] === c).length));
    // Narrow boxes with large letters: two networks stand side by side on a laptop, each of them reduced to a third of the screen.
    const width = 168, height = 60, gap = 10, step = width + 14, wide = columns.length * step + 4, high = 34 + most * (height + gap);
    const scale = Math.min(devicePixelRatio, fitting(room, wide, high)), pen = this.prepare(canvas, wide * scale, high * scale), style = getComputedStyle(document.documentElement);
    const card = style.getPropertyValue("--card"), used = columns.map(() => 0);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.textBaseline = "middle";
    if (!this.changed) {
      this.looks = [];
      pen.fillStyle = card;
      pen.fillRect(0, 0, wide + 2, high + 2); // the last points of the canvas too, where its size was rounded
      columns.forEach((name, column) => text(pen, name, 8 + column * step, 16, style.getPropertyValue("--ink"), 17));
    }
    places.forEach(([name, column], index) => {
      if (!(column in used)) return;
      const look = this.boxes[index] || [0, 0, "", []], seen = JSON.stringify(look);
      const x = 8 + column * step, y = 32 + used[column]++ * (height + gap);
      if (this.looks[index] === seen) return;
      this.looks[index] = seen;
      pen.fillStyle = card;
      pen.fillRect(x - 4, y - 4, width + 8, height + 8);
      pen.fillStyle = (this.kinds[look[0]] || this.kinds[0]).colour;
      pen.strokeStyle = (this.kinds[look[1]] || this.kinds[0]).colour;
      pen.lineWidth = 4;
      pen.beginPath(); pen.roundRect(x, y, width, height, 8); pen.fill(); pen.stroke();
      text(pen, String(name), x + 11, y + 18, "#1d2733", 17);
      let right = x + width - 8;
      for (const [mark, shade] of [...(look[3] || [])].reverse()) {
        pen.font = "600 14px system-ui";
        const wide = Math.max(22, pen.measureText(String(mark)).width + 10);
        pen.fillStyle = colour(shade);
        pen.beginPath(); pen.roundRect(right - wide, y + 32, wide, 22, 5); pen.fill();
        pen.textAlign = "center"; text(pen, String(mark), right - wide / 2, y + 43, "#ffffff", 14, "600"); pen.textAlign = "left";
        right -= wide + 4;
      }
      if (look[2]) text(pen, String(look[2]), x + 11, y + 43, "#1e6e3c", 14, "400", Math.max(20, right - x - 13)); // squeezed where there is little room
    });
    this.changed = new Set();
  }

  drawPicture(canvas, turn, room) {
    if (typeof turn.picture !== "string" || !/^[A-Za-z0-9+/=]*$/.test(turn.picture)) return;
    let image = this.pictures.get(turn.turn);
    if (!image) {
      image = new Image();
      image.src = `data:image/png;base64,${turn.picture}`;
      this.pictures.set(turn.turn, image);
    }
    const show = () => {
      const wide = image.naturalWidth || 1, high = image.naturalHeight || 1, scale = Math.min(MOST_SCALED * devicePixelRatio, fitting(room, wide, high));
      const pen = this.prepare(canvas, wide * scale, high * scale);
      pen.imageSmoothingEnabled = wide > 100;
      pen.drawImage(image, 0, 0, canvas.width, canvas.height);
      this.changed = new Set();
    };
    if (image.complete) show(); else image.onload = () => { if (this.turns[this.drawn] === turn) show(); };
  }
}

// How many times larger a picture can be shown in a room, in points of the screen.
function fitting(room, width, height) { return Math.min(room.wide / width, room.high / height) * devicePixelRatio; }

function text(pen, words, x, y, shade, size, weight = "400", most = undefined) {
  pen.font = `${weight} ${size}px system-ui, sans-serif`;
  pen.fillStyle = shade;
  pen.fillText(words, x, y, most);
}

// Items have a dark edge and agents a white one, so that an apple is no agent although both are green.
function item(pen, kind, x, y, cell) {
  const reach = cell * .3, edge = () => { pen.fill(); pen.strokeStyle = "rgb(0 0 0 / 40%)"; pen.lineWidth = Math.max(1, cell / 24); pen.stroke(); };
  pen.fillStyle = pen.strokeStyle = kind.colour;
  pen.beginPath();
  if (kind.shape === "disc") { pen.arc(x, y, reach, 0, 7); edge(); }
  else if (kind.shape === "diamond") { pen.moveTo(x, y - reach * 1.2); pen.lineTo(x + reach, y); pen.lineTo(x, y + reach * 1.2); pen.lineTo(x - reach, y); pen.closePath(); edge(); }
  else if (kind.shape === "frame") { pen.lineWidth = Math.max(1.5, cell / 7); pen.strokeRect(x - reach, y - reach, 2 * reach, 2 * reach); }
  else { pen.lineWidth = Math.max(1.5, cell / 7); pen.moveTo(x - reach, y - reach); pen.lineTo(x + reach, y + reach); pen.moveTo(x - reach, y + reach); pen.lineTo(x + reach, y - reach); pen.stroke(); }
}

// A kind in the legend, in the shape it has on the field.
function sign(kind) {
  const shape = ["disc", "diamond", "cross", "frame"].includes(kind.shape) ? kind.shape : "cell";
  return el("span", { class: `swatch ${shape}`, style: shape === "frame" ? { borderColor: kind.colour } : shape === "cross" ? { color: kind.colour } : { background: kind.colour } }, shape === "cross" ? "✖" : null);
}

function agent(pen, number, shade, x, y, cell, ring) {
  const line = Math.max(1, cell / (ring ? 8 : 20));
  pen.fillStyle = shade; pen.strokeStyle = ring ? colour(ring) : "#ffffff"; pen.lineWidth = line;
  pen.beginPath(); pen.arc(x, y, cell * .46 - line / 2, 0, 7); pen.fill(); pen.stroke();
  if (cell >= 12) { pen.textAlign = "center"; pen.textBaseline = "middle"; text(pen, String(number), x, y + cell * .03, "#ffffff", Math.round(cell * .54 * (number < 100 ? 1 : .72)), "600"); pen.textAlign = "left"; }
}

// Where an agent faces, over whatever is in the next cell.
function nose(pen, [dx, dy], x, y, cell) {
  const tip = cell * .74, base = cell * .36, side = cell * .26;
  pen.fillStyle = "#1d2733"; pen.strokeStyle = "#ffffff"; pen.lineWidth = Math.max(1, cell / 24); pen.lineJoin = "round";
  pen.beginPath(); pen.moveTo(x + dx * tip, y + dy * tip);
  pen.lineTo(x + dx * base + dy * side, y + dy * base + dx * side); pen.lineTo(x + dx * base - dy * side, y + dy * base - dx * side); pen.closePath(); pen.fill(); pen.stroke();
}

// The stage: an earlier version on the left, a later one on the right, both at the same turn.
export class Stage {
  constructor(run, isBusy = () => false) {
    this.run = run;
    this.isBusy = isBusy; // whether a run is under way, from which nothing is to be taken
    this.index = 0;
    this.playing = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.gone = new AbortController();
    this.sides = [this.side("before"), this.side("now")];
    this.play = el("button", { type: "button", id: "play", onclick: () => this.toggle() });
    this.speed = el("select", { id: "speed", "aria-label": "turns per second" }, SPEEDS.map((n) => el("option", { value: n, selected: n === USUAL_SPEED }, `${n} turns/s`)));
    this.scrub = el("input", { type: "range", id: "scrub", min: 0, max: 0, value: 0, "aria-label": "turn", style: { flex: "1", minWidth: "8rem" }, oninput: () => { this.playing = false; this.show(Number(this.scrub.value)); } });
    this.turn = el("span", { class: "soft", id: "turn" });
    this.legend = el("div", { class: "legend" });
    this.root = el("div", {}, el("div", { class: "bar" }, this.play, this.scrub, this.turn, this.speed), this.legend, el("div", { class: "stage" }, this.sides.map((side) => side.root)));
    const listen = (events, then) => events.forEach((name) => document.addEventListener(name, then, { signal: this.gone.signal, passive: true }));
    listen(["visibilitychange"], () => this.schedule());
    listen(["pointermove", "pointerdown", "keydown", "wheel"], () => { this.touched = performance.now(); if (this.resting) this.schedule(); });
    this.touched = performance.now();
    this.look();
  }

  // Observers tell size and sight: asking for them at each turn makes the browser lay out the page twice more.
  look() {
    const sizes = new ResizeObserver((entries) => {
      if (this.isGone(sizes, sights)) return;
      for (const { target, contentRect } of entries) this.sideOf(target).wide = Math.max(120, contentRect.width);
      this.fit();
    });
    const sights = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) this.sideOf(target).isSeen = isIntersecting;
      if (this.isGone(sizes, sights)) return;
      this.show(this.index);
      this.schedule();
    });
    for (const { root } of this.sides) for (const observer of [sizes, sights]) observer.observe(root);
    addEventListener("resize", () => this.fit(), { signal: this.gone.signal }); // a window that is only less high changes no figure's size
  }

  // Whether another tab is shown; then nobody looks any more.
  isGone(...observers) {
    if (this.root.isConnected) return false;
    for (const observer of observers) observer.disconnect();
    this.gone.abort();
    clearTimeout(this.timer);
    return true;
  }

  fit() {
    for (const side of this.sides) {
      const room = { wide: side.wide, high: this.heightOf(side) };
      if (side.wide && (side.room?.wide !== room.wide || side.room.high !== room.high)) { side.room = room; side.film?.forget(); }
    }
    this.show(this.index);
  }

  // What is left of the window below the controls; where that is little, as on a phone, a part of the window.
  heightOf({ canvas, film }) {
    const above = canvas.getBoundingClientRect().top + scrollY, below = film?.hasLines ? LINES_HIGH : MARGIN;
    return Math.max(120, innerHeight * .42, innerHeight - above - below);
  }

  repaint() {
    for (const { film } of this.sides) film?.forget();
    this.show(this.index);
  }

  get pictures() { return Math.min(Number(this.speed.value), this.isBusy() ? BUSY_PICTURES : Infinity); }

  sideOf(root) { return this.sides.find((side) => side.root === root); }

  // A timer and not every frame of the screen; none while the film stands still or nobody sees it: a page that waits costs nothing.
  schedule() {
    clearTimeout(this.timer);
    this.resting = performance.now() - this.touched > REST_MS;
    if (this.resting) setText(this.turn, "rests until the page is touched");
    else if (this.playing && !document.hidden && this.sides.some((side) => side.isSeen)) this.timer = setTimeout(() => {
      this.step();
      this.schedule();
    }, 1000 / this.pictures);
  }

  side(name) {
    const canvas = el("canvas", { role: "img", width: 300, height: 200, id: `film-${name}` });
    const choose = el("select", { "aria-label": `version shown ${name}`, id: `version-${name}`, onchange: () => this.load(side, choose.value) });
    const scores = el("ul", { class: "scores", "aria-label": `return so far, ${name}` });
    const lines = el("div", { class: "soft mono lines" });
    const side = { name, canvas, choose, scores, lines, film: null, wide: 0, room: null, isSeen: false, root: el("figure", { class: "card" }, el("figcaption", { class: "bar" }, el("b", {}, name), choose), scores, canvas, lines) };
    return side;
  }

  // The films there are, by episodes trained; a side that shows the newest follows it.
  async offer(films) {
    if (!films.length) return;
    const wanted = [films[0], films[films.length - 1]];
    this.sides[0].root.hidden = films.length < 2; // the same film twice says nothing
    for (const [i, side] of this.sides.entries()) {
      const shown = Number(side.choose.value), follows = side.film === null || (i === 1 && shown === this.newest);
      side.choose.replaceChildren(...films.map((n) => el("option", { value: n }, n === 0 ? "untrained" : `${n.toLocaleString("en")} episodes`)));
      const target = follows || !films.includes(shown) ? wanted[i] : shown;
      side.choose.value = String(target);
      if (side.film === null || target !== shown) await this.load(side, target);
    }
    this.newest = films[films.length - 1];
  }

  async load(side, episodes) {
    try { side.film = new Film(await ask("/api/film", { id: this.run, episodes })); } catch { return; }
    const kinds = new Map(this.sides.flatMap((own) => own.film ? own.film.seen() : []).map((kind) => [kind.name, kind]));
    this.legend.replaceChildren(...[...kinds.values()].map((kind) => el("span", {}, sign(kind), kind.name)));
    this.scrub.max = Math.max(...this.sides.map((own) => own.film ? own.film.last : 0));
    this.show(this.index);
  }

  toggle() { this.playing = !this.playing; if (this.playing && this.index >= Number(this.scrub.max)) this.index = 0; this.show(this.index); this.schedule(); }

  step() {
    if (!this.playing) return;
    const end = Number(this.scrub.max);
    if (!end) return;
    this.pause = this.index >= end ? (this.pause || 0) + 1 : 0;
    const next = this.pause > 8 ? 0 : Math.min(end, this.index + Math.round(Number(this.speed.value) / this.pictures)), isDue = performance.now() - this.worded >= WORDS_MS - 5;
    this.show(next, isDue || (next === end && next !== this.index));
  }

  show(index, withWords = true) {
    this.index = index;
    for (const { film, canvas, room, isSeen } of this.sides) if (film && room && (isSeen || !film.changed)) film.draw(canvas, index, room);
    if (withWords) this.write(index);
  }

  // Turn, scores and what a screen reader is told.
  write(index) {
    this.worded = performance.now();
    this.scrub.value = String(index);
    setText(this.play, this.playing ? "❚❚ pause" : "▶ play");
    for (const side of this.sides) {
      if (!side.film) continue;
      const turn = side.film.turns[Math.min(index, side.film.last)] || {}, scores = turn.scores || [];
      const total = scores.reduce((sum, own) => sum + own, 0);
      setAttribute(side.canvas, "aria-label", `${side.film.data.game}, ${side.name}, turn ${turn.turn}, return of the herd ${short(total)}`);
      this.fill(side, scores, total, turn.agents && new Set(turn.agents.map(([number]) => number)));
      setText(side.lines, (turn.lines || []).join("\n"));
      if (side.name === "now") setText(this.turn, `turn ${turn.turn} of ${(side.film.turns[side.film.last] || {}).turn}`);
    }
  }

  fill(side, scores, total, here) {
    const film = side.film, most = 12;
    if (side.rows !== film) {
      side.rows = film;
      side.cells = scores.slice(0, most).map(() => el("b"));
      side.total = el("b");
      side.scores.replaceChildren(...side.cells.map((cell, i) => el("li", {}, el("span", { class: "dot", style: { background: film.colours[i] } }, i), ` ${film.agents[i]} `, cell)),
        ...(scores.length > 1 ? [el("li", {}, `herd of ${scores.length} `, side.total)] : []));
    }
    side.cells.forEach((cell, i) => { setText(cell, (scores[i] ?? 0).toFixed(1)); cell.parentNode.classList.toggle("away", Boolean(here) && !here.has(i)); });
    setText(side.total, total.toFixed(1));
  }
}
