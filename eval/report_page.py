"""``provgym report``: one self-contained HTML file with a run's figures, curves and walks.

The page needs no network and no server. Everything that a run says (claims, texts, names, notes) is untrusted: the
template escapes it, walks travel as JSON in a data block, the script writes text nodes only, and a content security
policy lets nothing run but the page's own script.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from provgym.eval.estimate import Estimate
from provgym.eval.report_credit import Objective, objectives_of
from provgym.eval.report_curves import HEIGHT, SMOOTHING, WIDTH, Curve, training_curves
from provgym.eval.report_figures import (
    BY_CONDITION,
    LABELS,
    PLOT_WIDTH,
    comparison_rows,
    condition_rows,
    ending_rows,
    figure_tables,
)
from provgym.eval.report_sample import MAX_WALKS, PER_KIND
from provgym.eval.report_source import ReportSource, read_source
from provgym.eval.report_walks import WalkData, collect_walks
from provgym.eval.run_files import write_atomic
from provgym.generators.writable_folder import check_file_writable, check_writable

DEFAULT_NAME = "report.html"
_ASSETS = ("page.html", "macros.html", "report.css", "report.js")


class WrittenReport(NamedTuple):
    """A page that was written.

    Attributes:
        path: Where it lies.
        size: Bytes.
        walks: Walks shown, each for every policy.
        notes: What a reader has to know; they stand on the page too.
    """

    path: Path
    size: int
    walks: int
    notes: tuple[str, ...]


def write_report_page(folder: Path, out: Path | None = None, *, max_walks: int = MAX_WALKS) -> WrittenReport:
    """Write the page of a training run or an evaluation.

    Args:
        folder: Of the run; see ``docs/files.md``.
        out: The file to write; ``report.html`` in ``folder`` if None.
        max_walks: The most walks to show.

    Raises:
        FileNotFoundError: If there is no such folder, or the run has not finished.
        ValueError: If it is another kind of folder, or a file in it cannot be used; the message names it.
        OSError: If the page cannot be written.
    """
    if out is not None:
        check_file_writable(out, "--out", such_as=DEFAULT_NAME)
    source = read_source(folder)
    if out is None:
        check_writable(folder, "--out is not given, and")
    page, walks = render(source, max_walks)
    path = out or folder / DEFAULT_NAME
    content = page.encode("utf-8", "replace")
    write_atomic(path, [content])
    return WrittenReport(path, len(content), len(walks.walks), walks.notes)


def render(source: ReportSource, max_walks: int = MAX_WALKS) -> tuple[str, WalkData]:
    """Return the page's HTML and the walks in it; see :func:`write_report_page`."""
    objectives, notes = objectives_of(source.phases)
    walks = collect_walks(source, objectives, max_walks)
    walks = walks._replace(notes=(*walks.notes, *notes))
    curves = training_curves(source)
    names = [policy.name for policy in source.policies]
    assets = {name: _asset(name) for name in _ASSETS}
    page = (
        _environment(assets)
        .get_template("page.html")
        .render(
            source=source,
            names=names,
            facts=_facts(source, walks),
            tables=figure_tables(source),
            conditions=condition_rows(source),
            condition_metrics=[LABELS[metric] for metric in BY_CONDITION],
            comparisons=comparison_rows(source),
            endings=ending_rows(source),
            curves=curves,
            walks=walks,
            notes=_notes(source, walks),
            style=Markup(assets["report.css"]),
            script=Markup(assets["report.js"]),
            style_hash=_hash(assets["report.css"]),
            script_hash=_hash(assets["report.js"]),
            data=data_block(_viewer_data(names, objectives, walks, curves)),
            sizes={"plot": PLOT_WIDTH, "width": WIDTH, "height": HEIGHT, "smoothing": SMOOTHING, "per_kind": PER_KIND},
        )
    )
    return page, walks


def data_block(data: Mapping[str, Any]) -> Markup:
    r"""Return JSON that is safe inside a ``script`` element, whatever texts it holds.

    Raises:
        ValueError: If ``data`` holds NaN or an infinity.

    Example:
        >>> print(data_block({"claim": "</script><b>\u2028"}))
        {"claim":"\u003c/script\u003e\u003cb\u003e\u2028"}
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _viewer_data(
    names: Sequence[str], objectives: Sequence[Objective], walks: WalkData, curves: Sequence[Curve]
) -> dict[str, Any]:
    """Return what the page's script reads."""
    return {
        "policies": names,
        "objectives": [
            {"name": o.name, "terms": list(o.rubric.terms), "weights": [o.rubric.weights[t] for t in o.rubric.terms]}
            for o in objectives
        ],
        "walks": walks.walks,
        "curves": {curve.key: curve.points for curve in curves},
        "curveSize": [WIDTH, HEIGHT],
    }


def _environment(assets: Mapping[str, str]) -> Environment:
    environment = Environment(
        loader=DictLoader(dict(assets)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"figure": _figure, "interval": _interval, "curve_label": _curve_label}
    return environment


def _asset(name: str) -> str:
    return (files("provgym.eval") / "assets" / "report" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _figure(value: float, sign: bool = False) -> str:
    """Return a figure with three decimals and a true minus sign."""
    text = f"{value:{'+' if sign else ''}.3f}"
    return "0.000" if float(text) == 0 else text.replace("-", "−")


def _interval(estimate: Estimate, sign: bool = False) -> str:
    if not estimate.has_interval:
        return "no interval"
    between = " to " if sign or estimate.low < 0 else "–"  # a dash beside a minus sign misreads
    return f"{_figure(estimate.low, sign)}{between}{_figure(estimate.high, sign)}"


def _curve_label(curve: Curve) -> str:
    return f"{curve.label} over {curve.n} steps: trailing mean from {_figure(curve.start)} to {_figure(curve.end[1])}"


def _facts(source: ReportSource, walks: WalkData) -> list[tuple[str, str]]:
    """Return what was measured, as (name, value)."""
    config, stored = source.policies[0].config, source.policies[0].summary
    facts = [
        ("split", config.split),
        ("claims", f"{stored.get('num_claims', 'unknown')}"),
        ("episodes per policy", f"{walks.played}"),
        ("shown as", "/".join(config.mitigations)),
        ("budget", "/".join(map(str, config.budgets))),
        ("decoding", config.decoding),
    ]
    if source.kind == "training":
        wanted = (("seed", "seed"), ("chosen step", "selected_step"), ("configuration", "config_hash"))
        facts += [(label, str(source.summary[key])) for label, key in wanted if key in source.summary]
    else:
        facts += [("seed", str(config.seed)), ("configuration", source.policies[0].config_hash)]
    return facts


def _notes(source: ReportSource, walks: WalkData) -> list[str]:
    stored = [f"{policy.name}: {note}" for policy in source.policies for note in policy.summary.get("notes", ())]
    return [*stored, *walks.notes]
