"""The site, as `make site` builds it, in a browser that opens its files without a server."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.runs.test_docs import ROOT
from tests.runs.test_report_in_browser import browser, pytestmark

assert browser  # a fixture
NEEDED = ("mkdocs", "material", "mkdocstrings")
pytestmark = [
    pytestmark,
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, NEEDED)),
        reason="MkDocs is not installed with all parts: pip install '.[docs]'",
    ),
]
NARROW, WIDE = (
    {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width == 390}
    for width in (390, 1280)
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
    )
    assert built.returncode == 0, built.stderr
    return out


def test_the_search_works_without_a_server_and_nothing_is_loaded_from_elsewhere(browser, site):
    from selenium.webdriver.support.wait import WebDriverWait

    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", WIDE)
    browser.get_log("performance")
    browser.get((site / "guide/runs.html").as_uri())
    box = browser.find_element("css selector", "[data-md-component=search-query]")
    box.click()
    box.send_keys("leaderboard")
    links = WebDriverWait(browser, 10).until(
        lambda driver: driver.find_elements("css selector", ".md-search-result__link")
    )
    assert any("guide/sweeps.html" in link.get_attribute("href") for link in links)
    sent = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    urls = [
        message["params"]["request"]["url"]
        for message in sent
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert urls and all(url.startswith(("file:", "data:", "blob:")) for url in urls)


def test_no_page_is_wider_than_a_telephone_and_names_of_fields_stay_whole(browser, site):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", NARROW)
    for page in sorted(site.rglob("*.html")):
        browser.get(page.as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") == 390, (
            page
        )
        broken = browser.execute_script(
            "return [...document.querySelectorAll('td:first-child code')]"
            ".filter((code) => code.getClientRects().length > 1).map((code) => code.innerText)"
        )
        assert broken == [], page


@pytest.mark.parametrize(("preferred", "scheme"), [("light", "default"), ("dark", "slate")])
def test_the_colours_are_those_of_the_system(browser, site, preferred, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": preferred}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get((site / "index.html").as_uri())
    body = browser.find_element("css selector", "body")
    assert body.get_attribute("data-md-color-scheme") == scheme


def test_names_of_the_python_page_lead_to_their_docstrings(browser, site):
    browser.get((site / "reference/api.html").as_uri())
    links = browser.execute_script(
        "return [...document.querySelectorAll('td:first-child > a')].map((link) => "
        "[link.innerText, Boolean(document.getElementById(link.hash.slice(1)))])"
    )
    assert ["graphfl_jax.run", True] in links and all(described for _, described in links)
