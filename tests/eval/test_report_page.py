"""The page itself: figures equal those stored, nothing that a run says becomes markup, one file without a network."""

from __future__ import annotations

import inspect
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.eval.report_runs import HOSTILE, write_hostile_run, write_training_run
from typer.testing import CliRunner

from provgym.cli import app
from provgym.cli_report import report
from provgym.eval.report_curves import nice_ticks, training_curves
from provgym.eval.report_page import data_block, render, write_report_page
from provgym.eval.report_sample import MAX_WALKS
from provgym.eval.report_source import read_source

ASSETS = Path(__file__).resolve().parents[2] / "eval" / "assets" / "report"


class Page(HTMLParser):
    """What a browser would see: elements, figures of the tables, the data block, texts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.figures: dict[tuple[str, str], float] = {}
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._cell: tuple[str, str] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "td" and "data-metric" in found:
            self._cell = (str(found["data-metric"]), str(found["data-policy"]))
        if tag == "data" and self._cell is not None:
            self.figures[self._cell] = float(str(found["value"]))
            self._cell = None
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data
        else:
            self.words.append(data)

    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training_run(tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hostile_run(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def page(training: Path) -> Page:
    return Page(render(read_source(training))[0])


def test_every_figure_of_the_summary_stands_on_the_page(training: Path, page: Page) -> None:
    summary = json.loads((training / "summary.json").read_text(encoding="utf-8"))
    for policy in ("start", "trained", "ceiling", "gain"):
        for metric, estimate in summary[policy].items():
            assert page.figures[metric, policy] == estimate["value"], (policy, metric)


def test_figures_by_condition_are_those_of_the_evaluations(training: Path, page: Page) -> None:
    for policy in ("start", "trained", "ceiling"):
        stored = json.loads((training / "eval" / policy / "summary.json").read_text(encoding="utf-8"))
        for condition, metrics in stored["by_condition"].items():
            label = f"{condition}/echo rate"
            assert page.figures[label, policy] == metrics["echo_rate"]["value"]
        probes = [p["accuracy"] for group in stored["probes"].values() for p in group]
        shown = [float(str(a["value"])) for tag, a in page.tags if tag == "data"]
        assert set(probes) <= set(shown)


def test_a_figure_that_was_not_measured_is_named_not_invented(training: Path, tmp_path: Path) -> None:
    """Fault kind: what was not measured is null with n = 0, never an invented 0 or 1."""
    source = read_source(training)
    missing = {"value": None, "low": None, "high": None, "n": 0}
    summary = {**source.summary, "trained": {**source.summary["trained"], "accuracy": missing}}
    changed = Page(render(type(source)(**{**vars(source), "summary": summary}))[0])
    assert ("accuracy", "trained") not in changed.figures
    assert "not available" in " ".join(changed.words)


def test_curves_are_the_logged_points_and_their_trailing_mean(training: Path) -> None:
    (reward, accuracy) = training_curves(read_source(training))
    assert (reward.label, accuracy.label) == ("reward", "accuracy")
    # accuracy is step / 12: the mean of steps 3 to 12 at the end, of steps 1 to 10 after the first whole window
    assert accuracy.end[1] == pytest.approx(sum(range(3, 13)) / 120)
    assert accuracy.start == pytest.approx(5.5 / 12)
    assert accuracy.n == 12
    assert [step for step, *_ in accuracy.points] == list(range(1, 13))
    assert list(accuracy.boundaries) == pytest.approx([6 / 11 * 260], abs=0.05)  # phase 2 begins at step 7
    assert accuracy.chosen == pytest.approx(7 / 11 * 260, abs=0.05)
    assert accuracy.raw.split()[0] == f"0.0,{120 - 120 / 12:.1f}"


def test_nan_in_a_curve_is_left_out(training: Path, tmp_path: Path) -> None:
    """Fault kind: NaN in a mean."""
    source = read_source(training)
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": 1, "rollout/reward": 0.5}, {"step": 2, "rollout/reward": None}, {"step": 3, "rollout/reward": 0.8}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (curve,) = training_curves(type(source)(**{**vars(source), "metrics_file": path}))
    assert curve.n == 2
    assert curve.end[1] == pytest.approx(0.65)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_ticks_are_round_and_span_the_values(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    if high - low < 1e-6:
        high = low
    ticks = nice_ticks(low, high)
    allowed = 1e-6 * (1.0 + high - low + max(abs(low), abs(high)))  # ends within rounding stay on their tick
    assert ticks[0] <= low + allowed
    assert ticks[-1] >= high - allowed
    assert 2 <= len(ticks) <= 7
    assert ticks == sorted(set(ticks))


# ---------------------------------------------------------------------------------------------------------- escaping


def test_hostile_texts_stay_texts(hostile: Path) -> None:
    """Fault kinds: markup injection, Unicode lines (U+2028): claims, sources, routes, actions, names of policies."""
    text, walks = render(read_source(hostile))
    assert len(walks.walks) == 4
    found = Page(text)
    assert not [tag for tag, _ in found.tags if tag in ("img", "u")]
    assert not [name for _, attrs in found.tags for name in attrs if name.startswith("on")]
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert "\u2028" not in found.scripts[0]
    assert not re.search("[<>&]", found.scripts[0])
    data = found.data()
    walk = data["walks"][0]
    assert walk["claim"] == f"Claim 0 {HOSTILE}"
    assert walk["condition"] == "own <u>0</u>"
    clumsy = walk["episodes"][data["policies"].index(f"clumsy {HOSTILE}")]
    assert clumsy["steps"][2]["action"] == HOSTILE
    assert f"clumsy {HOSTILE}" in {word.strip("\n") for word in found.words}


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=40), max_size=4))
def test_a_data_block_holds_any_text_and_ends_no_script(data: dict[str, str]) -> None:
    block = str(data_block(data))
    assert json.loads(block) == data
    assert block.isascii()
    assert not set("<>&") & set(block)


def test_lone_surrogates_and_control_characters_are_written(tmp_path: Path, hostile: Path) -> None:
    source = read_source(hostile)
    named = type(source)(**{**vars(source), "name": "a\ud800b\x00<u>"})
    text, _ = render(named)
    assert "<u>" not in text.encode("utf-8", "replace").decode("utf-8")


def test_nan_never_reaches_the_data_block() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        data_block({"value": float("nan")})


# ------------------------------------------------------------------------------------------------------------- one file


def test_the_page_names_no_address_and_lets_only_its_own_script_run(page: Page) -> None:
    policy = next(str(a["content"]) for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for _, attrs in page.tags:
        for name in ("src", "href", "action", "srcset", "style"):
            assert str(attrs.get(name) or "#").startswith("#")
    assert "http://www.w3.org/" in page.scripts[1]  # names of XML, never fetched
    assert not re.search(r"https?://(?!www\.w3\.org/(1999/xhtml|2000/svg))", page.scripts[1])


def test_the_script_writes_texts_never_markup() -> None:
    script = (ASSETS / "report.js").read_text(encoding="utf-8")
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "fetch(",
        "import(",
    ):
        assert way not in script
    assert "</script" not in script
    style = (ASSETS / "report.css").read_text(encoding="utf-8")
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-reduced-motion" in style
    assert "prefers-color-scheme: dark" in style


def test_equal_runs_give_equal_pages(training: Path) -> None:
    assert render(read_source(training))[0] == render(read_source(training))[0]


def test_one_policy_alone_has_a_page_too(hostile: Path) -> None:
    text, _ = render(read_source(hostile / "p1"))
    found = Page(text)
    assert found.data()["policies"] == ["naive"]
    assert ("accuracy", "naive") in found.figures


def test_pairwise_differences_are_shown(hostile: Path, tmp_path: Path) -> None:
    source = read_source(hostile)
    difference = {"value": -0.25, "low": -0.5, "high": 0.0, "n": 4}
    rows = ({"first": "naive", "second": "x", "metric": "walks", "difference": difference},)
    found = Page(render(type(source)(**{**vars(source), "comparisons": rows}))[0])
    assert found.figures["walks", "naive - x"] == -0.25
    assert "−0.250" in found.words


# --------------------------------------------------------------------------------------------------------- command line


def test_the_command_writes_the_page_and_says_its_size(training: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    answer = CliRunner().invoke(app, ["report", str(training), "--out", str(out), "--max-walks", "3"])
    assert answer.exit_code == 0, answer.output
    assert re.search(r"page\.html: 0\.\d MB, 3 walks; open it in a browser", answer.output.replace("\n", " "))
    assert out.stat().st_size < 3_000_000
    assert Page(out.read_text(encoding="utf-8")).data()["walks"][2]


def test_the_default_place_is_the_run_s_folder(training: Path) -> None:
    written = write_report_page(training)
    assert written.path == training / "report.html"
    assert written.size == written.path.stat().st_size
    written.path.unlink()


@pytest.mark.parametrize("broken", [{"probes": [1]}, {"total_endings": 3}, {"by_condition": {"C1": 1}}, {"metrics": 0}])
def test_a_broken_summary_names_its_file(hostile: Path, broken: dict[str, Any]) -> None:
    source = read_source(hostile / "p1")
    policy = source.policies[0]
    changed = type(policy)(**{**vars(policy), "summary": {**policy.summary, **broken}})
    with pytest.raises(ValueError, match=r"p1/summary\.json: "):
        render(type(source)(**{**vars(source), "policies": (changed,)}))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "does not exist"),
        (["RUN", "--max-walks", "0"], "max_walks=0 must be >= 1"),
        (["RUN", "--out", "FOLDER"], "is a folder, expected a file; name one"),
    ],
)
def test_a_wrong_request_is_one_line(training: Path, tmp_path: Path, words: list[str], message: str) -> None:
    places = {"RUN": str(training), "FOLDER": str(tmp_path)}
    answer = CliRunner().invoke(app, ["report", *(places.get(word, word) for word in words)])
    assert answer.exit_code == 2
    assert answer.stderr.startswith("error: ")
    assert answer.stderr.count("\n") == 1
    assert message in answer.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_cannot_be_written_keeps_nothing_half(training: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="Permission"):
        write_report_page(training, tmp_path / "page.html")
    tmp_path.chmod(0o700)
    assert not list(tmp_path.iterdir())


def test_help_has_examples() -> None:
    answer = CliRunner().invoke(app, ["report", "--help"], env={"COLUMNS": "200"})
    assert "Example: provgym report runs/papt-tiny" in answer.output
    assert inspect.signature(report).parameters["max_walks"].default == MAX_WALKS
