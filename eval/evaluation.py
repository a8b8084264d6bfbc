"""Carrying out an evaluation, whatever is asked: stored as it goes, resumable, on one process or many.

It leaves in its folder:

* ``config.yaml``: the resolved config, its hash, the policy's name and fingerprint, a hash of the data;
* ``episodes.jsonl`` (and ``episodes.parquet`` if asked): every episode, in task order;
* ``summary.json``: every figure with interval and n, endings, coverage, probes;
* ``plots/*.png``.

While it plays, each process appends to ``episodes.part-RANK.jsonl``; these go once ``episodes.jsonl`` stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from provgym.eval.episode_store import write_episodes
from provgym.eval.eval_config import EvalConfig, LoadedInstances, config_hash, instances_hash
from provgym.eval.finished import FinishedEvaluation
from provgym.eval.processes import Processes, current_processes
from provgym.eval.run_files import write_atomic, write_json_atomic
from provgym.eval.walk_play import EPISODES_FILE, PARTS_PATTERN, Progress, play_missing, together
from provgym.generators.episode import Episode, EpisodeTask, Policy

R = TypeVar("R", bound=FinishedEvaluation[Any, Any])


@dataclass(frozen=True)
class EvaluationPlan(Generic[R]):
    """What one kind of evaluation asks, and what it makes of the episodes.

    Attributes:
        key: Under which ``config.yaml`` holds the config: ``walk_eval`` or ``judge_eval``.
        config: What was asked for.
        loaded: The instances.
        tasks: All of them, the same on every process.
        result_type: What is returned.
        summarise: Episodes, in task order, to every figure.
        draw: Draws the plots of a result that has episodes.
    """

    key: str
    config: EvalConfig
    loaded: LoadedInstances
    tasks: Sequence[EpisodeTask]
    result_type: type[R]
    summarise: Callable[[Sequence[Episode]], Any]
    draw: Callable[[R], None]


def carry_out(
    plan: EvaluationPlan[R],
    policy: Policy,
    out_dir: Path,
    *,
    fingerprint: str = "",
    parquet: bool = False,
    plots: bool = True,
    retry_errors: bool = True,
    processes: Processes | None = None,
    on_progress: Progress | None = None,
) -> R:
    """Let a policy play what is missing of a plan, and write what came of it.

    An evaluation that was interrupted goes on with what is missing when it is called again with the same
    arguments. Every process of a launch must call this; all get the same result, rank 0 writes it.

    Args:
        plan: What is asked.
        policy: Who plays; ``config.decoding`` must be how it was built.
        out_dir: Folder of this evaluation alone; made if absent.
        fingerprint: Tells this policy's weights from others of its name, so that they are never mixed.
        parquet: Also write ``episodes.parquet``.
        plots: Also draw ``plots/*.png``.
        retry_errors: Play episodes again that ended in ``error`` in an earlier call.
        processes: Who plays together; from the launcher's environment if None.
        on_progress: Called with (episodes this process has played, episodes it has to play).

    Raises:
        ValueError: If ``out_dir`` holds another evaluation, its episodes cannot be read, or the policy
            returns an episode of another task.
        RuntimeError: If another process of the launch failed.
        OSError: If the disk is full; finished episodes are kept.
    """
    processes = processes or current_processes()
    header = {
        "policy": policy.name,
        "fingerprint": fingerprint,
        "config_hash": config_hash(plan.config),
        "data_hash": instances_hash(plan.loaded.instances),
        plan.key: plan.config.model_dump(mode="json"),
    }
    is_first = processes.rank == 0
    together(processes, lambda: claim_folder(out_dir, header) if is_first else None)
    episodes = play_missing(policy, plan.tasks, out_dir, processes, retry_errors=retry_errors, on_progress=on_progress)

    def finish() -> list[R]:
        if not is_first:
            return []
        in_order = [episodes[number] for number in range(len(plan.tasks))]
        result = _result(plan, in_order, header, processes.world_size, out_dir)
        _write(result, plan.draw if plots else None, parquet=parquet)
        return [result]

    return processes.gather(together(processes, finish))[0]


def claim_folder(out_dir: Path, header: Mapping[str, Any]) -> None:
    """Write ``config.yaml``, or check that the one that stands there is of this very evaluation.

    Raises:
        ValueError: If it is of another one, or cannot be read; the message names what differs.
        OSError: If it cannot be written.
    """
    path = out_dir / "config.yaml"
    if not path.is_file():
        text = yaml.safe_dump(dict(header), sort_keys=False, allow_unicode=True)
        write_atomic(path, [text.encode("utf-8", "backslashreplace")])
        return
    try:
        stored = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML ({error}); choose another folder, or remove that one") from error
    for name in ("policy", "fingerprint", "config_hash", "data_hash"):
        there = stored.get(name) if isinstance(stored, dict) else None
        if there != header[name]:
            raise ValueError(
                f"{path} holds an evaluation with {name} {there!r}, this one has {header[name]!r}; "
                "choose another folder, or remove that one"
            )


def _result(
    plan: EvaluationPlan[R], episodes: Sequence[Episode], header: Mapping[str, Any], world_size: int, out_dir: Path
) -> R:
    loaded = plan.loaded
    return plan.result_type(
        policy=header["policy"],
        fingerprint=header["fingerprint"],
        config=plan.config,
        config_hash=header["config_hash"],
        data_hash=header["data_hash"],
        episodes=tuple(episodes),
        summary=plan.summarise(episodes),
        num_claims=len({instance.base_claim.claim_id for instance in loaded.instances}),
        world_size=world_size,
        out_dir=out_dir,
        data_report=loaded.report,
        left_out=dict(loaded.left_out),
    )


def _write(result: R, draw: Callable[[R], None] | None, *, parquet: bool) -> None:
    """Write a result's files; the parts go last, when nothing depends on them any more."""
    out_dir = result.out_dir
    write_episodes(out_dir / EPISODES_FILE, result.episodes)
    if parquet:
        from provgym.eval.episode_parquet import write_parquet

        write_parquet(out_dir / "episodes.parquet", result.episodes)
    write_json_atomic(out_dir / "summary.json", result.to_json())
    if draw is not None and result.episodes:
        draw(result)
    for part in out_dir.glob(PARTS_PATTERN):
        part.unlink()
