"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const POINTS = ["G", "L", "P"];
// From dark to light in even steps of lightness, also for colour-blind readers and in grey.
const SCALE = [[0, 32, 77], [65, 77, 107], [124, 123, 120], [188, 175, 111], [255, 234, 70]];
const LINES = [
  ["var(--g)", ""], ["var(--l)", "7 4"], ["var(--p)", "2 3"], ["var(--soft)", "10 3 2 3"],
  ["var(--mark)", "14 4"], ["var(--ink)", "4 2"],
];
const state = { run: 0, view: "P", node: 0, sort: { key: "name", up: true } };
let rows = [], nodes = [];

// ------------------------------------------------------------------------------------ elements

function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function draw(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);  // text stays text
  return element;
}

/** Shows a section with new content, or hides it if there is none. */
function put(id, content) {
  const section = document.getElementById(id);
  section.hidden = !content;
  section.querySelector(".host").replaceChildren(...(content || []));
}

function width() {
  return document.querySelector("main").clientWidth - 2 * parseFloat(getComputedStyle(document.querySelector("main")).paddingLeft);
}

function table(head, body) {
  const cells = (names) => names.map((name) => make("th", { scope: "col" }, name));
  const lines = body.map(([first, ...rest]) => make("tr", {},
    make("th", { scope: "row" }, first), ...rest.map((cell) => make("td", {}, cell))));
  const whole = make("table", {}, make("thead", {}, make("tr", {}, ...cells(head))), make("tbody", {}, ...lines));
  return make("div", { class: "box" }, whole);
}

// ------------------------------------------------------------------------------------- numbers

function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return text.replace(/-/g, "−");
}

function bytes(count) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; count >= 1000 && unit < 4; unit += 1) count /= 1000;
  return `${short(count)} ${units[unit]}`;
}

/** The score that the view shows, of a client; a gain is positive where P is better than L. */
function shown(run, i) {
  if (!run.scores) return null;
  if (state.view !== "gain") return run.scores[state.view][i];
  const [l, p] = [run.scores.L[i], run.scores.P[i]];
  return l === null || p === null ? null : run.higher ? p - l : l - p;
}

function withUnit(run) {
  return run.unit ? `${run.metric} (${run.unit})` : run.metric;
}

function meaning(run) {
  if (state.view === "gain") return `gain of P over L, ${withUnit(run)}; above 0, P is better`;
  return `test ${withUnit(run)} at ${state.view}; ${run.higher ? "higher" : "lower"} is better`;
}

function range(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? [Math.min(...known), Math.max(...known)] : [0, 0];
}

/** The range of colours: without the outer twentieths of many values, so that a few do not flatten the rest. */
function scaleRange(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  if (sorted.length < 20) return range(sorted);
  return [0.05, 0.95].map((q) => sorted[Math.round(q * (sorted.length - 1))]);
}

function share(value, [low, high]) {
  return high > low ? (value - low) / (high - low) : 0.5;
}

function colour(t) {
  const place = Math.min(Math.max(t, 0), 1) * (SCALE.length - 1);
  const low = Math.min(Math.floor(place), SCALE.length - 2);
  const mixed = SCALE[low].map((part, k) => Math.round(part + (place - low) * (SCALE[low + 1][k] - part)));
  return `rgb(${mixed.join(",")})`;
}

/** Round numbers between two numbers. */
function ticks(low, high, count) {
  const raw = (high - low || Math.abs(high) || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k += 1) found.push(Number((k * step).toPrecision(12)));
  return found;
}

// ----------------------------------------------------------------------------------------- map

function radius(run, t) {
  const small = run.clients.length > 150 ? 4 : run.clients.length > 70 ? 6 : 8.5;
  return (width() < 600 ? 0.65 : 1) * small * (0.65 + 0.75 * t);
}

