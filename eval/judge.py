"""The judgement harness: any policy on any claims with all routes shown at once; stored as it goes, resumable.

A judgement is stored as an episode without walks, so stores, metrics and comparisons are those of walking. The files
in a policy's folder are those of :mod:`provgym.eval.walk`; ``config.yaml`` holds ``judge_eval`` in the place of
``walk_eval``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provgym.envs.provenance import Instance
from provgym.eval.episode_store import write_episodes
from provgym.eval.judge_config import JudgeEvalConfig, build_judge_tasks, load_judge_instances
from provgym.eval.judge_summary import JudgeSummary, summarise_judgements
from provgym.eval.processes import Processes, current_processes
from provgym.eval.run_files import write_json_atomic
from provgym.eval.walk import claim_folder
from provgym.eval.walk_config import LoadedInstances, config_hash, instances_hash
from provgym.eval.walk_play import EPISODES_FILE, PARTS_PATTERN, Progress, play_missing, together
from provgym.eval.walk_result import UNKNOWN_TOKEN_LIMIT
from provgym.generators.episode import Episode, Policy

PLOTTED = ("accuracy", "support_rate", "refute_rate", "mixed_rate")


@dataclass(frozen=True)
class JudgeResult:
    """A finished evaluation.

    Attributes:
        policy: Name of the policy.
        fingerprint: What tells this policy's weights from others of its name; empty if not given.
        config: What was asked for.
        config_hash: 12 hexadecimal digits of the config.
        data_hash: 12 hexadecimal digits of the instances.
        episodes: In task order.
        summary: Every figure.
        num_claims: Base claims judged.
        world_size: Processes that played.
        out_dir: Where the files lie.
        data_report: A loader's account as lines for a terminal; empty for generated claims.
        left_out: Reason to number of claims or lines that the loader left out.
    """

    policy: str
    fingerprint: str
    config: JudgeEvalConfig
    config_hash: str
    data_hash: str
    episodes: tuple[Episode, ...]
    summary: JudgeSummary
    num_claims: int
    world_size: int
    out_dir: Path
    data_report: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures has to know."""
        notes = []
        coverage = self.summary.coverage
        if not self.episodes:
            notes.append("n = 0, not available: there was nothing to judge")
        if coverage.errors:
            notes.append(f"{coverage.errors} of {coverage.episodes} judgements ended in error and are not scored")
        cut = sum(episode.cut_characters > 0 for episode in self.episodes)
        if cut:
            characters = sum(episode.cut_characters for episode in self.episodes)
            notes.append(f"{cut} of {coverage.episodes} prompts were cut, by {characters} characters in all")
        for mitigation, found in self.summary.by_mitigation.items():
            for name, rate in found.metrics.items():
                if name.endswith("unknown_token_rate") and rate.is_available and rate.value > UNKNOWN_TOKEN_LIMIT:
                    text = "the policy cannot read this text; figures are not meaningful"
                    notes.append(f"{mitigation} {name} {rate.value:.3f}: {text}")
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """Return what ``summary.json`` holds; ``metrics`` and ``shifts`` are those of the first mitigation."""
        summary = self.summary.to_json()
        first = summary["by_mitigation"].get(self.config.mitigations[0], {"metrics": {}, "shifts": {}})
        return {
            "kind": "judge",
            "policy": self.policy,
            "fingerprint": self.fingerprint,
            "config_hash": self.config_hash,
            "data_hash": self.data_hash,
            "seed": self.config.seed,
            "split": self.config.split,
            "conditions": list(dict.fromkeys(episode.condition for episode in self.episodes)),
            "mitigations": list(self.config.mitigations),
            "decoding": self.config.decoding,
            "num_claims": self.num_claims,
            "num_episodes": len(self.episodes),
            "world_size": self.world_size,
            "metrics": first["metrics"],
            "shifts": first["shifts"],
            **summary,
            "left_out": dict(self.left_out),
            "notes": list(self.notes),
            "config": self.config.model_dump(mode="json"),
        }


