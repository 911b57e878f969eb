// Lines over rounds.

/** Lines with bands: series of {name, rows: [[x, mean, worst or null]]}, some with a style. */
function lines(series, { x: xName, y: yName, factor }) {
  const [W, H, left, right, top, bottom] = [width(), 300, 58, 12, 10, 40];
  const all = series.flatMap((one) => one.rows);
  const ys = all
    .flatMap(([, mean, worst]) => [mean, worst])
    .filter((y) => y !== null)
    .map((y) => y * factor);
  let [y0, y1] = range(ys);
  const log = y0 > 0 && y1 / y0 > 20,
    flat = equal([y0, y1], 1); // rounding is no difference
  const bend = (y) => (log ? Math.log10(y) : y);
  const margin = flat ? 0.05 * Math.abs(y1) || 1 : 0.05 * (bend(y1) - bend(y0));
  const low = bend(y0) - margin,
    high = bend(y1) + margin;
  const [x0, x1] = range(all.map(([x]) => x));
  const X = (x) => left + share(x, [x0, x1]) * (W - left - right);
  const Y = (y) => H - bottom - ((bend(y * factor) - low) / (high - low)) * (H - top - bottom);
  const whole = draw("svg", {
    width: W,
    height: H,
    viewBox: `0 0 ${W} ${H}`,
    role: "img",
    "aria-label": `${yName} over ${xName}: ${series.map((one) => one.name).join(", ")}`,
  });
  const marks = flat ? [y1] : log ? powers(y0, y1) : ticks(y0, y1, 7);
  for (const y of marks) {
    whole.append(
      draw("line", {
        class: "axis",
        x1: left,
        x2: W - right,
        y1: Y(y / factor),
        y2: Y(y / factor),
      }),
    );
    whole.append(
      draw("text", { x: left - 6, y: Y(y / factor) + 4, "text-anchor": "end" }, short(y)),
    );
  }
  for (const x of ticks(x0, x1, Math.max(2, Math.floor(W / 80))).filter(Number.isInteger)) {
    whole.append(
      draw("text", { x: X(x), y: H - bottom + 18, "text-anchor": "middle" }, String(x)),
    );
  }
  whole.append(
    draw("text", { x: (left + W - right) / 2, y: H - 6, "text-anchor": "middle" }, xName),
  );
  const styles = series.map((one, k) => one.style || lineStyle(k));
  series.forEach((one, k) => {
    const [stroke, dash, mark = 0] = styles[k];
    const banded = one.rows.filter(([, , worst]) => worst !== null);
    const edge = [
      ...banded.map(([x, mean]) => [X(x), Y(mean)]),
      ...banded.map(([x, , worst]) => [X(x), Y(worst)]).reverse(),
    ];
    if (banded.length)
      whole.append(
        draw("polygon", { points: edge.join(" "), fill: stroke, "fill-opacity": 0.1 }),
      );
    whole.append(
      draw("polyline", {
        points: one.rows.map(([x, mean]) => [X(x), Y(mean)]).join(" "),
        fill: "none",
        stroke,
        "stroke-width": 2,
        "stroke-dasharray": dash,
      }),
    );
    for (const [x, mean, worst] of one.rows) {
      const text = `${one.name}, ${xName} ${x}: ${short(mean * factor)}${worst === null ? "" : `, worst tenth ${short(worst * factor)}`}`;
      whole.append(marked(mark, X(x), Y(mean), stroke, draw("title", {}, text)));
    }
  });
  const legend = series.map((one, k) => {
    const [stroke, dash, mark = 0] = styles[k];
    const line = draw("line", {
      x1: 0,
      x2: 44,
      y1: 6,
      y2: 6,
      stroke,
      "stroke-width": 2,
      "stroke-dasharray": dash,
    });
    return make(
      "span",
      {},
      draw(
        "svg",
        { width: 44, height: 12, "aria-hidden": "true" },
        line,
        marked(mark, 22, 6, stroke),
      ),
      one.name,
    );
  });
  const head = make(
    "div",
    { class: "legend" },
    make("span", {}, yName + (log ? ", logarithmic" : "")),
    ...legend,
  );
  return make("figure", {}, head, whole);
}