function shape(client, x, y, r) {
  if (client.malicious) return `M${x} ${y - 1.3 * r}L${x + 1.25 * r} ${y + 0.9 * r}L${x - 1.25 * r} ${y + 0.9 * r}Z`;
  if (client.new) return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`;
  return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
}

function sample(client, t) {
  const run = DATA.runs[state.run];
  const path = draw("path", { d: shape(client, 14, 14, radius(run, t)), class: "sample", fill: colour(t), stroke: "var(--ink)" });
  return draw("svg", { width: 28, height: 28, "aria-hidden": "true" }, path);
}

function describe(run, i) {
  const client = run.clients[i];
  const parts = [];
  if (run.scores) {
    const scores = POINTS.map((point) => `${point} ${short(run.scores[point][i] === null ? null : run.scores[point][i] * run.factor)}`);
    parts.push(`${scores.join(", ")} ${run.unit ? `${run.unit} ` : ""}${run.metric}`);
  }
  const sizes = Object.entries(client.examples).map(([split, count]) => `${count} ${split}`);
  if (sizes.length) parts.push(`examples: ${sizes.join(", ")}`);
  if (run.map) parts.push(`${degree(run, i)} ${run.map.learned ? "learned " : ""}neighbours`);
  if (client.new) parts.push("new client");
  if (client.malicious) parts.push("malicious");
  return `${client.name}: ${parts.join("; ")}`;
}

function degree(run, i) {
  return run.map.edges.filter(([a, b]) => a === i || b === i).length;
}

function showMap(run) {
  nodes = [];
  if (!run.map) {
    put("map", [make("p", { class: "note" }, run.why_no_map)]);
    return;
  }
  const [W, pad] = [width(), 24];
  const xs = run.map.positions.map(([x]) => x), ys = run.map.positions.map(([, y]) => y);
  const [x0, x1] = range(xs), [y0, y1] = range(ys);
  const scale = Math.min((W - 2 * pad) / (x1 - x0 || 1), (600 - 2 * pad) / (y1 - y0 || 1));
  const H = (y1 - y0) * scale + 2 * pad, left = (W - (x1 - x0) * scale) / 2;
  const place = (i) => [left + (xs[i] - x0) * scale, pad + (y1 - ys[i]) * scale];
  const heaviest = Math.max(...run.map.edges.map(([, , weight]) => Math.abs(weight)), 0) || 1;
  const lightest = Math.min(...run.map.edges.map(([, , weight]) => Math.abs(weight)), heaviest);
  const thin = run.map.edges.length > 200 ? 0.35 : 1;
  const lines = run.map.edges.map(([a, b, weight]) => {
    const [[ax, ay], [bx, by]] = [place(a), place(b)];
    const thick = thin * (lightest < heaviest ? 0.5 + 3 * Math.abs(weight) / heaviest : 1.5);
    return draw("line", { class: "edge", x1: ax, y1: ay, x2: bx, y2: by, "stroke-width": thick.toFixed(2) });
  });
  nodes = run.clients.map((client, i) => draw("path", {
    class: "node", role: "img", "data-client": i, tabindex: i === state.node ? 0 : -1, "aria-label": describe(run, i),
  }));
  nodes.forEach((node, i) => {
    node.addEventListener("mouseenter", () => mark(i));
    node.addEventListener("focus", () => mark(i));
    node.addEventListener("keydown", (event) => step(event, i, place));
  });
  const whole = draw("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "Map of clients" });
  whole.append(...lines, ...nodes);
  const legend = make("div", { class: "legend" });
  put("map", [whole, legend, make("p", { class: "hint" }, mapText(run))]);
  whole.place = place;
  paintMap(run);
  search();
}

function mapText(run) {
  const lines = run.map.edges.length, same = new Set(run.map.edges.map(([, , weight]) => weight)).size < 2;
  const kind = run.map.learned ? "learned shares above 1/clients" : "relations";
  const where = run.map.axes ? `Positions are ${run.map.axes}.` : lines ? "Positions have no meaning: related clients are drawn near each other." : "There are no relations, and positions have no meaning.";
  const edges = lines ? `${lines} lines show ${run.map.relations} ${kind}, where the two directions are one line${same ? "" : "; thicker lines have larger weights"}. ` : "";
  return `${edges}${where} With the Tab key, enter the map, and move by the arrow keys.`;
}

/** Colours, sizes and legend of the view. */
function paintMap(run) {
  if (!run.map) return;
  const place = document.querySelector("#map svg").place;
  const values = run.clients.map((_, i) => shown(run, i)), between = scaleRange(values), [least, most] = range(values);
  nodes.forEach((node, i) => {
    const t = values[i] === null ? 0.5 : Math.min(Math.max(share(values[i], between), 0), 1);
    node.setAttribute("d", shape(run.clients[i], ...place(i), radius(run, t)));
    node.setAttribute("fill", values[i] === null ? "var(--paper)" : colour(t));
  });
  const items = [make("span", {}, meaning(run))];
  for (const t of run.scores ? [0, 0.5, 1] : []) {
    const value = between[0] + t * (between[1] - between[0]);
    const beyond = t === 0 && least < between[0] ? "≤ " : t === 1 && most > between[1] ? "≥ " : "";
    items.push(make("span", {}, sample({}, t), beyond + short(value * run.factor)));
  }
  if (run.clients.some((client) => client.new)) items.push(make("span", {}, sample({ new: true }, 0.5), "new client"));
  if (run.clients.some((client) => client.malicious)) items.push(make("span", {}, sample({ malicious: true }, 0.5), "malicious client"));
  document.querySelector("#map .legend").replaceChildren(...items);
}

/** Marks a client in the map and in the table, and shows its numbers. */
function mark(i, scroll = true) {
  const run = DATA.runs[state.run];
  for (const one of document.querySelectorAll(".marked")) one.classList.remove("marked");
  if (nodes[i]) nodes[i].classList.add("marked");
  rows[i].classList.add("marked");
  document.getElementById("reading").textContent = describe(run, i);
  const box = document.querySelector("#clients .box");
  if (scroll) box.scrollTop = rows[i].offsetTop - box.clientHeight / 2;
}

/** Moves the focus to the nearest client in the direction of an arrow key. */
function step(event, i, place) {
  const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const way = ways[event.key];
  if (!way) return;
  event.preventDefault();
  const [x, y] = place(i);
  let [best, least] = [i, Infinity];
  nodes.forEach((_, j) => {
    const [dx, dy] = [place(j)[0] - x, place(j)[1] - y];
    const along = dx * way[0] + dy * way[1], across = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
    if (along > 0 && along + 2 * across < least) [best, least] = [j, along + 2 * across];
  });
  focusOn(nodes, i, best);
  state.node = best;
}

/** Moves the one stop of the Tab key in a list of elements. */
function focusOn(elements, from, to) {
  elements[from].setAttribute("tabindex", -1);
  elements[to].setAttribute("tabindex", 0);
  elements[to].focus();
}

// ------------------------------------------------------------------------------------- clients

function kind(client) {
  return [client.new && "new", client.malicious && "malicious"].filter(Boolean).join(", ");
}

function columns(run) {
  const found = [{ key: "name", name: "client", of: (i) => run.clients[i].name }];
  for (const point of run.scores ? POINTS : []) found.push({ key: point, name: point, number: true, of: (i) => run.scores[point][i], factor: run.factor });
  if (run.scores) {
    const gain = (i) => (run.scores.P[i] === null ? null : (run.scores.P[i] - run.scores.L[i]) * (run.higher ? 1 : -1));
    found.push({ key: "gain", name: "gain", number: true, of: gain, factor: run.factor });
  }
  for (const split of Object.keys(run.clients[0]?.examples || {})) found.push({ key: `n ${split}`, name: split, number: true, wide: true, of: (i) => run.clients[i].examples[split] });
  if (run.map) found.push({ key: "degree", name: "neighbours", number: true, wide: true, of: (i) => degree(run, i) });
  if (run.clients.some((client) => client.new || client.malicious)) {
    found.push({ key: "kind", name: "kind", wide: true, of: (i) => kind(run.clients[i]) });
  }
  return found;
}

function showClients(run) {
  const list = columns(run);
  const style = (column) => ({ class: `${column.number ? "right" : ""} ${column.wide ? "wide" : ""}` });
  rows = run.clients.map((_, i) => {
    const cells = list.map((column, c) => {
      const value = column.of(i), text = column.number ? short(value === null ? null : value * (column.factor || 1)) : value;
      return make(c ? "td" : "th", { ...style(column), ...(c ? {} : { scope: "row" }) }, text);
    });
    const row = make("tr", { "data-client": i, tabindex: -1 }, ...cells);
    row.addEventListener("mouseenter", () => mark(i, false));
    row.addEventListener("focus", () => mark(i, false));
    row.addEventListener("keydown", (event) => stepRow(event, row));
    return row;
  });
  const heads = list.map((column) => {
    const button = make("button", { type: "button" }, column.name);
    button.addEventListener("click", () => sortBy(column));
    return make("th", { scope: "col", "data-key": column.key, ...style(column) }, button);
  });
  const whole = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
  const sizes = list.some((column) => column.wide) ? " train, test and val are numbers of examples." : "";
  const unit = run.scores ? `Test ${withUnit(run)} at G, L and P; gain is that of P over L, above 0 where P is better.` : "The run diverged, so there are no scores.";
  put("clients", [make("div", { class: "box" }, whole), make("p", { class: "hint" }, `${unit}${sizes} The buttons in the head sort; in the rows, move by the arrow keys.`)]);
  state.sort = { key: "", up: false };
  sortBy(list[0]);
  search();
}

function sortBy(column) {
  const up = state.sort.key === column.key ? !state.sort.up : true;
  state.sort = { key: column.key, up };
  const order = rows.map((_, i) => i).sort((a, b) => {
    const [first, second] = [column.of(a), column.of(b)];
    if (first === null || second === null) return (first === null) - (second === null);  // last
    const ahead = column.number ? first - second : String(first).localeCompare(String(second), "en", { numeric: true });
    return up ? ahead : -ahead;
  });
  const body = document.querySelector("#clients tbody");
  body.append(...order.map((i) => rows[i]));
  for (const head of document.querySelectorAll("#clients thead th")) {
    const own = head.dataset.key === column.key, button = head.querySelector("button");
    head.setAttribute("aria-sort", own ? (up ? "ascending" : "descending") : "none");
    button.textContent = button.textContent.replace(/ [▲▼]$/, "") + (own ? (up ? " ▲" : " ▼") : "");
  }
  firstRow();
}

/** The first visible row is the stop of the Tab key. */
function firstRow() {
  const visible = visibleRows();
  rows.forEach((row) => row.setAttribute("tabindex", row === visible[0] ? 0 : -1));
}

function visibleRows() {
  return [...document.querySelectorAll("#clients tbody tr")].filter((row) => !row.hidden);
}

function stepRow(event, row) {
  const way = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!way) return;
  event.preventDefault();
  const visible = visibleRows(), next = visible.indexOf(row) + way;
  if (visible[next]) focusOn(visible, next - way, next);
}

function search() {
  const text = document.getElementById("search").value.trim().toLowerCase();
  let count = 0;
  DATA.runs[state.run].clients.forEach((client, i) => {
    const found = client.name.toLowerCase().includes(text) || (text && kind(client).includes(text));
    count += Boolean(found);
    if (rows[i]) rows[i].hidden = !found;
    if (nodes[i]) nodes[i].classList.toggle("dim", !found);
  });
  document.getElementById("found").textContent = text ? `${count} of ${rows.length}` : "";
  if (rows.length) firstRow();
}

// -------------------------------------------------------------------------------------- figures

/** Lines with bands: series of {name, rows: [[x, mean, worst or null]]}. */
function lines(series, { x: xName, y: yName, factor }) {
  const [W, H, left, right, top, bottom] = [width(), 300, 58, 12, 10, 40];
  const all = series.flatMap((one) => one.rows);
  const ys = all.flatMap(([, mean, worst]) => [mean, worst]).filter((y) => y !== null).map((y) => y * factor);
  let [y0, y1] = range(ys);
  const log = y0 > 0 && y1 / y0 > 20;
  const bend = (y) => (log ? Math.log10(y) : y);
  const margin = 0.05 * (bend(y1) - bend(y0)) || 0.05 * Math.abs(bend(y1)) || 1;
  const low = bend(y0) - margin, high = bend(y1) + margin;
  const [x0, x1] = range(all.map(([x]) => x));
  const X = (x) => left + share(x, [x0, x1]) * (W - left - right);
  const Y = (y) => H - bottom - ((bend(y * factor) - low) / (high - low)) * (H - top - bottom);
  const whole = draw("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${yName} over ${xName}: ${series.map((one) => one.name).join(", ")}` });
  const marks = log ? powers(y0, y1) : ticks(y0, y1, 7);
  for (const y of marks) {
    whole.append(draw("line", { class: "axis", x1: left, x2: W - right, y1: Y(y / factor), y2: Y(y / factor) }));
    whole.append(draw("text", { x: left - 6, y: Y(y / factor) + 4, "text-anchor": "end" }, short(y)));
  }
  for (const x of ticks(x0, x1, Math.max(2, Math.floor(W / 80))).filter(Number.isInteger)) {
    whole.append(draw("text", { x: X(x), y: H - bottom + 18, "text-anchor": "middle" }, String(x)));
  }
  whole.append(draw("text", { x: (left + W - right) / 2, y: H - 6, "text-anchor": "middle" }, xName));
  series.forEach((one, k) => {
    const [stroke, dash] = LINES[k % LINES.length];
    const banded = one.rows.filter(([, , worst]) => worst !== null);
    const edge = [...banded.map(([x, mean]) => [X(x), Y(mean)]), ...banded.map(([x, , worst]) => [X(x), Y(worst)]).reverse()];
    if (banded.length) whole.append(draw("polygon", { points: edge.join(" "), fill: stroke, "fill-opacity": 0.1 }));
    whole.append(draw("polyline", { points: one.rows.map(([x, mean]) => [X(x), Y(mean)]).join(" "), fill: "none", stroke, "stroke-width": 2, "stroke-dasharray": dash }));
    for (const [x, mean, worst] of one.rows) {
      const text = `${one.name}, ${xName} ${x}: ${short(mean * factor)}${worst === null ? "" : `, worst tenth ${short(worst * factor)}`}`;
      whole.append(draw("circle", { cx: X(x), cy: Y(mean), r: 3, fill: stroke }, draw("title", {}, text)));
    }
  });
  const legend = series.map((one, k) => {
    const [stroke, dash] = LINES[k % LINES.length];
    const line = draw("line", { x1: 0, x2: 44, y1: 6, y2: 6, stroke, "stroke-width": 2, "stroke-dasharray": dash });
    return make("span", {}, draw("svg", { width: 44, height: 12, "aria-hidden": "true" }, line), one.name);
  });
  const head = make("div", { class: "legend" }, make("span", {}, yName + (log ? ", logarithmic" : "")), ...legend);
  return make("figure", {}, head, whole);
}

