"""Tables, comparisons and plots."""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from provgym.eval.bootstrap import paired_difference
from provgym.eval.compare import compare_policies
from provgym.eval.estimate import Estimate
from provgym.eval.metrics import METRICS
from provgym.eval.plots import plot_conditions, plot_policies, plot_training, read_series
from provgym.eval.probes import general_population, probe_cases
from provgym.eval.table import (
    ResultTable,
    comparison_table,
    condition_table,
    endings_table,
    policy_table,
    print_tables,
)
from provgym.generators.episode import Episode

Make = Callable[..., Episode]
A = {"accuracy": Estimate(0.9, 0.85, 0.94, 500), "general_accuracy": Estimate.missing()}
B = {"accuracy": Estimate(0.4, float("nan"), float("nan"), 3), "general_accuracy": Estimate(0.5, 0.4, 0.6, 9)}


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def ink(path: Path) -> int:
    """Return how many distinct colours a picture has."""
    from matplotlib.image import imread

    pixels = imread(str(path))
    return len(np.unique((pixels.reshape(-1, pixels.shape[-1]) * 255).astype(np.uint8), axis=0))


def test_policy_table_shows_value_interval_and_n() -> None:
    population = general_population()
    table = policy_table(
        {"naive [start]": B, "PAPT": A}, columns=["accuracy"], probes=probe_cases(population, population)
    )
    assert table.header == ("policy", "accuracy")
    assert table.rows[0] == ("naive [start]", "0.400\nno interval\nn=3")
    assert table.rows[1] == ("PAPT", "0.900\n[0.850, 0.940]\nn=500")
    assert [row[0] for row in table.rows[2:]] == [
        "probe: constant SUPPORT",
        "probe: structure",
        "probe: structure + 1 node",
    ]
    out = io.StringIO()
    print_tables([table], Console(file=out, width=120))
    assert "naive [start]" in out.getvalue(), "names with brackets are no markup"
    assert "[0.850, 0.940]" in out.getvalue()


def test_missing_figures_say_so() -> None:
    """Kind: SciFact without evidence (n = 0, not available)."""
    table = policy_table({"a": A, "b": B}, prefix="general_", columns=["accuracy"])
    assert table.rows[0][1] == "not available\nn=0"
    assert "general" in table.title
    with pytest.raises(ValueError, match="acuracy"):
        policy_table({"a": A}, columns=["acuracy"])


def test_markdown_holds_the_same_cells() -> None:
    table = ResultTable("T", ("a", "b"), (("x|y", "1\n[0, 2]"),), "note")
    assert table.to_markdown().splitlines() == [
        "**T**",
        "",
        "| a | b |",
        "| --- | ---: |",
        "| x\\|y | 1<br>[0, 2] |",
        "",
        "note",
    ]
    with pytest.raises(ValueError, match="3 cells"):
        ResultTable("T", ("a", "b"), (("1", "2", "3"),))


def test_condition_and_endings_tables() -> None:
    assert condition_table({"C1": A}, columns=["accuracy"]).rows == (("C1", "0.900\n[0.850, 0.940]\nn=500"),)
    table = endings_table({"naive": {"answered": 8, "error": 2}})
    assert (table.header, table.rows) == (("", "answered", "error"), (("naive", "8", "2"),))


@pytest.fixture
def three(make_episode: Make) -> dict[str, list[Episode]]:
    """Three policies on the same claims, named and general conditions."""

    def play(right: int) -> list[Episode]:
        return [
            make_episode(f"c{i}", condition=c, answer="MIXED" if i < right else "SUPPORT")
            for i in range(8)
            for c in ("C1", "general")
        ]

    return {"start": play(2), "trained": play(6), "ceiling": play(8)}


def test_comparisons_against_a_baseline_and_of_every_pair(three: dict[str, list[Episode]]) -> None:
    found = compare_policies(three, metrics=["accuracy"], baseline="start", resamples=200)
    assert [(c.first, c.second, c.metric) for c in found] == [
        ("trained", "start", "accuracy"),
        ("trained", "start", "general_accuracy"),
        ("ceiling", "start", "accuracy"),
        ("ceiling", "start", "general_accuracy"),
    ]
    assert found[0].paired.difference.value == pytest.approx(0.5)
    trained, start = ([e for e in three[n] if e.condition == "general"] for n in ("trained", "start"))
    assert found[1].paired == paired_difference(trained, start, METRICS["accuracy"], resamples=200)
    pairs = {(c.first, c.second) for c in compare_policies(three, metrics=["walks"], resamples=20)}
    assert pairs == {("trained", "start"), ("ceiling", "start"), ("ceiling", "trained")}
    row = comparison_table(found).rows[0]
    assert row[:4] == ("trained - start", "accuracy", "0.750", "0.250")
    assert row[4].startswith("+0.500 [+")
    # Two pairs on one metric: Holm doubles the smaller p (6:0), not this one.
    assert row[7:] == ("4:0:4", "0.125", "0.125", "8", "0")


