"""The walk harness: any policy on any claims, stored as it goes, resumable, on one process or many.

``evaluate`` leaves in its folder:

* ``config.yaml``: the resolved config, its hash, the policy's name and fingerprint, a hash of the data;
* ``episodes.jsonl`` (and ``episodes.parquet`` if asked): every episode, in task order;
* ``summary.json``: every figure with interval and n, endings, coverage, probes;
* ``plots/*.png``.

While it plays, each process appends to ``episodes.part-RANK.jsonl``; these go once ``episodes.jsonl`` stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from provgym.envs.provenance import Instance
from provgym.eval.bootstrap import DEFAULT_RESAMPLES, DEFAULT_SEED
from provgym.eval.episode_store import read_episodes, write_episodes
from provgym.eval.probes import probes_of
from provgym.eval.processes import Processes, current_processes
from provgym.eval.run_files import write_atomic, write_json_atomic
from provgym.eval.walk_config import (
    LoadedInstances,
    WalkEvalConfig,
    build_tasks,
    config_hash,
    instances_hash,
    load_instances,
)
from provgym.eval.walk_play import EPISODES_FILE, PARTS_PATTERN, Progress, play_missing, together
from provgym.eval.walk_result import WalkEvalResult
from provgym.eval.walk_summary import WalkSummary, summarise
from provgym.generators.episode import Episode, Policy
from provgym.rewards.rubric import Rubric


def evaluate(
    config: WalkEvalConfig,
    policy: Policy,
    out_dir: Path,
    *,
    instances: Sequence[Instance] | None = None,
    fingerprint: str = "",
    rubric: Rubric | None = None,
    parquet: bool = False,
    plots: bool = True,
    retry_errors: bool = True,
    processes: Processes | None = None,
    on_progress: Progress | None = None,
) -> WalkEvalResult:
    """Play a policy on the claims of a config and write what came of it.

    An evaluation that was interrupted goes on with what is missing when it is called again with the same
    arguments. Every process of a launch must call this; all get the same result, rank 0 writes it.

    Args:
        config: What to play.
        policy: Who plays; ``config.decoding`` must be how it was built.
        out_dir: Folder of this evaluation alone; made if absent.
        instances: What to play in place of ``config.claims``.
        fingerprint: Tells this policy's weights from others of its name, so that they are never mixed.
        rubric: Reported as ``reward`` and ``reward_TERM``; the full PAPT rubric if None.
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
    loaded = load_instances(config) if instances is None else LoadedInstances(list(instances))
    tasks = build_tasks(config, loaded.instances)
    header = {
        "policy": policy.name,
        "fingerprint": fingerprint,
        "config_hash": config_hash(config),
        "data_hash": instances_hash(loaded.instances),
        "walk_eval": config.model_dump(mode="json"),
    }
    is_first = processes.rank == 0
    together(processes, lambda: claim_folder(out_dir, header) if is_first else None)
    episodes = play_missing(policy, tasks, out_dir, processes, retry_errors=retry_errors, on_progress=on_progress)

    def finish() -> list[WalkEvalResult]:
        if not is_first:
            return []
        in_order = [episodes[number] for number in range(len(tasks))]
        result = _result(config, loaded, in_order, header, rubric, processes.world_size, out_dir)
        _write(result, parquet=parquet, plots=plots)
        return [result]

    return processes.gather(together(processes, finish))[0]


def rescore(
    path: Path,
    rubric: Rubric,
    *,
    seed: int = DEFAULT_SEED,
    resamples: int = DEFAULT_RESAMPLES,
) -> WalkSummary:
    """Score stored episodes under another rubric; nothing is played.

    Args:
        path: An evaluation's folder, or a ``.jsonl`` or ``.parquet`` file of episodes.
        rubric: What to score by.
        seed: Run seed of the resampling; with the evaluation's own seed its figures come back exactly.
        resamples: Bootstrap resamples.

    Raises:
        FileNotFoundError: If there are no episodes at ``path``.
        ValueError: If a line is no episode; the message names file and line.
    """
    file = path / EPISODES_FILE if path.is_dir() else path
    return summarise(read_episodes(file), rubric=rubric, seed=seed, resamples=resamples)


def claim_folder(out_dir: Path, header: Mapping[str, Any]) -> None:
    """Write ``config.yaml``, or check that the one that stands there is of this very evaluation."""
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
    config: WalkEvalConfig,
    loaded: LoadedInstances,
    episodes: Sequence[Episode],
    header: Mapping[str, Any],
    rubric: Rubric | None,
    world_size: int,
    out_dir: Path,
) -> WalkEvalResult:
    probes = probes_of(loaded.instances)
    summary = summarise(episodes, rubric=rubric, seed=config.seed, resamples=config.resamples, probes=probes)
    return WalkEvalResult(
        policy=header["policy"],
        fingerprint=header["fingerprint"],
        config=config,
        config_hash=header["config_hash"],
        data_hash=header["data_hash"],
        episodes=tuple(episodes),
        summary=summary,
        num_claims=len({instance.base_claim.claim_id for instance in loaded.instances}),
        world_size=world_size,
        out_dir=out_dir,
        data_report=loaded.report,
        left_out=dict(loaded.left_out),
    )


def _write(result: WalkEvalResult, *, parquet: bool, plots: bool) -> None:
    """Write a result's files; the parts go last, when nothing depends on them any more."""
    out_dir = result.out_dir
    write_episodes(out_dir / EPISODES_FILE, result.episodes)
    if parquet:
        from provgym.eval.episode_parquet import write_parquet

        write_parquet(out_dir / "episodes.parquet", result.episodes)
    write_json_atomic(out_dir / "summary.json", result.to_json())
    if plots and result.episodes:
        from provgym.eval.curve_plots import plot_reliability
        from provgym.eval.plots import plot_conditions, plot_policies

        probes = result.summary.probes
        plot_reliability({result.policy: result.summary.reliability}, out_dir / "plots" / "reliability.png")
        plot_policies({result.policy: result.metrics}, out_dir / "plots" / "metrics.png", probes=probes)
        plot_conditions({result.policy: result.summary.by_condition}, out_dir / "plots" / "conditions.png")
    for part in out_dir.glob(PARTS_PATTERN):
        part.unlink()