function powers(low, high) {
  const found = [];
  for (let k = Math.floor(Math.log10(low)); k <= Math.log10(high); k += 1) found.push(...[1, 2, 5].map((m) => m * 10 ** k));
  return found.filter((y) => y >= low && y <= high);
}

/** One series per point; points with the same scores are one. */
function pointSeries(list) {
  const series = [];
  for (const point of POINTS) {
    const own = list.filter((row) => row[point]).map((row) => [row.x, ...row[point]]);
    const same = series.find((one) => JSON.stringify(one.rows) === JSON.stringify(own));
    if (same) same.name += ` and ${point}`;
    else if (own.length) series.push({ name: point, rows: own });
  }
  return series;
}

/** The numbers of a figure as a table that can be opened. */
function numbers(series, xName, factor) {
  const xs = [...new Set(series.flatMap((one) => one.rows.map(([x]) => x)))].sort((a, b) => a - b);
  const cell = (one, x, k) => short((one.rows.find((row) => row[0] === x) || [])[k] * factor);
  const body = xs.map((x) => [String(x), ...series.flatMap((one) => [1, 2].filter((k) => k === 1 || one.rows[0][2] !== null).map((k) => cell(one, x, k)))]);
  const head = series.flatMap((one) => (one.rows[0][2] === null ? [one.name] : [`${one.name} mean`, `${one.name} worst tenth`]));
  return make("details", {}, make("summary", {}, "Numbers"), table([xName, ...head], body));
}

