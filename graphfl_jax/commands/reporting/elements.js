// Data, state, elements and numbers, which the other scripts use.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const POINTS = ["G", "L", "P"];
// From dark to light in even steps of lightness, also for colour-blind readers and in grey.
const SCALE = [
  [0, 32, 77],
  [65, 77, 107],
  [124, 123, 120],
  [188, 175, 111],
  [255, 234, 70],
];
const COLOURS = ["--g", "--l", "--p", "--soft", "--mark", "--ink"];
const DASHES = ["", "7 4", "2 3", "10 3 2 3", "14 4", "4 2"];
const NAMED = 60; // clients up to which the map has all names
const EXTREMES = 5; // named clients at each end of the scores of more clients
const MARKS = [
  (x, y) => `M${x - 3} ${y}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z`,
  (x, y) => `M${x - 3} ${y - 3}h6v6h-6Z`,
  (x, y) => `M${x} ${y - 4}l4 7h-8Z`,
  (x, y) => `M${x} ${y - 4.5}l4.5 4.5l-4.5 4.5l-4.5 -4.5Z`,
];
const state = { run: 0, view: "P", node: 0, sort: { key: "name", up: true } };
let rows = [],
  nodes = [];

function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function draw(name, attributes = {}, ...children) {
  return filled(
    document.createElementNS("http://www.w3.org/2000/svg", name),
    attributes,
    children,
  );
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children); // text stays text
  return element;
}

/** Shows a section with new content, or hides it if there is none. */
function put(id, content) {
  const section = document.getElementById(id);
  section.hidden = !content;
  section.querySelector(".host").replaceChildren(...(content || []));
}

function width() {
  return (
    document.querySelector("main").clientWidth -
    2 * parseFloat(getComputedStyle(document.querySelector("main")).paddingLeft)
  );
}

function table(head, body) {
  const cells = (names) => names.map((name) => make("th", { scope: "col" }, name));
  const lines = body.map(([first, ...rest]) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, first),
      ...rest.map((cell) => make("td", {}, cell)),
    ),
  );
  const whole = make(
    "table",
    {},
    make("thead", {}, make("tr", {}, ...cells(head))),
    make("tbody", {}, ...lines),
  );
  return make("div", { class: "box" }, whole);
}

/** A table that can be opened. */
function folded(head, body) {
  return make("details", {}, make("summary", {}, "Numbers"), table(head, body));
}

function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text =
    size >= 1e5 || size < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return text.replace(/-/g, "−");
}

/** A name that is cut where it is long. */
function clipped(name) {
  return name.length > 17 ? `${name.slice(0, 16)}…` : name;
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

/** The points of a run: those at which all clients have the same scores are one, by its last. */
function pointsOf(run) {
  if (run.points) return run.points;
  run.points = [];
  for (const point of POINTS) {
    const scores = run.scores?.[point],
      same = scores && run.points.find(({ key }) => `${run.scores[key]}` === `${scores}`);
    if (same) [same.key, same.name] = [point, `${same.name} and ${point}`];
    else run.points.push({ key: point, name: point });
  }
  return run.points;
}

/** Whether L and P have different scores. */
function hasGain(run) {
  return Boolean(run.scores) && `${run.scores.L}` !== `${run.scores.P}`;
}

function withUnit(run) {
  return run.unit ? `${run.metric} (${run.unit})` : run.metric;
}

function meaning(run) {
  if (state.view === "gain") return `gain of P over L, ${withUnit(run)}; above 0, P is better`;
  const { name } = pointsOf(run).find(({ key }) => key === state.view);
  return `test ${withUnit(run)} at ${name}; ${run.higher ? "higher" : "lower"} is better`;
}

/** The colour and the dashes of a line: every colour has other dashes when it comes again. */
function lineStyle(k) {
  const again = Math.floor(k / COLOURS.length);
  return [`var(${COLOURS[k % COLOURS.length]})`, DASHES[(k + again) % DASHES.length]];
}

/** Colour, dashes and mark of a group of runs. Black is white on a dark page. */
function groupStyle({ style: [colour, dashes, mark] }) {
  return [colour === "#000000" ? "var(--ink)" : colour, dashes, mark];
}

/** A mark of a line: a circle, a square, a triangle or a diamond, filled or hollow. */
function marked(mark, x, y, stroke, ...children) {
  const path = MARKS[Math.floor(mark / 2) % MARKS.length](x, y);
  const fill = mark % 2 ? "var(--paper)" : stroke;
  return draw("path", { class: "mark", d: path, fill, stroke, "stroke-width": 1.5 }, ...children);
}

function range(values) {
  const known = values.filter((value) => value !== null);
  let [low, high] = known.length ? [known[0], known[0]] : [0, 0];
  for (const value of known) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return [low, high];
}

/** The range of colours: without the outer twentieths of many values, so that a few do not flatten the rest. */
function scaleRange(values, factor) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  const inner = [0.05, 0.95].map((q) => sorted[Math.round(q * (sorted.length - 1))]);
  return sorted.length < 20 || equal(inner, factor) ? range(sorted) : inner;
}

/** Whether the ends of a range are the same number as it is shown. */
function equal([low, high], factor) {
  return short(low * factor) === short(high * factor);
}

function share(value, [low, high]) {
  return high > low ? (value - low) / (high - low) : 0.5;
}

function colour(t) {
  const place = Math.min(Math.max(t, 0), 1) * (SCALE.length - 1);
  const low = Math.min(Math.floor(place), SCALE.length - 2);
  const mixed = SCALE[low].map((part, k) =>
    Math.round(part + (place - low) * (SCALE[low + 1][k] - part)),
  );
  return `rgb(${mixed.join(",")})`;
}

/** Round numbers between two numbers. */
function ticks(low, high, count) {
  if (low === high) return [low];
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k += 1)
    found.push(Number((k * step).toPrecision(12)));
  return found;
}
