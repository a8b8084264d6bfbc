"""The page in a real browser: stepping, filters, keyboard, narrow screens, both colour schemes, hostile texts.

Runs where Playwright and a Chromium are installed (``CHROMIUM`` names another binary); it downloads nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.eval.report_runs import HOSTILE, write_hostile_run, write_training_run

from provgym.eval.report_page import write_report_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDE, NARROW = (1280, 900), (360, 740)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    driver = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
    binary = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if binary is None:
        pytest.skip("no Chromium: install one (apt-get install chromium), or name it in CHROMIUM")
    with driver.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report_page(write_training_run(tmp_path_factory.mktemp("training"))).path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report_page(write_hostile_run(tmp_path_factory.mktemp("hostile"))).path


class Opened:
    """A page that was opened, and what went wrong on it."""

    def __init__(self, browser: Browser, path: Path, size: tuple[int, int] = WIDE, **options: Any) -> None:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        self.page: Page = context.new_page()
        self.page.set_default_timeout(180_000)  # a busy machine is no fault of the page
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._note_console)
        self.page.on("dialog", self._note_dialog)
        self.page.goto(path.as_uri())

    def _note_dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(message.text)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def close(self) -> None:
        self.page.context.close()


@pytest.fixture
def opened(browser: Browser, training: Path) -> Iterator[Opened]:
    found = Opened(browser, training)
    yield found
    assert found.problems == []
    found.close()


def test_it_opens_from_the_disk_and_asks_for_nothing_else(opened: Opened, training: Path) -> None:
    assert opened.requests == [training.as_uri()]
    assert opened.page.locator("#viewer").is_visible()
    assert opened.page.locator("#list button").count() > 4
    assert opened.page.locator(".pane").count() == 2
    assert opened.text("#b-text") == "opening"


def test_arrow_keys_step_and_change_the_walk(opened: Opened) -> None:
    page = opened.page
    page.locator("#stage").focus()
    page.keyboard.press("ArrowRight")
    assert opened.text("#b-text").startswith("step 1 of")
    assert opened.text(".pane .cardhead b") == "Step 1"
    assert page.locator(".pane").first.locator(".step[aria-current=step] .num").inner_text() == "1"
    assert "start:" in (page.locator("#live").text_content() or "")
    page.keyboard.press("End")
    assert page.locator("#b-next").is_disabled()
    page.keyboard.press("Home")
    assert page.locator("#b-back").is_disabled()
    before = opened.text("#w-kicker")
    page.keyboard.press("ArrowDown")
    assert opened.text("#w-kicker") != before
    page.keyboard.press("ArrowUp")
    assert opened.text("#w-kicker") == before
    assert page.evaluate("document.activeElement.id") == "stage"


def test_the_graph_follows_the_steps(opened: Opened) -> None:
    page = opened.page
    graph = page.locator(".pane").first.locator("svg.graph")
    assert graph.locator(".node.visited").count() == 0
    assert graph.locator(".move:not(.later)").count() == 0
    page.locator("#stage").focus()
    page.keyboard.press("ArrowRight")
    assert graph.locator(".node.visited").count() == 1
    assert graph.locator(".move.now").count() == 1
    assert graph.locator(".halo.mark-new").count() == 1
    last = page.locator(".pane").first.locator("button.step").count()
    page.keyboard.press("End")
    walked = page.locator(".pane").first.locator(
        ".step .sign.mark-new, .step .sign.mark-echo, .step .sign.mark-connector"
    )
    assert graph.locator(".move:not(.later)").count() == walked.count() < last


def test_credits_of_the_steps_add_up_to_the_reward(opened: Opened) -> None:
    for pane in opened.page.locator(".pane").all():
        total = pane.locator(".reward tfoot b").inner_text()
        assert pane.locator("button.step .sum").last.inner_text() == total
    opened.page.select_option("#f-objective", "2")
    assert "verdict_only" not in opened.text(".reward h4")
    assert opened.text(".reward h4").endswith("training phase 2, steps 7–12")
    assert opened.page.locator(".pane").first.locator(".reward tfoot b").inner_text() in ("+1.000", "−1.000")


def test_filters_narrow_the_list_and_say_how_many(opened: Opened) -> None:
    page = opened.page
    every = page.locator("#list button").count()
    page.select_option("#f-condition", "C2")
    of_c2 = page.locator("#list button").count()
    assert 0 < of_c2 < every
    assert opened.text("#f-count") == f"{of_c2} walks"
    assert {c.inner_text() for c in page.locator("#list .cond").all()} == {"C2"}
    assert opened.text("#w-kicker").startswith("C2")
    page.select_option("#f-condition", "")
    page.select_option("#f-policy", "0")
    page.select_option("#f-outcome", "wrong")
    wrong = page.locator("#list button").count()
    assert 0 < wrong < every
    assert all("start ✗" in r.inner_text() for r in page.locator("#list .results").all())
    page.select_option("#f-policy", "2")
    page.select_option("#f-condition", "C1")
    assert "No walk matches" in opened.text("#list")
    assert not page.locator("#stage").is_visible()
    page.select_option("#f-outcome", "any outcome")
    assert page.locator("#stage").is_visible()


def test_a_pane_shows_another_policy_on_the_same_walk(opened: Opened) -> None:
    page = opened.page
    pane = page.locator(".pane").nth(1)
    pane.locator("select").select_option("2")
    assert page.locator(".pane").nth(1).get_attribute("aria-label") == "ceiling"
    assert page.evaluate("document.activeElement.tagName") == "SELECT"


def test_everything_can_be_reached_by_tab_and_focus_shows(opened: Opened) -> None:
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.locator("#f-condition").focus()
    order = []
    for _ in range(10):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.closest('[id]').id"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") in ("solid", "auto")
    assert order == [
        "f-policy", "f-outcome", "f-objective", "list", "stage", "b-range", "b-next", "b-last", "panes", "panes",
    ]  # fmt: skip
    assert page.locator("button:not([aria-label])").evaluate_all("all => all.every(b => b.textContent.trim())")


def test_the_list_moves_by_arrow_keys(opened: Opened) -> None:
    page = opened.page
    page.locator("#list button").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("[...document.querySelectorAll('#list button')].indexOf(document.activeElement)") == 1
    assert page.locator("#list button").nth(1).get_attribute("aria-current") == "true"


def test_an_address_opens_a_walk_at_a_step(browser: Browser, training: Path) -> None:
    found = Opened(browser, training)
    found.page.goto(f"{training.as_uri()}#walk=2&step=2")
    found.page.reload()
    assert found.text("#b-text").startswith("step 2 of")
    found.page.locator("#b-next").click()
    assert found.page.url.endswith("#walk=2&step=3") or found.text("#b-text").startswith("step 2 of 2")
    found.page.goto(f"{training.as_uri()}#walk=99999&step=x")
    found.page.reload()
    assert found.text("#b-text") == "opening"
    assert found.problems == []
    found.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_narrow_screen_in_both_schemes(browser: Browser, training: Path, scheme: str) -> None:
    found = Opened(browser, training, NARROW, color_scheme=scheme)
    assert found.page.evaluate("document.documentElement.scrollWidth") == NARROW[0]
    panes = [box for pane in found.page.locator(".pane").all() if (box := pane.bounding_box()) is not None]
    assert [box["width"] <= NARROW[0] for box in panes] == [True, True]
    assert panes[0]["y"] + panes[0]["height"] <= panes[1]["y"]  # below each other
    dark = found.page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(v => v < 60)")
    assert dark is (scheme == "dark")
    assert found.problems == []
    found.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast(browser: Browser, training: Path, scheme: str) -> None:
    """WCAG 2.1 AA: 4.5 to 1 for texts, by the formula of the recommendation."""
    found = Opened(browser, training, color_scheme=scheme)
    names = ["--ink", "--muted", "--support", "--refute", "--new", "--echo", "--illegal", "--good", "--bad"]
    ratios = found.page.evaluate(
        """names => {
          const style = getComputedStyle(document.documentElement);
          const luminance = (name) => {
            const hex = style.getPropertyValue(name).trim().replace(/^#(.)(.)(.)$/, "#$1$1$2$2$3$3");
            const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
              .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          return names.flatMap((name) => ["--paper", "--card", "--soft"].map((ground) => {
            const [a, b] = [luminance(name), luminance(ground)].sort((x, y) => y - x);
            return [name, ground, (a + 0.05) / (b + 0.05)];
          }));
        }""",
        names,
    )
    assert [entry for entry in ratios if entry[2] < 4.5] == []
    found.close()


def test_motion_stops_where_it_is_not_wanted(browser: Browser, training: Path) -> None:
    found = Opened(browser, training, reduced_motion="reduce")
    assert found.page.evaluate("getComputedStyle(document.querySelector('.halo')).transitionDuration") == "0s"
    assert found.page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    found.close()


def test_hostile_texts_run_nothing_and_are_shown_as_they_are(browser: Browser, hostile: Path) -> None:
    """Fault kind: markup injection, in claims, sources, route kinds, actions, citations and names."""
    found = Opened(browser, hostile)
    page = found.page
    for _ in range(page.locator("#list button").count()):
        page.locator("#stage").focus()
        for _ in range(7):
            page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
    assert page.locator("img").count() == 0
    assert page.locator("u").count() == 0
    assert page.locator("#w-claim").text_content() == f"Claim 3 {HOSTILE}"
    assert HOSTILE in page.locator(".answer").first.inner_text().replace("\n", "\u2028") or "A3" in found.text(
        ".answer"
    )
    assert found.problems == []
    assert found.requests == [hostile.as_uri()]
    found.close()


def test_provenance_of_a_clumsy_answer_is_spelled_out(browser: Browser, hostile: Path) -> None:
    found = Opened(browser, hostile)
    text = found.text(".pane .answer")
    assert "States 3 supporting" in text
    assert "Cites S9: no such source was shown." in text
    assert "Cites S1: read; written 2 times." in text
    assert "its evidence never read" in text
    found.close()


def test_a_value_is_read_off_a_curve(opened: Opened) -> None:
    curve = opened.page.locator("svg[data-curve='rollout/accuracy']")
    curve.scroll_into_view_if_needed()
    box = curve.bounding_box()
    assert box is not None
    share = (38 + 5 / 11 * 260) / (260 + 84)  # step 6 of 12, in a field of 260 units between margins of 38 and 46
    opened.page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    assert "step 6: 0.500" in opened.text("[data-for='rollout/accuracy']")