def evaluate_judge(
    config: JudgeEvalConfig,
    policy: Policy,
    out_dir: Path,
    *,
    loaded: LoadedInstances | None = None,
    fingerprint: str = "",
    parquet: bool = False,
    plots: bool = True,
    retry_errors: bool = True,
    processes: Processes | None = None,
    on_progress: Progress | None = None,
) -> JudgeResult:
    """Let a policy judge the claims of a config and write what came of it.

    An evaluation that was interrupted goes on with what is missing when it is called again with the same arguments.
    Every process of a launch must call this; all get the same result, rank 0 writes it.

    Args:
        config: What to judge.
        policy: Who judges; ``config.decoding`` must be how it was built.
        out_dir: Folder of this evaluation alone; made if absent.
        loaded: What to judge in place of ``config.claims``.
        fingerprint: Tells this policy's weights from others of its name, so that they are never mixed.
        parquet: Also write ``episodes.parquet``.
        plots: Also draw ``plots/conditions.png``.
        retry_errors: Judge again what ended in ``error`` in an earlier call.
        processes: Who plays together; from the launcher's environment if None.
        on_progress: Called with (judgements this process has made, judgements it has to make).

    Raises:
        ValueError: If ``out_dir`` holds another evaluation, its episodes cannot be read, or the policy returns an
            episode of another task.
        RuntimeError: If another process of the launch failed.
        OSError: If the disk is full; finished judgements are kept.
    """
    processes = processes or current_processes()
    loaded = load_judge_instances(config) if loaded is None else loaded
    tasks = build_judge_tasks(config, loaded.instances)
    header = {
        "policy": policy.name,
        "fingerprint": fingerprint,
        "config_hash": config_hash(config),
        "data_hash": instances_hash(loaded.instances),
        "judge_eval": config.model_dump(mode="json"),
    }
    is_first = processes.rank == 0
    together(processes, lambda: claim_folder(out_dir, header) if is_first else None)
    episodes = play_missing(policy, tasks, out_dir, processes, retry_errors=retry_errors, on_progress=on_progress)

    def finish() -> list[JudgeResult]:
        if not is_first:
            return []
        in_order = [episodes[number] for number in range(len(tasks))]
        result = _result(config, loaded, in_order, header, processes.world_size, out_dir)
        _write(result, parquet=parquet, plots=plots)
        return [result]

    return processes.gather(together(processes, finish))[0]


def _result(
    config: JudgeEvalConfig,
    loaded: LoadedInstances,
    episodes: Sequence[Episode],
    header: Mapping[str, Any],
    world_size: int,
    out_dir: Path,
) -> JudgeResult:
    instances: Sequence[Instance] = loaded.instances
    return JudgeResult(
        policy=header["policy"],
        fingerprint=header["fingerprint"],
        config=config,
        config_hash=header["config_hash"],
        data_hash=header["data_hash"],
        episodes=tuple(episodes),
        summary=summarise_judgements(episodes, instances, seed=config.seed, resamples=config.resamples),
        num_claims=len({instance.base_claim.claim_id for instance in instances}),
        world_size=world_size,
        out_dir=out_dir,
        data_report=loaded.report,
        left_out=dict(loaded.left_out),
    )


def _write(result: JudgeResult, *, parquet: bool, plots: bool) -> None:
    """Write a result's files; the parts go last, when nothing depends on them any more."""
    out_dir = result.out_dir
    write_episodes(out_dir / EPISODES_FILE, result.episodes)
    if parquet:
        from provgym.eval.episode_parquet import write_parquet

        write_parquet(out_dir / "episodes.parquet", result.episodes)
    write_json_atomic(out_dir / "summary.json", result.to_json())
    if plots and result.episodes:
        from provgym.eval.plots import plot_conditions

        rows = {name: found.by_condition for name, found in result.summary.by_mitigation.items()}
        plot_conditions(rows, out_dir / "plots" / "conditions.png", metrics=PLOTTED)
    for part in out_dir.glob(PARTS_PATTERN):
        part.unlink()
