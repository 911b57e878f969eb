// The table of clients.

function kind(client) {
  return [client.new && "new", client.malicious && "malicious"].filter(Boolean).join(", ");
}

function columns(run) {
  const found = [{ key: "name", name: "client", of: (i) => run.clients[i].name }];
  for (const { key, name } of run.scores ? pointsOf(run) : [])
    found.push({ key, name, number: true, of: (i) => run.scores[key][i], factor: run.factor });
  if (hasGain(run)) {
    const gain = (i) =>
      run.scores.P[i] === null || run.scores.L[i] === null
        ? null
        : (run.scores.P[i] - run.scores.L[i]) * (run.higher ? 1 : -1);
    found.push({ key: "gain", name: "gain", number: true, of: gain, factor: run.factor });
  }
  for (const split of Object.keys(run.clients[0]?.examples || {}))
    found.push({
      key: `n ${split}`,
      name: split,
      number: true,
      wide: true,
      of: (i) => run.clients[i].examples[split],
    });
  if (run.clients.some((client) => (client.trained ?? null) !== null))
    found.push({
      key: "trained",
      name: "rounds trained",
      number: true,
      wide: true,
      of: (i) => run.clients[i].trained,
    });
  if (run.map)
    found.push({
      key: "degree",
      name: "neighbours",
      number: true,
      wide: true,
      of: (i) => degree(run, i),
    });
  if (run.clients.some((client) => client.new || client.malicious)) {
    found.push({ key: "kind", name: "kind", wide: true, of: (i) => kind(run.clients[i]) });
  }
  return found;
}

function showClients(run) {
  const list = columns(run);
  const style = (column) => ({
    class: `${column.number ? "right" : ""} ${column.wide ? "wide" : ""}`,
  });
  rows = run.clients.map((client, i) => {
    const what = kind(client);
    const head = { scope: "row", ...(what ? { "data-kind": what } : {}) };
    const cells = list.map((column, c) => {
      const value = column.of(i),
        text = column.factor
          ? short(value === null ? null : value * column.factor)
          : String(value ?? "–");
      return make(c ? "td" : "th", { ...style(column), ...(c ? {} : head) }, text);
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
  const whole = make(
    "table",
    {},
    make("thead", {}, make("tr", {}, ...heads)),
    make("tbody", {}, ...rows),
  );
  const splits = Object.keys(run.clients[0]?.examples || {});
  const sizes = splits.length ? `Numbers of examples: ${splits.join(", ")}. ` : "";
  const gain = hasGain(run) ? "; gain is that of P over L, above 0 where P is better" : "";
  const unit = run.scores
    ? `Test ${withUnit(run)} at G, L and P${gain}.`
    : "The run diverged, so there are no scores.";
  put("clients", [
    make("div", { class: "box" }, whole),
    make(
      "p",
      { class: "hint" },
      `${unit} `,
      make("span", { class: "wide" }, sizes),
      "The buttons in the head sort; in the rows, move by the arrow keys.",
    ),
  ]);
  state.sort = { key: "", up: false };
  sortBy(list[0]);
  search();
}

function sortBy(column) {
  const up = state.sort.key === column.key ? !state.sort.up : true;
  state.sort = { key: column.key, up };
  const order = rows
    .map((_, i) => i)
    .sort((a, b) => {
      const [first, second] = [column.of(a), column.of(b)];
      if (first === null || second === null) return (first === null) - (second === null); // last
      const ahead = column.number
        ? first - second
        : String(first).localeCompare(String(second), "en", { numeric: true });
      return up ? ahead : -ahead;
    });
  const body = document.querySelector("#clients tbody");
  body.append(...order.map((i) => rows[i]));
  for (const head of document.querySelectorAll("#clients thead th")) {
    const own = head.dataset.key === column.key,
      button = head.querySelector("button");
    head.setAttribute("aria-sort", own ? (up ? "ascending" : "descending") : "none");
    button.textContent =
      button.textContent.replace(/ [▲▼]$/, "") + (own ? (up ? " ▲" : " ▼") : "");
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
  const visible = visibleRows(),
    next = visible.indexOf(row) + way;
  if (visible[next]) focusOn(visible, next - way, next);
}

function search() {
  const text = document.getElementById("search").value.trim().toLowerCase();
  let count = 0;
  DATA.runs[state.run].clients.forEach((client, i) => {
    const found =
      client.name.toLowerCase().includes(text) || (text && kind(client).includes(text));
    count += Boolean(found);
    if (rows[i]) rows[i].hidden = !found;
    if (nodes[i]) nodes[i].classList.toggle("dim", !found);
  });
  document.getElementById("found").textContent = text ? `${count} of ${rows.length}` : "";
  if (rows.length) firstRow();
}
