// The other parts, and the start of the page.

function showAttack(run) {
  const found = run.attack;
  if (!found) return put("attack", null);
  const defended = Object.values(found.kinds).some((own) => own.rejected !== null);
  const points = pointsOf(run);
  const body = Object.entries(found.kinds).map(([kind, own]) => [
    kind,
    String(own.clients),
    ...points.map(({ key }) => short((own.scores?.[key] ?? NaN) * run.factor)),
    ...(defended ? [own.rejected === null ? "–" : `${short(100 * own.rejected)} %`] : []),
  ]);
  const success = found.success
    ? ` The backdoor succeeds on ${POINTS.map((point) => `${short(100 * found.success[point])} % at ${point}`).join(", ")}.`
    : "";
  const text = `Attack: ${found.attack || "none"}; defence: ${found.defence || "none"}. Mean test ${withUnit(run)}.${success}`;
  return put("attack", [
    make("p", {}, text),
    table(["clients", "number", ...points.map(({ name }) => name), ...(defended ? ["rejected uploads"] : [])], body),
  ]);
}

function showPrivacy(run) {
  put("privacy", run.privacy.length ? [table(["what", "value"], run.privacy)] : null);
}

function showFurther(run) {
  const found = run.further.flatMap(([title, caption, [head, ...body]]) => [
    make("h3", {}, title),
    table(head, body),
    make("p", { class: "hint" }, caption),
  ]);
  put("further", found.length ? found : null);
}

function showCost(run) {
  const names = {
    compile_s: "compilation",
    train_s: "training",
    evaluate_s: "evaluation",
    new_clients_s: "new clients",
  };
  const times = Object.entries(names)
    .filter(([key]) => run.timing[key])
    .map(([key, name]) => [`seconds of ${name}`, short(run.timing[key])]);
  const { compressed } = run.traffic;
  put("cost", [
    table(
      ["what", "amount"],
      [
        ...times,
        [
          "local steps of clients",
          `${short(Math.round(run.timing.client_steps_per_s))} per second`,
        ],
        ["down, per client and round", bytes(run.traffic.down)],
        [
          `up, per client and round${compressed ? `, compressed by ${compressed}` : ""}`,
          bytes(run.traffic.up),
        ],
        ...(run.traffic.total === null
          ? []
          : [["both, all clients and rounds", bytes(run.traffic.total)]]),
      ],
    ),
  ]);
}

/** The choice of the score that colours and sizes show. */
function showViews(run) {
  document.getElementById("views").hidden = !run.scores;
  const views = pointsOf(run).map(({ key, name }) => [key, `at ${name}`]);
  if (hasGain(run)) views.push(["gain", "gain of P over L"]);
  if (!views.some(([key]) => key === state.view)) state.view = "P";
  const labels = views.map(([key, name]) => {
    const input = make("input", { type: "radio", name: "view", value: key });
    input.checked = key === state.view;
    input.addEventListener("change", () => {
      state.view = key;
      paintMap(run);
      showHistogram(run);
    });
    return make("label", {}, input, ` ${name}`);
  });
  document.querySelector("#views .choice").replaceChildren(...labels);
}

function show() {
  const run = DATA.runs[state.run];
  showViews(run);
  showClients(run);
  showFigures(run);
  showFurther(run);
  showAttack(run);
  showPrivacy(run);
  showCost(run);
  document.getElementById("reading").textContent = run.map
    ? "Point at a client, or move to it by the keys, to read its numbers."
    : "";
}

/** The parts that depend on the width of the page. */
function showFigures(run) {
  showMap(run);
  showCurve(run);
  showHistogram(run);
  showMatrices(run);
  showNew(run);
  showOverlaid();
}

/** Draws the figures in a new width. The focus, the marked client and open tables stay. */
function resize() {
  const stops = () => [...document.querySelectorAll("[tabindex], summary")];
  const tables = () => [...document.querySelectorAll("details")];
  const focused = stops().indexOf(document.activeElement),
    open = tables().map((one) => one.open),
    marked = rows.findIndex((row) => row.classList.contains("marked"));
  showFigures(DATA.runs[state.run]);
  tables().forEach((one, k) => {
    one.open = open[k];
  });
  if (focused >= 0) stops()[focused].focus({ preventScroll: true });
  if (marked >= 0) mark(marked, false);
}

function start() {
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
    resize();
  });
  show();
}

start();
