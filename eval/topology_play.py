"""Playing what an evaluation of methods still lacks: every run stored as it ends, nothing played twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from provgym.eval.topology_methods import Executor, Method, Question
from provgym.eval.topology_runs import MethodRun, RunKey
from provgym.eval.topology_store import RunWriter, merge_runs, part_file, read_runs, runs_file, write_runs

Watch = Callable[[str, int, int], None]
"""Called with (method, questions it has answered, questions it has to answer)."""


def play_methods(
    methods: Sequence[Method],
    questions: Sequence[Question],
    executor: Executor,
    folder: Path,
    *,
    executor_fingerprint: str,
    retry_errors: bool = True,
    on_progress: Watch | None = None,
) -> dict[str, list[MethodRun]]:
    """Let every method answer every question that no earlier call has answered.

    Args:
        methods: Distinct names; one that builds on another is played after it.
        questions: Distinct (task id, replicate).
        executor: Runs teams; the same for all methods.
        folder: Where earlier calls left runs, and where this one leaves them.
        executor_fingerprint: What decides a team's run beside the question: agent, sampling, error model.
        retry_errors: Play questions again whose stored run ended in ``error``.
        on_progress: Told after each run.

    Returns:
        Method to its runs, both in the order given.

    Raises:
        ValueError: If names or questions repeat, a method builds on one that is not played, or stored runs are of
            other questions or another setup; the message names the file.
        BlockingIOError: If another evaluation is writing to the folder.
        OSError: If the disk is full; finished runs are kept.
    """
    _refuse_repeats([method.name for method in methods], "method")
    _refuse_repeats([question.key for question in questions], "question (task, replicate) =")
    setups = _setups(methods, executor_fingerprint)
    played: dict[str, list[MethodRun]] = {}
    for method in _in_order(methods):
        earlier = {} if method.builds_on is None else {run.key: run for run in played[method.builds_on]}
        played[method.name] = _play(
            method, setups[method.name], questions, executor, folder, earlier, retry_errors, on_progress
        )
    return {method.name: played[method.name] for method in methods}


def questions_hash(questions: Sequence[Question]) -> str:
    """Return 12 hexadecimal digits over what is asked and shown, so that changed data is noticed on resuming."""
    digest = hashlib.sha256()
    for question in questions:
        task = question.task
        row = (task.task_id, task.base_id, task.question, task.gold, task.answer_kind, list(task.choices))
        shown = [unit.linearised() for unit in question.evidence.units]
        digest.update(json.dumps([*row, question.replicate, shown]).encode() + b"\n")
    return digest.hexdigest()[:12]


def _play(
    method: Method,
    setup: str,
    questions: Sequence[Question],
    executor: Executor,
    folder: Path,
    earlier: Mapping[RunKey, MethodRun],
    retry_errors: bool,
    on_progress: Watch | None,
) -> list[MethodRun]:
    """Play one method's missing questions and put its file in place."""
    finished, part = runs_file(folder, method.name), part_file(folder, method.name)
    with RunWriter(part) as writer:  # it cuts a half-written last line away before the file is read
        found = merge_runs(
            run for path in (finished, part) if path.is_file() for run in _checked(path, method.name, setup, questions)
        )
        missing = [q for q in questions if q.key not in found or (retry_errors and not found[q.key].is_scored)]
        done = len(questions) - len(missing)

        def keep(number: int, run: MethodRun) -> None:
            nonlocal done
            if run.key != missing[number].key or run.method != method.name:
                raise ValueError(f"method {method.name!r} returned {run.where} for question {missing[number].key}")
            stored = replace(run, setup=setup)
            writer.append(stored)
            found[run.key] = stored
            done += 1
            if on_progress is not None:
                on_progress(method.name, done, len(questions))

        if missing:
            _answer(method, missing, executor, earlier, keep, part)
        lacking = [q.key for q in questions if q.key not in found]
        if lacking:
            raise ValueError(f"method {method.name!r} left {len(lacking)} questions out, such as {lacking[0]}")
        runs = [found[question.key] for question in questions]
        if missing or not finished.is_file():
            write_runs(finished, runs)
    part.unlink()
    return runs


def _answer(
    method: Method,
    missing: Sequence[Question],
    executor: Executor,
    earlier: Mapping[RunKey, MethodRun],
    keep: Callable[[int, MethodRun], None],
    part: Path,
) -> None:
    try:
        method.play(missing, executor, earlier, keep)
    except Exception as error:
        error.add_note(f"method {method.name!r}: finished runs are kept in {part}; the same call goes on from there")
        raise


def _checked(path: Path, method: str, setup: str, questions: Sequence[Question]) -> list[MethodRun]:
    """Read stored runs, and refuse those of another evaluation."""
    asked = {question.key for question in questions}
    runs = read_runs(path)
    for run in runs:
        if run.key not in asked:
            raise ValueError(
                f"{path} holds (task, replicate) = {run.key}, which this evaluation does not ask; choose another "
                "folder, or remove that file"
            )
        if (run.method, run.setup) != (method, setup):
            raise ValueError(
                f"{path} holds a run of method {run.method!r} with setup {run.setup!r}, expected {method!r} with "
                f"{setup!r}: other weights, templates, settings or agents; choose another folder, or remove that file"
            )
    return runs


def _setups(methods: Sequence[Method], executor_fingerprint: str) -> dict[str, str]:
    """Return 12 hexadecimal digits for each method over all that decides its runs."""
    by_name = {method.name: method for method in methods}

    def text(name: str) -> list[str]:
        method = by_name[name]
        below = [] if method.builds_on is None else text(method.builds_on)
        return [method.name, method.fingerprint, *below]

    for method in methods:
        if method.builds_on is not None and method.builds_on not in by_name:
            raise ValueError(
                f"method {method.name!r} builds on {method.builds_on!r}, which is not played; add it to the methods "
                f"{list(by_name)}"
            )
    return {
        name: hashlib.sha256(json.dumps([executor_fingerprint, *text(name)]).encode()).hexdigest()[:12]
        for name in by_name
    }


def _in_order(methods: Sequence[Method]) -> list[Method]:
    """Return the methods so that none stands before the one it builds on."""
    waiting, ordered = list(methods), list[Method]()
    while waiting:
        ready = [m for m in waiting if m.builds_on is None or any(m.builds_on == d.name for d in ordered)]
        if not ready:
            raise ValueError(f"methods {[m.name for m in waiting]} build on each other in a circle; none can begin")
        ordered += ready
        waiting = [m for m in waiting if m not in ready]
    return ordered


def _refuse_repeats(names: Sequence[object], what: str) -> None:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {name!r} stands twice; give each once")
        seen.add(name)