function showCurve(run) {
  const series = pointSeries(run.curve.rows);
  if (!series.length) return put("curve", null);
  const names = { x: "rounds", y: `${run.curve.split} ${withUnit(run)}`, factor: run.factor };
  const text = "Lines are means over clients; bands reach to the mean of the worst tenth of the clients.";
  return put("curve", [lines(series, names), make("p", { class: "hint" }, text), numbers(series, "rounds", run.factor)]);
}

function showOverlaid() {
  const host = document.getElementById("overlaid");
  if (!host) return;
  const kinds = new Map();
  for (const group of DATA.groups.filter((one) => one.curve && one.curve.rows.length)) {
    const kind = `${group.data}, ${group.curve.split} ${withUnit(group)}`;
    kinds.set(kind, [...(kinds.get(kind) || []), group]);
  }
  const found = [];
  for (const [kind, groups] of kinds) {
    for (const point of ["P", "G"]) {
      const series = groups.map((group) => ({ name: group.name, rows: group.curve.rows.filter((row) => row[point]).map((row) => [row.x, row[point][0], null]) })).filter((one) => one.rows.length);
      if (!series.length) continue;
      found.push(lines(series, { x: "rounds", y: `${kind} at ${point}`, factor: groups[0].factor }), numbers(series, "rounds", groups[0].factor));
    }
  }
  host.replaceChildren(...found, make("p", { class: "hint" }, "Means over clients and seeds."));
}

