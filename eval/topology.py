"""The topology harness: methods that answer the same questions with teams of agents; stored as they go, resumable.

``evaluate_methods`` leaves in its folder:

* ``config.yaml``: what was asked for, its hash, a hash of the questions, the agents' fingerprint;
* ``runs/METHOD.jsonl``: every run of every method, in the questions' order;
* ``summary.json``: method to accuracy, score, tokens, calls, nodes, edges; ``adaptation``; and ``details`` with every
  figure, comparison, ending and Verifier account;
* ``report.md``, ``comparison.json`` and ``plots/*.png``.

``rescore_methods`` computes all figures again from ``runs/``: nothing is executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provgym.eval.evaluation import claim_folder
from provgym.eval.run_files import write_json_atomic
from provgym.eval.topology_estimates import Resampling
from provgym.eval.topology_methods import Executor, Method, Question
from provgym.eval.topology_names import KGAT, METHODS, SINGLE_AGENT
from provgym.eval.topology_play import Watch, play_methods, questions_hash
from provgym.eval.topology_report import write_report
from provgym.eval.topology_result import TopologyEvalResult
from provgym.eval.topology_runs import checked_again
from provgym.eval.topology_store import read_methods
from provgym.eval.topology_summary import summarise_methods
from provgym.generators.topology_targets import ScoreRule

__all__ = ["TopologyEvalResult", "evaluate_methods", "reference_of", "rescore_methods", "write_result"]

SUMMARY_FILE = "summary.json"


def evaluate_methods(
    methods: Sequence[Method],
    questions: Sequence[Question],
    executor: Executor,
    out_dir: Path,
    *,
    executor_fingerprint: str,
    rule: ScoreRule,
    reference: str | None = None,
    settings: Mapping[str, Any] | None = None,
    config_hash: str = "",
    resampling: Resampling | None = None,
    retry_errors: bool = True,
    plots: bool = True,
    on_progress: Watch | None = None,
) -> TopologyEvalResult:
    """Let methods answer questions and write what came of it; one process.

    An evaluation that was interrupted goes on with what is missing when it is called again with the same arguments.
    Methods may be added to a finished one.

    Args:
        methods: Who answers; see :func:`~provgym.eval.topology_ladder.build_methods`.
        questions: What is asked, the same of all.
        executor: Runs teams, the same for all.
        out_dir: Folder of this evaluation alone; made if absent.
        executor_fingerprint: What decides a team's run beside the question: agent, sampling, error model.
        rule: Prices of structure.
        reference: The method that others are compared with; see :func:`reference_of` if None.
        settings: Put into ``config.yaml`` for the reader.
        config_hash: Of the settings that decide questions; methods need not be among them.
        resampling: Seed and number of resamples.
        retry_errors: Play questions again whose stored run ended in ``error``.
        plots: Also draw ``plots/*.png``.
        on_progress: Told after each run.

    Raises:
        ValueError: If there is no method or question, the folder holds another evaluation, or a method is at fault.
        OSError: If the disk is full; finished runs are kept.
    """
    if not methods or not questions:
        raise ValueError(f"found {len(methods)} methods and {len(questions)} questions; expected at least one of each")
    header = {
        "policy": "topology methods",
        "fingerprint": executor_fingerprint,
        "config_hash": config_hash,
        "data_hash": questions_hash(questions),
        "topology_eval": dict(settings or {}),
    }
    claim_folder(out_dir, header)
    runs = play_methods(
        methods,
        questions,
        executor,
        out_dir,
        executor_fingerprint=executor_fingerprint,
        retry_errors=retry_errors,
        on_progress=on_progress,
    )
    resampling = resampling or Resampling()
    summary = summarise_methods(runs, rule, reference=reference or reference_of(list(runs)), resampling=resampling)
    result = TopologyEvalResult(runs, summary, rule, resampling, out_dir, header)
    write_result(result, plots=plots)
    return result


def rescore_methods(
    folder: Path,
    rule: ScoreRule,
    *,
    reference: str | None = None,
    resampling: Resampling | None = None,
    reads_again: bool = False,
) -> TopologyEvalResult:
    """Compute every figure again from stored runs; nothing is executed and nothing is written.

    Args:
        folder: Of a topology evaluation.
        rule: Prices of structure.
        reference: The method that others are compared with; see :func:`reference_of` if None.
        resampling: With the evaluation's own, its figures come back exactly.
        reads_again: Read every answer anew from the last message, as after a change of the reader.

    Raises:
        FileNotFoundError: If there are no finished runs.
        ValueError: If a line is no stored run; the message names file and line.
    """
    stored = read_methods(folder)
    order = [name for name in METHODS if name in stored] + [name for name in stored if name not in METHODS]
    runs = {name: [checked_again(r) if reads_again else r for r in stored[name]] for name in order}
    resampling = resampling or Resampling()
    summary = summarise_methods(runs, rule, reference=reference or reference_of(order), resampling=resampling)
    return TopologyEvalResult(runs, summary, rule, resampling, folder)


def reference_of(names: Sequence[str]) -> str:
    """Return what others are compared with: ``kgat`` if it is there, else ``single_agent``, else the first.

    Example:
        >>> reference_of(["debate", "single_agent"])
        'single_agent'
    """
    return next((name for name in (KGAT, SINGLE_AGENT) if name in names), names[0])


def write_result(result: TopologyEvalResult, *, plots: bool = True) -> None:
    """Write a result's summary, report and pictures.

    Raises:
        OSError: If the folder cannot be written.
    """
    write_json_atomic(result.out_dir / SUMMARY_FILE, result.to_json())
    write_report(result, plots=plots)
