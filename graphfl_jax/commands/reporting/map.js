// The map of clients.

function radius(run, t) {
  const small = run.clients.length > 150 ? 4 : run.clients.length > 70 ? 6 : 8.5;
  return (width() < 600 ? 0.65 : 1) * small * (0.65 + 0.75 * t);
}

function shape(client, x, y, r) {
  if (client.malicious)
    return `M${x} ${y - 1.3 * r}L${x + 1.25 * r} ${y + 0.9 * r}L${x - 1.25 * r} ${y + 0.9 * r}Z`;
  if (client.new) return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`;
  return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
}

function sample(client, t, kind = "sample") {
  const run = DATA.runs[state.run];
  const path = draw("path", {
    d: shape(client, 14, 14, radius(run, t)),
    class: kind,
    fill: colour(t),
    stroke: "var(--ink)",
  });
  return draw("svg", { width: 28, height: 28, "aria-hidden": "true" }, path);
}

function describe(run, i) {
  const client = run.clients[i];
  const parts = [];
  if (run.scores) {
    const scores = pointsOf(run).map(
      ({ key, name }) =>
        `${name} ${short(run.scores[key][i] === null ? null : run.scores[key][i] * run.factor)}`,
    );
    parts.push(`${scores.join(", ")} ${run.unit ? `${run.unit} ` : ""}${run.metric}`);
  }
  const sizes = Object.entries(client.examples).map(([split, count]) => `${count} ${split}`);
  if (sizes.length) parts.push(`examples: ${sizes.join(", ")}`);
  if (run.map) parts.push(`${degree(run, i)} ${run.map.learned ? "learned " : ""}neighbours`);
  if (client.new) parts.push("new client");
  if (client.malicious) parts.push("malicious");
  return `${client.name}: ${parts.join("; ")}`;
}

/** The number of lines of a client, counted once for all. */
function degree(run, i) {
  if (!run.map.degrees) {
    run.map.degrees = run.clients.map(() => 0);
    for (const pair of run.map.edges) {
      for (const end of pair.slice(0, 2)) run.map.degrees[end] += 1;
    }
  }
  return run.map.degrees[i];
}

/** Moves clients within half a radius onto a ring around them; says whether any are moved. */
function moveApart(places, r) {
  const groups = [];
  for (const place of places) {
    const near = groups.find(
      ([first]) => Math.hypot(first[0] - place[0], first[1] - place[1]) < r / 2,
    );
    if (near) near.push(place);
    else groups.push([place]);
  }
  for (const own of groups.filter((one) => one.length > 1)) {
    const ring = Math.min(12, r / Math.sin(Math.PI / own.length)); // 12: within the margin
    own.forEach((place, k) => {
      const angle = (2 * Math.PI * k) / own.length;
      place[0] += ring * Math.cos(angle);
      place[1] += ring * Math.sin(angle);
    });
  }
  return groups.length < places.length;
}

function showMap(run) {
  nodes = [];
  if (!run.map) {
    put("map", [make("p", { class: "note" }, run.why_no_map)]);
    return;
  }
  const [W, pad] = [width(), 24],
    side = W < 600 ? pad : 70; // room for names
  const xs = run.map.positions.map(([x]) => x),
    ys = run.map.positions.map(([, y]) => y);
  const [x0, x1] = range(xs),
    [y0, y1] = range(ys);
  const scale = Math.min((W - 2 * side) / (x1 - x0 || 1), (600 - 2 * pad) / (y1 - y0 || 1));
  const H = (y1 - y0) * scale + 2 * pad,
    left = (W - (x1 - x0) * scale) / 2;
  const places = xs.map((x, i) => [left + (x - x0) * scale, pad + (y1 - ys[i]) * scale]);
  const moved = moveApart(places, radius(run, 1));
  const place = (i) => places[i];
  const [lightest, most] = range(run.map.edges.map(([, , weight]) => Math.abs(weight)));
  const heaviest = most || 1;
  const thin = run.map.edges.length > 200 ? 0.35 : 1;
  const lines = run.map.edges.map(([a, b, weight]) => {
    const [[ax, ay], [bx, by]] = [place(a), place(b)];
    const thick = thin * (lightest < heaviest ? 0.5 + (3 * Math.abs(weight)) / heaviest : 1.5);
    return draw("line", {
      class: "edge",
      x1: ax,
      y1: ay,
      x2: bx,
      y2: by,
      "stroke-width": thick.toFixed(2),
    });
  });
  nodes = run.clients.map((client, i) =>
    draw("path", {
      class: "node",
      role: "img",
      "data-client": i,
      tabindex: i === state.node ? 0 : -1,
      "aria-label": describe(run, i),
    }),
  );
  nodes.forEach((node, i) => {
    node.addEventListener("mouseenter", () => mark(i));
    node.addEventListener("focus", () => mark(i));
    node.addEventListener("keydown", (event) => step(event, i, place));
  });
  const whole = draw("svg", {
    width: W,
    height: H,
    viewBox: `0 0 ${W} ${H}`,
    role: "group",
    "aria-label": "Map of clients",
  });
  for (const part of [...lines, ...nodes]) whole.append(part); // too many for one call
  whole.append(draw("g", { class: "names", "aria-hidden": "true" }));
  const legend = make("div", { class: "legend" });
  put("map", [whole, legend, make("p", { class: "hint" }, mapText(run, moved))]);
  whole.place = place;
  paintMap(run);
  search();
}

function mapText(run, moved) {
  const lines = run.map.edges.length,
    same = new Set(run.map.edges.map(([, , weight]) => weight)).size < 2;
  const kind = run.map.learned ? "learned shares above 1/clients" : "relations";
  const where = run.map.axes
    ? `Positions are ${run.map.axes}.`
    : lines
      ? "Positions have no meaning: related clients are drawn near each other."
      : "There are no relations, and positions have no meaning.";
  const edges = lines
    ? `${lines} lines show ${run.map.relations} ${kind}, where the two directions are one line${same ? "" : "; thicker lines have larger weights"}. `
    : "";
  const apart = moved ? " Clients nearly at one place are drawn beside each other." : "";
  return `${edges}${where}${apart} With the Tab key, enter the map, and move by the arrow keys.`;
}

/** The place of a value between the worse end of the scores, 0, and the better one, 1. */
function goodness(run, value, between) {
  if (value === null || equal(between, run.factor)) return 0.5;
  const t = Math.min(Math.max(share(value, between), 0), 1);
  return run.higher || state.view === "gain" ? t : 1 - t;
}

/** Colours, sizes, names and legend of the view. */
function paintMap(run) {
  if (!run.map) return;
  const place = document.querySelector("#map svg").place;
  const values = run.clients.map((_, i) => shown(run, i)),
    scaled = scaledValues(run, values),
    between = scaleRange(scaled, run.factor);
  nodes.forEach((node, i) => {
    const t = goodness(run, values[i], between);
    node.setAttribute("d", shape(run.clients[i], ...place(i), radius(run, t)));
    node.setAttribute("fill", colour(t));
    node.classList.toggle("unscored", values[i] === null);
  });
  const named = drawNames(run, values, place);
  const items = run.scores ? scaleItems(run, values, scaled, between) : [];
  if (values.includes(null))
    items.push(make("span", {}, sample({}, 0.5, "unscored"), "no score"));
  if (run.clients.some((client) => client.new))
    items.push(make("span", {}, sample({ new: true }, 0.5), "new client"));
  if (run.clients.some((client) => client.malicious))
    items.push(make("span", {}, sample({ malicious: true }, 0.5), "malicious client"));
  if (named) items.push(make("span", {}, named));
  document.querySelector("#map .legend").replaceChildren(...items);
}

/** The values of the scale: the scores at all points have one scale, so that colours compare. */
function scaledValues(run, values) {
  if (state.view === "gain" || !run.scores) return values;
  return pointsOf(run).flatMap(({ key }) => run.scores[key]);
}

/** The scale of the scores, whose bright and large end is the better one. */
function scaleItems(run, values, scaled, between) {
  const ends = range(values);
  const count = values.filter((value) => value !== null).length;
  if (equal(ends, run.factor)) {
    const text = `${meaning(run)}: ${count} clients have the same, ${short(ends[0] * run.factor)}`;
    return [make("span", {}, count ? text : meaning(run))];
  }
  const [least, most] = range(scaled);
  const [worse, better] =
    run.higher || state.view === "gain" ? between : [...between].reverse();
  const texts = [worse, (worse + better) / 2, better].map((value) => {
    const low = value === between[0] && least < value,
      high = value === between[1] && most > value;
    return `${low ? "≤ " : high ? "≥ " : ""}${short(value * run.factor)}`;
  });
  const scale = [0, 0.5, 1].map((t, k) =>
    make("span", {}, sample({}, t), `${["worse: ", "", "better: "][k]}${texts[k]}`),
  );
  return [make("span", {}, meaning(run).split(";")[0]), ...scale];
}

/** Writes the names of all clients, or of many those of the best and the worst; says which. */
function drawNames(run, values, place) {
  const host = document.querySelector("#map .names"),
    all = nodes.length <= NAMED,
    ends = range(values);
  host.replaceChildren();
  if (!all && equal(ends, run.factor)) return "";
  const order = [...nodes.keys()]
    .filter((i) => all || values[i] !== null)
    .sort((i, j) => values[i] - values[j]);
  const extremes = [...order.slice(0, EXTREMES), ...order.slice(-EXTREMES)];
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "11px system-ui, sans-serif";
  const taken = nodes.map((_, i) => box(place(i), radius(run, 0.6), radius(run, 0.6)));
  let left = 0;
  for (const i of new Set(all ? [...extremes, ...order] : extremes)) {
    const text = clipped(run.clients[i].name),
      half = pen.measureText(text).width / 2;
    const [lost, [x, y]] = placeOfName(place(i), radius(run, 1) + 4, half, taken);
    if (lost > 0 && width() < 600) {
      left += 1;
      continue;
    }
    taken.push(box([x, y], half, 6));
    host.append(draw("text", { x, y: y + 4, "text-anchor": "middle" }, text));
  }
  const which = all ? "names" : `names: the ${EXTREMES} best and the ${EXTREMES} worst`;
  return left ? `${which}, as far as there is room` : all ? "" : which;
}

/** The best of the places around a client for a name, after the area that is lost there. */
function placeOfName([x, y], r, half, taken) {
  return [0, 12]
    .flatMap((more) => [
      [x + r + more + half, y],
      [x - r - more - half, y],
      [x, y - r - more - 6],
      [x, y + r + more + 6],
      [x + r + half, y - 9 - more],
      [x + r + half, y + 9 + more],
      [x - r - half, y - 9 - more],
      [x - r - half, y + 9 + more],
    ])
    .map((centre) => [lostArea(box(centre, half, 6), taken), centre])
    .reduce((a, b) => (b[0] < a[0] ? b : a));
}

function box([x, y], wide, high) {
  return [x - wide, y - high, x + wide, y + high];
}

function common([x0, y0, x1, y1], [a0, b0, a1, b1]) {
  const wide = Math.min(x1, a1) - Math.max(x0, a0),
    high = Math.min(y1, b1) - Math.max(y0, b0);
  return Math.max(0, wide) * Math.max(0, high);
}

/** The area that a box has in common with others, and three times that outside of the map. */
function lostArea(own, others) {
  const svg = document.querySelector("#map svg"),
    whole = [0, 0, svg.getAttribute("width"), svg.getAttribute("height")];
  return others.reduce(
    (sum, other) => sum + common(own, other),
    3 * (common(own, own) - common(own, whole)),
  );
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
    const along = dx * way[0] + dy * way[1],
      across = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
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