function showHistogram(run) {
  if (!run.scores) return put("histogram", null);
  const values = run.clients.map((_, i) => shown(run, i)).filter((value) => value !== null);
  const [low, high] = range(values), count = high > low ? Math.min(12, Math.ceil(Math.sqrt(values.length)) + 3) : 1;
  const counts = Array(count).fill(0);
  for (const value of values) counts[Math.min(count - 1, Math.floor(share(value, [low, high]) * count))] += 1;
  const [W, H, left, bottom] = [Math.min(width(), 700), 200, 24, 40];
  const step = (W - 2 * left) / count, most = Math.max(...counts);
  const whole = draw("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Histogram of ${meaning(run)}` });
  counts.forEach((number, k) => {
    const tall = (number / most) * (H - bottom - 24);
    whole.append(draw("rect", { class: "bar", x: left + k * step + 1, y: H - bottom - tall, width: step - 2, height: tall }));
    if (number) whole.append(draw("text", { x: left + (k + 0.5) * step, y: H - bottom - tall - 5, "text-anchor": "middle" }, String(number)));
  });
  for (const k of high > low ? [0, 0.5, 1] : [0.5]) {
    whole.append(draw("text", { x: left + k * (W - 2 * left), y: H - bottom + 16, "text-anchor": k === 0 ? "start" : k === 1 ? "end" : "middle" }, short((low + k * (high - low)) * run.factor)));
  }
  whole.append(draw("text", { x: W / 2, y: H - 6, "text-anchor": "middle" }, meaning(run)));
  return put("histogram", [whole, make("p", { class: "hint" }, `Numbers of clients; ${values.length} in all. The view above the map chooses the score.`)]);
}

/** A matrix of cells, dark to light, that is read by pointer or by arrow keys. */
function matrix(values, rowNames, columnNames, text, caption) {
  const count = columnNames.length, most = Math.max(...values.flat());
  const left = values.length <= 60 && width() > 600 ? 130 : 0, top = columnNames.every((name) => name.length < 4) ? 18 : 0;
  const step = Math.max(3, Math.min(26, Math.floor(Math.min((width() - left) / count, 900 / values.length))));
  const [W, H] = [left + count * step, top + values.length * step];
  const whole = draw("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, tabindex: 0, role: "application", "aria-label": caption });
  const cell = (i, j) => ({ x: left + j * step, y: top + i * step });
  whole.append(draw("rect", { ...cell(0, 0), width: count * step, height: values.length * step, fill: colour(0) }));
  values.forEach((row, i) => row.forEach((value, j) => {
    if (value) whole.append(draw("rect", { ...cell(i, j), width: step, height: step, fill: colour(value / most) }));
  }));
  if (left && step > 10) rowNames.forEach((name, i) => whole.append(draw("text", { x: left - 6, y: top + (i + 0.5) * step + 4, "text-anchor": "end" }, name.length > 17 ? `${name.slice(0, 16)}…` : name)));
  if (top && step > 10) columnNames.forEach((name, j) => whole.append(draw("text", { x: left + (j + 0.5) * step, y: 12, "text-anchor": "middle" }, name)));
  const cursor = draw("rect", { class: "cursor", width: step, height: step, visibility: "hidden" });
  const reading = make("p", { class: "reading", "aria-live": "polite" }, "Point at a cell, or move by the arrow keys, to read it.");
  whole.append(cursor);
  const at = { i: 0, j: 0 };
  const read = (i, j) => {
    at.i = Math.min(Math.max(i, 0), values.length - 1);
    at.j = Math.min(Math.max(j, 0), count - 1);
    filled(cursor, { ...cell(at.i, at.j), visibility: "visible" }, []);
    reading.textContent = text(rowNames[at.i], columnNames[at.j], values[at.i][at.j]);
  };
  whole.addEventListener("mousemove", (event) => {
    const box = whole.getBoundingClientRect();
    const size = W / box.width;  // it is shrunk if it is too wide
    read(Math.floor(((event.clientY - box.top) * size - top) / step), Math.floor(((event.clientX - box.left) * size - left) / step));
  });
  whole.addEventListener("focus", () => read(at.i, at.j));
  whole.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!way) return;
    event.preventDefault();
    read(at.i + way[0], at.j + way[1]);
  });
  const bar = make("div", { class: "legend" }, ...[0, 0.5, 1].map((t) => make("span", {}, draw("svg", { width: 18, height: 18, "aria-hidden": "true" }, draw("rect", { width: 18, height: 18, fill: colour(t) })), short(t * most))));
  return [make("p", { class: "hint" }, caption), bar, whole, reading];
}

