// The histogram of scores, and matrices.

function showHistogram(run) {
  if (!run.scores) return put("histogram", null);
  const values = run.clients.map((_, i) => shown(run, i)).filter((value) => value !== null);
  const [low, high] = range(values),
    same = equal([low, high], run.factor),
    count = same ? 1 : Math.min(12, Math.ceil(Math.sqrt(values.length)) + 3);
  const counts = Array(count).fill(0);
  for (const value of values)
    counts[Math.min(count - 1, Math.floor(share(value, [low, high]) * count))] += 1;
  const [W, H, left, bottom] = [Math.min(width(), 700), 200, 24, 40];
  const step = (W - 2 * left) / count,
    most = Math.max(...counts);
  const whole = draw("svg", {
    width: W,
    height: H,
    viewBox: `0 0 ${W} ${H}`,
    role: "img",
    "aria-label": `Histogram of ${meaning(run)}`,
  });
  const end = (k) => short((low + (k / count) * (high - low)) * run.factor);
  counts.forEach((number, k) => {
    const tall = (number / most) * (H - bottom - 24);
    whole.append(
      draw("rect", {
        class: "bar",
        x: left + k * step + 1,
        y: H - bottom - tall,
        width: step - 2,
        height: tall,
      }),
    );
    if (number)
      whole.append(
        draw(
          "text",
          { x: left + (k + 0.5) * step, y: H - bottom - tall - 5, "text-anchor": "middle" },
          String(number),
        ),
      );
  });
  for (const k of same ? [0.5] : [0, 0.5, 1]) {
    whole.append(
      draw(
        "text",
        {
          x: left + k * (W - 2 * left),
          y: H - bottom + 16,
          "text-anchor": k === 0 ? "start" : k === 1 ? "end" : "middle",
        },
        end(k * count),
      ),
    );
  }
  whole.append(draw("text", { x: W / 2, y: H - 6, "text-anchor": "middle" }, meaning(run)));
  return put("histogram", [
    whole,
    make(
      "p",
      { class: "hint" },
      `Numbers of clients; ${values.length} in all. The view above the map chooses the score.`,
    ),
    folded(
      ["from", "to", "clients"],
      counts.map((number, k) => [end(k), end(k + 1), String(number)]),
    ),
  ]);
}

/** A matrix of cells, dark to light, that is read by pointer or by arrow keys. */
function matrix(values, rowNames, columnNames, text, caption) {
  const count = columnNames.length,
    most = values.flat().reduce((a, b) => Math.max(a, b), 0);
  const left = values.length <= 60 && width() > 600 ? 130 : 0,
    top = columnNames.every((name) => name.length < 4) ? 18 : 0;
  const step = Math.max(
    3,
    Math.min(26, Math.floor(Math.min((width() - left) / count, 900 / values.length))),
  );
  const [W, H] = [left + count * step, top + values.length * step];
  const whole = draw("svg", {
    width: W,
    height: H,
    viewBox: `0 0 ${W} ${H}`,
    tabindex: 0,
    role: "application",
    "aria-label": caption,
  });
  const cell = (i, j) => ({ x: left + j * step, y: top + i * step });
  whole.append(
    draw("rect", {
      ...cell(0, 0),
      width: count * step,
      height: values.length * step,
      fill: colour(0),
    }),
  );
  values.forEach((row, i) =>
    row.forEach((value, j) => {
      if (value)
        whole.append(
          draw("rect", {
            ...cell(i, j),
            width: step,
            height: step,
            fill: colour(value / most),
          }),
        );
    }),
  );
  if (left && step > 10)
    rowNames.forEach((name, i) =>
      whole.append(
        draw(
          "text",
          { x: left - 6, y: top + (i + 0.5) * step + 4, "text-anchor": "end" },
          clipped(name),
        ),
      ),
    );
  if (top && step > 10)
    columnNames.forEach((name, j) =>
      whole.append(
        draw("text", { x: left + (j + 0.5) * step, y: 12, "text-anchor": "middle" }, name),
      ),
    );
  const cursor = draw("rect", {
    class: "cursor",
    width: step,
    height: step,
    visibility: "hidden",
  });
  const reading = make(
    "p",
    { class: "reading", "aria-live": "polite" },
    "Point at a cell, or move by the arrow keys, to read it.",
  );
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
    const size = W / box.width; // it is shrunk if it is too wide
    read(
      Math.floor(((event.clientY - box.top) * size - top) / step),
      Math.floor(((event.clientX - box.left) * size - left) / step),
    );
  });
  whole.addEventListener("focus", () => read(at.i, at.j));
  whole.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[
      event.key
    ];
    if (!way) return;
    event.preventDefault();
    read(at.i + way[0], at.j + way[1]);
  });
  const bar = make(
    "div",
    { class: "legend" },
    ...[0, 0.5, 1].map((t) =>
      make(
        "span",
        {},
        draw(
          "svg",
          { width: 18, height: 18, "aria-hidden": "true" },
          draw("rect", { width: 18, height: 18, fill: colour(t) }),
        ),
        short(t * most),
      ),
    ),
  );
  return [make("p", { class: "hint" }, caption), bar, whole, reading];
}

function showMatrices(run) {
  const names = run.clients.map((client) => client.name);
  const training = run.clients.filter((client) => !client.new).map((client) => client.name);
  const say = (client, label, count) => `${client}, label ${label}: ${count} training examples`;
  const found = run.labels,
    flat = found && 3 * found.names.length < names.length && 6 * names.length < width();
  if (flat) {
    const turned = found.names.map((_, label) => found.counts.map((counts) => counts[label]));
    put(
      "labels",
      matrix(
        turned,
        found.names,
        names,
        (label, client, count) => say(client, label, count),
        "Rows are labels, columns are clients in the order of the data.",
      ),
    );
  } else {
    put(
      "labels",
      found &&
        matrix(
          found.counts,
          names,
          found.names,
          say,
          `Rows are clients, columns are the labels ${found.names[0]} to ${found.names.at(-1)}.`,
        ),
    );
  }
  const tell = (to, from, value) =>
    `The model of ${to} has a share of ${short(value)} of that of ${from}`;
  put(
    "allocation",
    run.allocation &&
      matrix(
        run.allocation,
        training,
        training,
        tell,
        "Row i, column j: the share of client j's last model in the model of client i, after the last round.",
      ),
  );
}
