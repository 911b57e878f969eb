"""Reports in a browser: Chromium without a window, driven by Selenium."""

import importlib.util
import json
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import graphfl_jax
from graphfl_jax.commands.common.finished_runs import read_run
from graphfl_jax.commands.common.styles import styles_of
from graphfl_jax.commands.reporting.comparison import comparison_facts
from graphfl_jax.commands.reporting.folders import run_facts
from graphfl_jax.commands.reporting.page import render
from tests.federations import small_config, two_clusters

DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (DRIVER and shutil.which("chromium") and importlib.util.find_spec("selenium")),
    reason="chromium, chromedriver and selenium are not installed",
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
SCRIPT = "<script>alert(1)</script>"
ENOUGH = 2.0  # seconds to make, and to load, a page with 325 clients


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What a report states of a small run, with a client whose name is a script."""
    out = tmp_path_factory.mktemp("run") / "mine"
    graphfl_jax.run(small_config("ditto", rounds=4, eval_every=2), two_clusters(), out=out)
    path = out / "federation.json"
    described = json.loads(path.read_text())
    described["clients"][3] |= {"name": SCRIPT, "new": False, "malicious": True}
    path.write_text(json.dumps(described))
    return read(out)


def read(path):
    return run_facts(read_run(path))


@pytest.fixture(scope="module")
def pages(tmp_path_factory, run):
    """Files of pages: of the run, of three, of one without scores, and of one without a map."""
    root = tmp_path_factory.mktemp("pages")
    paths = [Path(run["path"]), *(root / method for method in ("ditto", "local"))]
    for path in paths[1:]:
        as_other_run(paths[0], path)
    three = [read(path) for path in paths]
    both = comparison_facts([read_run(path) for path in paths], three)
    texts = {"one": render([run], None), "three": render(three, both)}
    curve = [{"x": x, **{point: [0.5, 0.4] for point in "GLP"}} for x in (0, 1)]
    kind = {"clients": 3, "scores": dict.fromkeys("GLP", 0.5), "rejected": 0.25}
    metrics = dict.fromkeys("GLP", {"macro_f1": {"mean": 0.25, "clients": 7}})
    kinds = {
        "rich": {
            "results": run["results"] | {"metrics": metrics},
            "allocation": np.eye(7).tolist(),
            "new_clients": {"rows": curve, "diverged_at": -1, "count": 2},
            "attack": {
                "attack": "label_flip",
                "defence": "krum",
                "kinds": {"benign": kind, "malicious": kind},
                "success": None,
            },
        },
        "diverged": {
            **{"diverged": True, "scores": None, "main": None},
            "traffic": run["traffic"] | {"total": None},
        },
        "old": {"map": None, "why_no_map": "There is no map.", "labels": None},
    }
    for name, change in kinds.items():
        texts[name] = render([run | change], None)
    for name, text in texts.items():
        (root / f"{name}.html").write_text(text)
    return root


def as_other_run(path, out):
    """A copy of a run with another seed, of the method that `out` names; P is 0.1 higher."""
    shutil.copytree(path, out)
    files = [out / "config.json", out / "results.json"]
    config, results = (json.loads(file.read_text()) for file in files)
    config["seed"], config["algorithm"]["name"] = 1, out.name
    results |= {"seed": 1, "variant": out.name}
    at = results["scores"]["final"]["P"]
    at["per_client"] = [score + 0.1 for score in at["per_client"]]
    for file, content in zip(files, (config, results), strict=True):
        file.write_text(json.dumps(content))


def of_many(path, out, clients=325):
    """A copy of a run's folder with many clients, as PEMS-BAY has."""
    rng = np.random.default_rng(0)
    shutil.copytree(path, out)
    described = json.loads((out / "federation.json").read_text())
    first = described["clients"][0]
    described["clients"] = [first | {"name": f"sensor {i}"} for i in range(clients)]
    described["relations"] = [[*map(int, rng.choice(clients, 2)), 0.5] for _ in range(2369)]
    results = json.loads((out / "results.json").read_text())
    for scores in results["scores"]["final"].values():
        scores["per_client"] = rng.uniform(size=clients).tolist()
    results["rounds_trained"] = [1] * clients
    for name, content in {"federation.json": described, "results.json": results}.items():
        (out / name).write_text(json.dumps(content))
    return out