function showMatrices(run) {
  const names = run.clients.map((client) => client.name);
  const training = run.clients.filter((client) => !client.new).map((client) => client.name);
  const say = (client, label, count) => `${client}, label ${label}: ${count} training examples`;
  const found = run.labels, flat = found && 3 * found.names.length < names.length && 6 * names.length < width();
  if (flat) {
    const turned = found.names.map((_, label) => found.counts.map((counts) => counts[label]));
    put("labels", matrix(turned, found.names, names, (label, client, count) => say(client, label, count), "Rows are labels, columns are clients in the order of the data."));
  } else {
    put("labels", found && matrix(found.counts, names, found.names, say, `Rows are clients, columns are the labels ${found.names[0]} to ${found.names.at(-1)}.`));
  }
  const tell = (to, from, value) => `The model of ${to} has a share of ${short(value)} of that of ${from}`;
  put("allocation", run.allocation && matrix(run.allocation, training, training, tell, "Row i, column j: the share of client j's last model in the model of client i, after the last round."));
}

function showNew(run) {
  const found = run.new_clients;
  if (!found) return put("new", null);
  const names = { x: "rounds of the new clients", y: `test ${withUnit(run)}`, factor: run.factor };
  const body = found.rows.map((row) => [String(row.x), ...POINTS.map((point) => short(row[point][0] * run.factor)), short(row.P[1] * run.factor)]);
  const ended = found.diverged_at < 0 ? "" : ` They diverged in round ${found.diverged_at}.`;
  const text = make("p", {}, `${found.count} clients joined after training.${ended} Means over them:`);
  const figure = found.rows.length > 1 ? [lines(pointSeries(found.rows), names)] : [];
  return put("new", [text, ...figure, table(["rounds", ...POINTS, "worst tenth at P"], body)]);
}

