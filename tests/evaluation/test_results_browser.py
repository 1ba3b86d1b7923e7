"""The page of results in a browser without a network."""

import json
import shutil

import pytest

from rw.evaluation.results import write_results

pytestmark = pytest.mark.full
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'rw[full]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def results(made, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("browser") / "run"
    made.write_arms(workdir, 60)
    made.write_trajectories(workdir, ("trained", "forced_agentic"))
    return write_results(workdir)


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium on the path")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser, results):
    """The page, opened offline; what it asked for and complained of must be nothing, checked at the end."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_offline(True)
    opened = context.new_page()
    requests, complaints = [], []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(results.resolve().as_uri())
    yield opened
    assert not complaints
    assert [url[:60] for url in requests if not url.startswith(("file:", "data:image/png"))] == []
    context.close()


def entries(page):
    return page.locator("#list li").count()


def test_nothing_that_a_worker_wrote_runs(page):
    assert page.locator("#shown pre").first.inner_text()
    assert page.evaluate("window.broken") is None
    assert page.locator("#shown img, #shown script").count() == 0
    for node in page.locator(".dag .node").all():
        node.click()
        assert "</script><script>window.broken = 1</script>" in page.locator("#detail").inner_text()
    page.locator("#shown details summary").click()
    assert "onerror" in page.locator(".turn pre").first.inner_text()
    assert page.evaluate("window.broken") is None


def test_filters_leave_what_fits(page):
    total = entries(page)
    assert f"{total} of {total} shown" in page.locator("#count").inner_text()
    page.select_option("#by-mode", "agentic")
    agentic = entries(page)
    assert 0 < agentic < total and page.locator("#list .chip.agentic").count() == agentic
    page.select_option("#by-outcome", "wrong")
    wrong = entries(page)
    assert 0 < wrong < agentic and page.locator("#list .chip.wrong").count() == wrong
    page.select_option("#by-outcome", "")
    page.select_option("#by-mode", "")
    page.select_option("#by-set", "math_chain")
    assert 0 < entries(page) < total
    page.select_option("#by-set", "")
    identity = page.locator("#shown h3").first.inner_text().split(" · ")[-1]
    page.fill("#by-text", identity)
    assert entries(page) == 1
    page.fill("#by-text", "nobody said this")
    assert entries(page) == 0 and page.locator("#shown *").count() == 0
    page.fill("#by-text", "")
    page.select_option("#by-arm", "")
    assert entries(page) > total


def test_a_click_on_a_node_shows_its_call(page):
    page.select_option("#by-mode", "agentic")
    assert page.locator(".dag .node").count() == 5 and page.locator(".dag .edge").count() == 5
    page.locator('.node[data-node="n2"]').click()
    text = page.locator("#detail").inner_text()
    for words in ("sub-query of n2", "reply of n2", "worker_2", "executor", "10 / unknown", "1 µUSD", "0.5 s"):
        assert words in text, words
    assert page.locator('.node[data-node="n2"]').get_attribute("aria-pressed") == "true"
    page.locator('.node[data-node="question"]').click()
    assert "What is" in page.locator("#detail").inner_text()


def test_the_keyboard_is_enough(page):
    first = page.locator("#shown h3").first.inner_text()
    page.locator("#list").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#shown h3").first.inner_text() != first
    assert page.locator('#list li[aria-selected="true"]').count() == 1
    page.keyboard.press("End")
    last = page.locator('#list li[aria-selected="true"]').get_attribute("id")
    assert last == f"item-{entries(page) - 1}"
    page.locator('.node[data-node="question"]').focus()
    page.keyboard.press("Enter")
    assert page.locator('.node[data-node="question"]').get_attribute("aria-pressed") == "true"


def test_any_two_arms_can_be_compared_both_ways(page, results):
    found = json.loads(results.with_suffix(".json").read_text())["differences"]
    pair = next(d for d in found if (d["first"], d["second"]) == ("forced_single", "oracle"))["average"]
    page.select_option("#first", label="forced to single")
    page.select_option("#second", label="oracle")
    words = page.locator("#difference").inner_text()
    assert f"{100 * pair['mean']:+.1f} ({100 * pair['low']:+.1f} to {100 * pair['high']:+.1f}) points" in words
    page.select_option("#first", label="oracle")
    page.select_option("#second", label="forced to single")
    words = page.locator("#difference").inner_text()
    assert f"{-100 * pair['mean']:+.1f} ({-100 * pair['high']:+.1f} to {-100 * pair['low']:+.1f}) points" in words
    page.select_option("#first", label="forced to single")
    assert page.locator("#difference").inner_text() == "Choose two arms."


def test_tables_sort_by_a_column(page):
    column = page.locator("#accuracy thead button").nth(1)

    def values():
        cells = page.locator("#accuracy tbody tr td:nth-child(2)").all_inner_texts()
        return [float(cell.split()[0]) for cell in cells]

    column.click()
    assert values() == sorted(values(), reverse=True)
    column.click()
    assert values() == sorted(values())
    assert page.locator("#accuracy th").nth(1).get_attribute("aria-sort") == "ascending"


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_its_window_and_can_be_read(page, width, scheme):
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    colours = page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    light, dark = (sum(map(int, colour[4:-1].split(", "))) for colour in colours)
    assert (light > dark) == (scheme == "dark") and abs(light - dark) > 450