def test_comparisons_that_make_no_sense_are_named(three: dict[str, list[Episode]]) -> None:
    with pytest.raises(ValueError, match="at least two"):
        compare_policies({"a": three["start"]})
    with pytest.raises(ValueError, match="'strt' is none of"):
        compare_policies(three, baseline="strt")
    with pytest.raises(ValueError, match="'trained' against 'start': the first set lacks"):
        compare_policies({"start": three["start"], "trained": three["trained"][:5]})


def test_plots_are_real_pictures(tmp_path: Path) -> None:
    population = general_population()
    plot_policies(
        {"start": B, "PAPT": A},
        tmp_path / "new" / "bars.png",
        metrics=["accuracy"],
        probes={"": probe_cases(population, population)},
    )
    plot_conditions({"start": {"C1": A, "C2": B}}, tmp_path / "map.png", metrics=["accuracy", "echo_rate"])
    for path in (tmp_path / "new" / "bars.png", tmp_path / "map.png"):
        width, height = png_size(path)
        assert width > 300
        assert height > 200
        assert ink(path) > 20
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_policies({}, tmp_path / "none.png")
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_conditions({"a": {}}, tmp_path / "none.png")


def test_bars_are_as_high_as_their_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the figure before it is drawn: heights, interval ends, labels with n."""
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    import provgym.eval.plots as plots

    kept: list[Figure] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: kept.append(figure))
    plot_policies({"start": B, "PAPT": A}, tmp_path / "x.png", metrics=["accuracy"])
    named, general = kept[0].axes
    assert [bar.get_height() for bar in named.patches if isinstance(bar, Rectangle)] == [0.4, 0.9]
    assert [label.get_text() for label in named.get_xticklabels()] == ["start\nn=3", "PAPT\nn=500"]
    assert [label.get_text() for label in general.get_xticklabels()] == ["start\nn=9", "PAPT\nn=0"]
    assert "not available" in [text.get_text() for text in general.texts]
    (segments,) = [c.get_segments() for c in named.collections if isinstance(c, LineCollection)]
    assert [point[1] for point in segments[0]] == pytest.approx([0.85, 0.94])


def test_training_curve_reads_gaps_repeats_and_half_lines(tmp_path: Path) -> None:
    """Kinds: NaN in a mean (gaps are left out), a resumed run that logs a step again, a killed writer."""
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(
        b'{"step": 2, "reward": 0.8}\n{"step": 0, "reward": 0.5}\n{"step": 1, "reward": NaN, "kl": null}\n'
        b'\n{"step": 2, "reward": 0.9, "note": "text"}\n{"step": 3, "rew'
    )
    series = read_series(file)
    assert [step for step, _ in series["reward"]] == [0, 1, 2]
    assert [value for _, value in series["reward"]] == pytest.approx([0.5, float("nan"), 0.9], nan_ok=True)
    assert "note" not in series
    plot_training(file, tmp_path / "curve.png", keys=["reward"], smooth=2)
    assert ink(tmp_path / "curve.png") > 20
    with pytest.raises(ValueError, match=r"never holds \['loss'\]; it holds"):
        plot_training(file, tmp_path / "curve.png", keys=["loss"])
    with pytest.raises(ValueError, match="smooth=0"):
        plot_training(file, tmp_path / "curve.png", keys=["reward"], smooth=0)


@pytest.mark.parametrize("line", ["[]", "5", '"step"', "{}", "nonsense", '{"step": "x"}'])
def test_bad_metrics_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(f'{{"step": 0, "reward": 1}}\n{line}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: expected a JSON object"):
        read_series(file)


def test_plots_leave_no_global_state() -> None:
    """Kind: global RNG, of pictures: drawing must not load pyplot, whose state is global."""
    import subprocess

    code = "import sys, provgym.eval.plots; assert 'matplotlib.pyplot' not in sys.modules"
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