function showAttack(run) {
  const found = run.attack;
  if (!found) return put("attack", null);
  const defended = Object.values(found.kinds).some((own) => own.rejected !== null);
  const body = Object.entries(found.kinds).map(([kind, own]) => [
    kind, String(own.clients), ...POINTS.map((point) => (own.scores ? short(own.scores[point] * run.factor) : "–")),
    ...(defended ? [own.rejected === null ? "–" : `${short(100 * own.rejected)} %`] : []),
  ]);
  const success = found.success ? ` The backdoor succeeds on ${POINTS.map((point) => `${short(100 * found.success[point])} % at ${point}`).join(", ")}.` : "";
  const text = `Attack: ${found.attack || "none"}; defence: ${found.defence || "none"}. Mean test ${withUnit(run)}.${success}`;
  return put("attack", [make("p", {}, text), table(["clients", "number", ...POINTS, ...(defended ? ["rejected uploads"] : [])], body)]);
}

function showCost(run) {
  const names = { compile_s: "compilation", train_s: "training", evaluate_s: "evaluation", new_clients_s: "new clients" };
  const times = Object.entries(names).filter(([key]) => run.timing[key]).map(([key, name]) => [`seconds of ${name}`, short(run.timing[key])]);
  put("cost", [table(["what", "amount"], [
    ...times,
    ["local steps of clients", `${short(Math.round(run.timing.client_steps_per_s))} per second`],
    ["down, per client and round", bytes(run.traffic.down)],
    ["up, per client and round", bytes(run.traffic.up)],
    ["both, all clients and rounds", bytes(run.traffic.total)],
  ])]);
}

// ----------------------------------------------------------------------------------------- page

function show() {
  const run = DATA.runs[state.run];
  document.getElementById("views").hidden = !run.scores;
  showClients(run);
  showMap(run);
  showCurve(run);
  showHistogram(run);
  showMatrices(run);
  showNew(run);
  showAttack(run);
  showCost(run);
  showOverlaid();
  document.getElementById("reading").textContent = run.map ? "Point at a client, or move to it by the keys, to read its numbers." : "";
}

function start() {
  for (const input of document.querySelectorAll("input[name=view]")) {
    input.addEventListener("change", () => {
      state.view = input.value;
      paintMap(DATA.runs[state.run]);
      showHistogram(DATA.runs[state.run]);
    });
    if (input.checked) state.view = input.value;
  }
  document.getElementById("search").addEventListener("input", search);
  const chosen = document.getElementById("run");
  if (chosen) {
    state.run = Number(chosen.value);
    chosen.addEventListener("change", () => {
      state.run = Number(chosen.value);
      state.node = 0;
      show();
    });
  }
  let seen = width();
  window.addEventListener("resize", () => {
    if (width() === seen) return;
    seen = width();
    show();
  });
  show();
}

start();