def opened(browser, path, width=1280):
    """Opens a page with an empty log."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(path.as_uri())


def found(browser, selector):
    return browser.find_elements("css selector", selector)


def names(browser):
    """The names in the visible rows of the table of clients."""
    cells = found(browser, "#clients tbody tr:not([hidden]) th")
    return [cell.get_property("textContent") for cell in cells]


def requests(browser):
    """The addresses that a page has asked for since it was opened."""
    messages = [
        json.loads(entry["message"])["message"] for entry in browser.get_log("performance")
    ]
    asked = [one for one in messages if one["method"] == "Network.requestWillBeSent"]
    return [one["params"]["request"]["url"] for one in asked]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "three", "rich", "diverged", "old"])
def test_a_page_fits_asks_for_nothing_and_has_no_errors(name, browser, pages):
    for width in (1280, 360):
        path = pages / f"{name}.html"
        opened(browser, path, width)
        page = "document.documentElement"
        assert browser.execute_script(f"return {page}.scrollWidth <= {page}.clientWidth")
        assert {url for url in requests(browser) if not url.startswith("data:")} == {
            path.as_uri()
        }
        assert browser.get_log("browser") == []


@pytest.mark.slow
def test_parts_that_apply_are_shown_and_no_others(browser, pages):
    always = ["map", "curve", "clients", "cost"]
    scored = ["histogram", "labels"]
    parts = {
        "rich": [*always, *scored, "further", "allocation", "new", "attack"],
        "one": [*always, *scored],
        "diverged": [*always, "labels"],
        "old": [*always, "histogram"],
    }
    for name, expected in parts.items():
        opened(browser, pages / f"{name}.html")
        shown = found(browser, "section:has(> .host):not([hidden])")
        assert {part.get_attribute("id") for part in shown} == set(expected), name
        assert not found(browser, "section:not([hidden]) > .host:empty")
        total = "all clients and rounds" in found(browser, "#cost")[0].text
        assert total == (name != "diverged")
    opened(browser, pages / "rich.html")
    assert (
        len(found(browser, "#allocation svg[tabindex] rect")) == 7 + 2
    )  # and the ground and the cursor
    assert found(browser, "#attack")[0].text.count("25 %") == 2
    assert "G and L and P clients\nmacro_f1 0.25 7" in found(browser, "#further")[0].text
    assert len(found(browser, "#new polyline")) == 1  # G, L and P are the same


def test_simulated_data_are_stated_in_red(browser, run, tmp_path):
    path = tmp_path / "simulated.html"
    path.write_text(render([run | {"source": "simulated"}], None), "utf-8")
    opened(browser, path)
    (stated,) = found(browser, "header .not-real")
    assert stated.text == "simulated"
    shade = stated.value_of_css_property("color")
    red, green, blue = map(int, re.findall(r"\d+", shade)[:3])
    assert red > 2 * max(green, blue)


def test_nodes_and_lines_are_those_of_the_federation(browser, pages, run):
    opened(browser, pages / "one.html")
    assert len(found(browser, "#map .node")) == len(run["clients"])
    assert len(found(browser, "#map .edge")) == len(run["map"]["edges"])
    malicious = found(browser, "#map .node")[3].get_attribute("d")
    assert malicious.count("L") == 2  # a triangle
    assert "malicious client" in found(browser, "#map .legend")[0].text


def shown(browser, path, run):
    """Opens a page about a run."""
    path.write_text(render([run], None))
    opened(browser, path)


def test_clients_without_a_score_are_told_from_low_scores(browser, pages, run, tmp_path):
    scores = {point: [None, *own[1:]] for point, own in run["scores"].items()}
    shown(browser, tmp_path / "page.html", run | {"scores": scores})
    dashes = [
        node.value_of_css_property("stroke-dasharray") for node in found(browser, "#map .node")
    ]
    assert dashes[0] != "none" and set(dashes[1:]) == {"none"}
    (legend,) = found(browser, "#map .legend")
    assert "no score" in legend.text and len(found(browser, "#map .legend .unscored")) == 1
    opened(browser, pages / "one.html")
    assert "no score" not in found(browser, "#map .legend")[0].text
    opened(browser, pages / "diverged.html")
    assert found(browser, "#map .legend")[0].text.split("\n") == [
        "no score",
        "malicious client",
    ]


def test_the_names_on_the_map_are_whole_and_do_not_hide_each_other(browser, run, tmp_path):
    clients = [run["clients"][0] | {"name": f"client {i}"} for i in range(60)]
    positions = [[i % 10 + 0.3 * (i // 10), i // 10] for i in range(60)]
    scores = dict.fromkeys("GLP", [i / 59 for i in range(60)])
    many = run | {"clients": clients, "scores": scores}
    many |= {"map": run["map"] | {"positions": positions, "edges": []}}
    shown(browser, tmp_path / "page.html", many)
    texts = found(browser, "#map .names text")
    assert {text.text for text in texts} == {client["name"] for client in clients}
    boxes = sorted((text.rect for text in texts), key=lambda box: (box["y"], box["x"]))
    for first, second in zip(boxes, boxes[1:], strict=False):
        beside = first["x"] + first["width"] <= second["x"] + 1
        assert beside or first["y"] + first["height"] / 2 <= second["y"]
    opened(browser, tmp_path / "page.html", 360)
    assert 5 < len(found(browser, "#map .names text")) < 60
    assert "names, as far as there is room" in found(browser, "#map .legend")[0].text
    # Of more, those with the best and the worst scores.
    more = many | {"clients": [*clients, clients[0] | {"name": "the best"}]}
    more |= {"scores": dict.fromkeys("GLP", [*scores["P"], 1.5])}
    more["map"] = many["map"] | {"positions": [*positions, [3.0, 7.0]]}
    shown(browser, tmp_path / "page.html", more)
    expected = {"the best", *(f"client {i}" for i in (0, 1, 2, 3, 4, 56, 57, 58, 59))}
    assert {text.text for text in found(browser, "#map .names text")} == expected


@pytest.mark.parametrize("higher", [True, False])
def test_the_better_end_of_the_scale_is_bright_and_named(higher, browser, run, tmp_path):
    scores = dict.fromkeys("GLP", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.9])
    changed = run | {"scores": scores, "higher": higher, "factor": 1}
    shown(browser, tmp_path / "page.html", changed)
    fills = [node.get_attribute("fill") for node in found(browser, "#map .node")]
    best = fills[-1] if higher else fills[0]
    assert best == "rgb(255,234,70)" != fills[0 if higher else -1]
    legend = found(browser, "#map .legend")[0].text
    worse, better = (0.1, 0.9) if higher else (0.9, 0.1)
    assert f"worse: {worse}" in legend and f"better: {better}" in legend


def test_the_same_score_has_one_colour_at_all_points(browser, run, tmp_path):
    scores = {
        "G": [0.1] * 4 + [0.3] * 3,
        "L": [0.3] * 3 + [0.5] * 4,
        "P": [0.3] * 5 + [0.9] * 2,
    }
    shown(browser, tmp_path / "page.html", run | {"scores": scores, "factor": 1})
    colours = {}
    for view in found(browser, "#views label"):
        view.click()
        for node in found(browser, "#map .node"):
            label = node.get_attribute("aria-label")
            at = view.text.removeprefix("at ")
            if at in scores:
                score = re.search(rf"\b{at} ([\d.]+)", label)[1]
                colours.setdefault(score, set()).add(node.get_attribute("fill"))
    assert {len(of_score) for of_score in colours.values()} == {1}
    assert len(colours) == len(set.union(*colours.values())) == 4


def test_equal_scores_are_said_and_not_drawn_as_differences(browser, run, tmp_path):
    scores = [0.5 + 1e-7 * i for i in range(7)]  # as rounding leaves them
    shown(browser, tmp_path / "page.html", run | {"scores": dict.fromkeys("GLP", scores)})
    assert len({node.get_attribute("fill") for node in found(browser, "#map .node")}) == 1
    legend = found(browser, "#map .legend")[0].text
    assert "7 clients have the same, 50" in legend and "worse" not in legend
    assert len(found(browser, "#histogram rect")) == 1


def test_points_with_the_same_scores_are_shown_once(browser, run, tmp_path):
    scores = run["scores"] | {"P": run["scores"]["G"]}
    shown(browser, tmp_path / "page.html", run | {"scores": scores})
    assert [label.text for label in found(browser, "#views label")] == [
        *("at G and P", "at L", "gain of P over L")
    ]
    heads = [head.text for head in found(browser, "#clients thead th")]
    assert heads[1:4] == ["G and P", "L", "gain"]
    assert "G and P" in found(browser, "#map .node")[0].get_attribute("aria-label")
    same = dict.fromkeys("GLP", scores["L"])
    shown(browser, tmp_path / "page.html", run | {"scores": same})
    assert [label.text for label in found(browser, "#views label")] == ["at G and L and P"]


def test_clients_at_one_place_are_drawn_apart(browser, run, tmp_path):
    places = [[0.0, 0.0], [0.0, 0.0], [0.003, 0.003]] + [[float(i), 1.0] for i in range(4)]
    shown(browser, tmp_path / "page.html", run | {"map": run["map"] | {"positions": places}})
    boxes = [node.rect for node in found(browser, "#map .node")[:3]]
    centres = [(b["x"] + b["width"] / 2, b["y"] + b["height"] / 2) for b in boxes]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert np.hypot(*np.subtract(centres[i], centres[j])) > 10
    assert "nearly at one place are drawn beside" in found(browser, "#map .hint")[0].text


def test_a_kind_is_stated_on_a_narrow_page(browser, pages):
    mark = "return getComputedStyle(arguments[0], '::after').content"
    for width, expected in ((360, '" (malicious)"'), (1280, "none")):
        opened(browser, pages / "one.html", width)
        (head,) = found(browser, '#clients tr[data-client="3"] th')
        assert browser.execute_script(mark, head) == expected


def test_counts_of_examples_are_not_rounded(browser, run, tmp_path):
    clients = [client | {"examples": {"train": 123_457}} for client in run["clients"]]
    shown(browser, tmp_path / "page.html", run | {"clients": clients})
    assert "123457" in found(browser, "#clients tbody tr")[0].text


def test_the_histogram_has_its_numbers_in_a_table(browser, pages, run):
    opened(browser, pages / "one.html")
    (head,) = found(browser, "#histogram summary")
    head.click()
    rows = [row.text.split() for row in found(browser, "#histogram tbody tr")]
    assert sum(int(row[-1]) for row in rows) == len(run["clients"])
    bars = [text.text for text in found(browser, "#histogram svg text")]
    assert [row[-1] for row in rows if row[-1] != "0"] == bars[: -4 if len(rows) > 1 else -2]


def test_a_resized_page_keeps_what_was_done(browser, pages, run):
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    opened(browser, pages / "one.html")
    found(browser, '#clients th[data-key="P"] button')[0].click()
    found(browser, "#curve summary")[0].click()
    found(browser, "#map .node")[0].send_keys(Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.ARROW_UP)

    def kept():
        focused = browser.switch_to.active_element.get_attribute("data-client")
        marked = [one.get_attribute("data-client") for one in found(browser, ".marked")]
        open_ = len(found(browser, "#curve details[open]"))
        return names(browser), focused, marked, open_, found(browser, "#reading")[0].text

    before, wide = kept(), found(browser, "#map svg")[0].get_attribute("width")
    assert before[1] is not None and before[3] == 1
    size = {"width": 700, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    # The page draws its figures again, so an element may be gone when it is asked.
    WebDriverWait(browser, 10, ignored_exceptions=[StaleElementReferenceException]).until(
        lambda driver: found(driver, "#map svg")[0].get_attribute("width") != wide
    )
    assert kept() == before


def test_a_name_that_is_a_script_is_text(browser, pages):
    opened(browser, pages / "one.html")  # an alert would make every further call fail
    assert SCRIPT in names(browser)
    assert SCRIPT in found(browser, "#map .node")[3].get_attribute("aria-label")
    assert len(found(browser, "script")) == 2


def test_pointing_marks_a_client_in_both_places(browser, pages, run):
    from selenium.webdriver import ActionChains

    opened(browser, pages / "one.html")
    name = run["clients"][2]["name"]
    for target in ("#map .node", "#clients tr"):
        (element,) = found(browser, f'{target}[data-client="2"]')
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        ActionChains(browser).move_to_element(element).perform()
        assert [e.get_attribute("data-client") for e in found(browser, ".marked")] == ["2", "2"]
        reading = found(browser, "#reading")[0].text
        assert reading.startswith(f"{name}: G ") and "examples" in reading
        ActionChains(browser).move_to_element(found(browser, "h1")[0]).perform()
        browser.execute_script(
            "for (const e of document.querySelectorAll('.marked')) e.classList.remove('marked')"
        )


def test_the_table_is_sorted_and_searched_by_keyboard(browser, pages, run):
    from selenium.webdriver.common.keys import Keys

    opened(browser, pages / "one.html")
    everyone = [client["name"] for client in run["clients"]]
    order = sorted(range(len(everyone)), key=lambda i: run["scores"]["P"][i])
    (button,) = found(browser, '#clients th[data-key="P"] button')
    button.send_keys(Keys.ENTER)
    scores = [run["scores"]["P"][everyone.index(name)] for name in names(browser)]
    assert scores == [run["scores"]["P"][i] for i in order]
    button.send_keys(Keys.ENTER)
    assert [run["scores"]["P"][everyone.index(name)] for name in names(browser)] == scores[::-1]
    heads = found(browser, '#clients th[aria-sort="descending"]')
    assert [head.get_attribute("data-key") for head in heads] == ["P"]
    found(browser, "#search")[0].send_keys("ALERT")
    assert names(browser) == [SCRIPT] and len(found(browser, "#map .node.dim")) == 6
    assert found(browser, "#found")[0].text == "1 of 7"


def test_the_map_and_the_view_are_moved_by_keys(browser, pages, run):
    from selenium.webdriver.common.keys import Keys

    opened(browser, pages / "one.html")
    nodes = found(browser, "#map .node")
    assert [node.get_attribute("tabindex") for node in nodes].count("0") == 1
    start = nodes[0]
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.ARROW_DOWN, Keys.ARROW_UP):
        start.send_keys(key)
    focused = browser.switch_to.active_element
    client = run["clients"][int(focused.get_attribute("data-client"))]
    assert found(browser, "#reading")[0].text.startswith(client["name"])
    before = [node.get_attribute("fill") for node in nodes]
    found(browser, 'input[value="P"]')[0].send_keys(Keys.ARROW_RIGHT)  # to the gain
    assert found(browser, 'input[value="gain"]')[0].is_selected()
    assert [node.get_attribute("fill") for node in nodes] != before
    assert found(browser, "#map .legend")[0].text.startswith("gain of P over L")
    labels = found(browser, "#labels svg")[-1]
    labels.send_keys(Keys.ARROW_RIGHT)
    counts = run["labels"]["counts"][1]  # rows are labels, since there are few
    expected = f"{run['clients'][1]['name']}, label 0: {counts[0]} training examples"
    assert found(browser, "#labels .reading")[0].text == expected


def test_of_several_runs_one_is_chosen(browser, pages, run):
    from selenium.webdriver.support.ui import Select

    opened(browser, pages / "three.html")
    assert len(found(browser, "#overlaid svg polyline")) == 4  # two groups at P and at G
    rows = [row.text for row in found(browser, "#means tbody tr")]
    assert [row.split()[0] for row in rows] == ["ditto", "local"]
    assert "seeds 0, 1" in rows[0] and "7" in found(browser, "#pairs")[0].text
    name = run["clients"][0]["name"]
    readings = []
    for index in (0, 2):
        Select(found(browser, "#run")[0]).select_by_index(index)
        (row,) = found(browser, '#clients tr[data-client="0"]')
        readings.append(row.text)
    assert readings[0] != readings[1] and all(text.startswith(name) for text in readings)


def test_lines_have_the_colours_and_marks_of_their_groups(browser, pages):
    opened(browser, pages / "three.html")
    figure = found(browser, "#overlaid figure")[0]
    lines, legend = (figure.find_elements("css selector", s) for s in ("polyline", ".legend"))
    colours = [style["color"] for style in styles_of(["ditto", "local"])]
    assert [line.get_attribute("stroke") for line in lines] == colours
    shown = legend[0].find_elements("css selector", ".mark")
    assert [mark.get_attribute("stroke") for mark in shown] == colours
    fills = [mark.get_attribute("fill") for mark in shown]
    assert fills == [colours[0], "var(--paper)"]  # filled and hollow


def test_runs_that_diverged_have_no_line_and_are_named(browser, pages, run, tmp_path):
    first, second = Path(run["path"]), tmp_path / "local"
    as_other_run(first, second)
    results = json.loads((second / "results.json").read_text())
    results |= {"diverged": True, "scores": None}
    (second / "results.json").write_text(json.dumps(results))
    facts = [read(first), read(second)]
    page = tmp_path / "page.html"
    page.write_text(render(facts, comparison_facts([read_run(first), read_run(second)], facts)))
    opened(browser, page)
    (overlaid,) = found(browser, "#overlaid")
    assert "local has no line: a run diverged." in overlaid.text
    assert {one.text for one in found(browser, "#overlaid .legend span:has(svg)")} == {"ditto"}
    opened(browser, pages / "diverged.html")
    assert "The run diverged" in found(browser, "#curve .hint")[0].text


def test_325_clients_are_made_and_loaded_in_time(browser, run, tmp_path):
    folder = of_many(run["path"], tmp_path / "many")
    began = time.process_time()
    page = tmp_path / "many.html"
    page.write_text(render([read(folder)], None))
    assert time.process_time() - began < ENOUGH
    opened(browser, page)
    timing = "const t = performance.timing; return (t.loadEventEnd - t.navigationStart) / 1000"
    assert 0 < browser.execute_script(timing) < ENOUGH
    assert len(found(browser, "#map .node")) == 325
    assert page.stat().st_size < 300_000
