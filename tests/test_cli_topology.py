"""``provgym eval topology`` and its two companions, on simulated agents and an untrained generator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from provgym.eval.topology_store import read_methods, runs_file, write_runs
from provgym.generators.hashed_encoder import HashedEncoder
from provgym.generators.kgat_folder import StoredGenerator, save_generator
from provgym.generators.kgat_model import KgatModel, KgatSettings
from provgym.trainers.config_file import dump_config
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.kgat_world_config import AgentsConfig, RetrievalConfig
from tests.eval.topology_records import random_runs

Run = Callable[..., tuple[int, str, str]]
Refusal = Callable[..., str]
SMALL = ("eval", "topology", "--encoder", "hashed", "--limit", "2", "--replicates", "1", "--max-nodes", "3")


def write_run(folder: Path) -> Path:
    """Leave what evaluation needs of a K-GAT run: its configuration and two generators, untrained."""
    settings = KgatSettings(max_nodes=3, max_in_degree=2, hidden_size=8, heads=2)
    config = KgatConfig(
        name=folder.name,
        generator=settings,
        retrieval=RetrievalConfig(encoder="hashed", depth=4),
        agents=AgentsConfig(cache="memory"),
    )
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(config))
    for name, sees in (("generator", True), ("query_generator", False)):
        model = KgatModel(settings, seed=1 + sees)
        save_generator(folder / name, StoredGenerator(model, HashedEncoder().fingerprint, sees_evidence=sees))
    return folder


@pytest.mark.slow
def test_a_run_beside_its_baselines_and_controls(run: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    names = "kgat,query_conditioned,single_agent,self_consistency_matched,debate"
    words = ("eval", "topology", "--run", "run", "--limit", "2", "--replicates", "1", "--methods", names)
    status, said, complaint = run(*words, "--out", "out", "--error-factors", "0,1")
    assert status == 0, complaint
    assert "Non-inferiority" in said
    assert "a single agent is as good by score" in said
    summary = json.loads(Path("out/summary.json").read_text())
    assert {*names.split(","), "adaptation", "details"} == set(summary)
    assert summary["kgat"]["accuracy"]["n"] == 6
    stored = yaml.safe_load(Path("out/config.yaml").read_text())["topology_eval"]
    assert (stored["depth"], stored["max_nodes"], stored["agents"]["kind"]) == (4, 3, "simulated")
    assert Path("out/sweeps/error_factor/sweep.json").is_file()
    before = Path("out/runs/kgat.jsonl").read_bytes()
    status, again, complaint = run(*words, "--out", "out")
    assert status == 0, complaint
    assert Path("out/runs/kgat.jsonl").read_bytes() == before
    assert json.loads(Path("out/summary.json").read_text()) == summary
    status, said, complaint = run("eval", "topology-rescore", "out", "--node", "0", "--edge", "0", "--out", "free.json")
    assert status == 0, complaint
    free = json.loads(Path("free.json").read_text())
    assert free["debate"]["score"]["value"] == free["debate"]["accuracy"]["value"]


def test_seeds_are_pooled(run: Run, tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        for method in ("kgat", "debate"):
            write_runs(runs_file(tmp_path / f"s{seed}", method), random_runs(method, seed))
    status, said, complaint = run("eval", "topology-pool", "s1", "s2", "s3", "--out", "pooled.json")
    assert status == 0, complaint
    assert "Methods over 3 training seeds" in said
    pooled = json.loads(Path("pooled.json").read_text())
    assert len(pooled["differences"]["debate"]["score"]["by_seed"]) == 3
    assert set(read_methods(tmp_path / "s1")) == {"kgat", "debate"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--methods", "vote"), "expected some of kgat"),
        (("--methods", ","), "--methods ',' names nothing"),
        (("--methods", "kgat"), "method 'kgat' needs a generator"),
        (("--methods", "debate,debate"), "names something twice"),
        (("--depths", "1,x"), "depths"),
        (("--depth", "0"), "depth: Input should be greater than or equal to 1; found 0"),
        (("--error-factors", "much"), "expected numbers by commas"),
        (("--file", "x.jsonl"), "--file go with --benchmark"),
        (("--benchmark", "gsm9k"), "gsm9k"),
        (("--generator", "nowhere"), "holds no generator.json"),
        (("--query-generator", "nowhere"), "is a control of generator"),
        (("--run", "nowhere"), "holds no config.yaml"),
        (("--split", "tests"), "split: Input should be 'train', 'dev' or 'test'"),
        (("--node", "-1"), "node: Input should be greater than or equal to 0"),
    ],
)
def test_bad_input_is_one_line(refusal: Refusal, words: tuple[str, ...], message: str) -> None:
    """Kind: config typing: what is wrong, what was expected, before anything is played."""
    assert message in refusal(*SMALL, *words)
    assert not list(Path.cwd().glob("runs/topology/*"))


def test_stored_runs_that_are_none(refusal: Refusal, tmp_path: Path) -> None:
    assert "expected the folder of a topology evaluation" in refusal("eval", "topology-rescore", str(tmp_path))
    write_runs(runs_file(tmp_path / "a", "kgat"), random_runs("kgat", 1))
    assert "at least two" in refusal("eval", "topology-pool", "a")
    assert "a folder stands twice" in refusal("eval", "topology-pool", "a", "a")
    assert "expected a file" in refusal("eval", "topology-rescore", "a", "--out", "a")
    assert "reference 'star' is none of the methods" in refusal("eval", "topology-rescore", "a", "--reference", "star")


def test_a_run_s_own_folder_is_no_place_for_it(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "run" / "rounds").mkdir(parents=True)
    assert "is the folder of a run or a model" in refusal(*SMALL, "--out", "run")