function powers(low, high) {
  const found = [];
  for (let k = Math.floor(Math.log10(low)); k <= Math.log10(high); k += 1)
    found.push(...[1, 2, 5].map((m) => m * 10 ** k));
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
  const xs = [...new Set(series.flatMap((one) => one.rows.map(([x]) => x)))].sort(
    (a, b) => a - b,
  );
  const cell = (one, x, k) => short((one.rows.find((row) => row[0] === x) || [])[k] * factor);
  const body = xs.map((x) => [
    String(x),
    ...series.flatMap((one) =>
      [1, 2].filter((k) => k === 1 || one.rows[0][2] !== null).map((k) => cell(one, x, k)),
    ),
  ]);
  const head = series.flatMap((one) =>
    one.rows[0][2] === null ? [one.name] : [`${one.name} mean`, `${one.name} worst tenth`],
  );
  return folded([xName, ...head], body);
}

function showCurve(run) {
  const series = pointSeries(run.curve.rows);
  if (!series.length) return put("curve", null);
  const names = { x: "rounds", y: `${run.curve.split} ${withUnit(run)}`, factor: run.factor };
  const ended = run.diverged ? " The run diverged after the last of these rounds." : "";
  const text = `Lines are means over clients; bands reach to the mean of the worst tenth of the clients.${ended}`;
  return put("curve", [
    lines(series, names),
    make("p", { class: "hint" }, text),
    numbers(series, "rounds", run.factor),
  ]);
}

function showOverlaid() {
  const host = document.getElementById("overlaid");
  if (!host) return;
  const kinds = new Map(),
    absent = [];
  for (const group of DATA.groups) {
    if (!group.curve || !group.curve.rows.length) {
      const why = group.diverged ? "a run diverged" : "its runs share no evaluation";
      absent.push(make("p", { class: "hint" }, `${group.name} has no line: ${why}.`));
      continue;
    }
    const kind = `${group.data}, ${group.curve.split} ${withUnit(group)}`;
    kinds.set(kind, [...(kinds.get(kind) || []), group]);
  }
  const found = [];
  for (const [kind, groups] of kinds) {
    const once = groups.every(({ curve: { rows: own } }) =>
      own.every((row) => `${row.G}` === `${row.P}`),
    );
    for (const point of once ? ["P"] : ["P", "G"]) {
      const at = once ? "G and P" : point;
      const series = groups
        .map((group) => ({
          name: group.name,
          style: groupStyle(group),
          rows: group.curve.rows
            .filter((row) => row[point])
            .map((row) => [row.x, row[point][0], null]),
        }))
        .filter((one) => one.rows.length);
      if (!series.length) continue;
      found.push(
        lines(series, { x: "rounds", y: `${kind} at ${at}`, factor: groups[0].factor }),
        numbers(series, "rounds", groups[0].factor),
      );
    }
  }
  const text = make("p", { class: "hint" }, "Means over clients and seeds.");
  host.replaceChildren(...found, text, ...absent);
}

function showNew(run) {
  const found = run.new_clients;
  if (!found) return put("new", null);
  const names = {
    x: "rounds of the new clients",
    y: `test ${withUnit(run)}`,
    factor: run.factor,
  };
  const body = found.rows.map((row) => [
    String(row.x),
    ...POINTS.map((point) => short(row[point][0] * run.factor)),
    short(row.P[1] * run.factor),
  ]);
  const ended = found.diverged_at < 0 ? "" : ` They diverged in round ${found.diverged_at}.`;
  const text = make(
    "p",
    {},
    `${found.count} clients joined after training.${ended} Means over them:`,
  );
  const figure = found.rows.length > 1 ? [lines(pointSeries(found.rows), names)] : [];
  return put("new", [text, ...figure, table(["rounds", ...POINTS, "worst tenth at P"], body)]);
}
