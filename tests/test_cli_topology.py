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
PRICES = {"node": 0.03, "edge": 0.015, "cost_weight": 1.0}
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


def write_stored(folder: Path, seed: int, *methods: str, **prices: float) -> Path:
    """Leave what a finished evaluation holds: its prices and the runs of its methods."""
    for method in methods:
        write_runs(runs_file(folder, method), random_runs(method, seed))
    (folder / "config.yaml").write_text(yaml.safe_dump({"topology_eval": PRICES | prices}))
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
        write_stored(tmp_path / f"s{seed}", seed, "kgat", "debate")
    status, said, complaint = run("eval", "topology-pool", "s1", "s2", "s3", "--out", "pooled.json")
    assert status == 0, complaint
    assert "Methods over 3 training seeds" in said
    pooled = json.loads(Path("pooled.json").read_text())
    assert len(pooled["differences"]["debate"]["score"]["by_seed"]) == 3
    assert set(pooled["adaptation"]) == {"agreement", "conflict", "irrelevance", "difference"}
    assert "score = right - 1 x (0.03 x nodes + 0.015 x edges)" in said
    assert set(read_methods(tmp_path / "s1")) == {"kgat", "debate"}


def score_and_parts(file: str, method: str = "kgat") -> tuple[float, float, float, float]:
    """Return score, accuracy, nodes and edges of a method, whichever command wrote the file."""
    data = json.loads(Path(file).read_text())
    found = data.get("methods", data)[method]
    score, accuracy, nodes, edges = (found[name]["value"] for name in ("score", "accuracy", "nodes", "edges"))
    return score, accuracy, nodes, edges


@pytest.mark.parametrize("command", [("topology-rescore", "s1"), ("topology-pool", "s1", "s2")])
def test_stored_prices_are_the_default(run: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    """By hand: score = accuracy - weight x (node x nodes + edge x edges); what is given goes over what is stored."""
    for seed in (1, 2):
        write_stored(tmp_path / f"s{seed}", seed, "kgat", "debate", node=0.2, edge=0.1, cost_weight=0.5)
    for words, (node, edge, weight) in (
        ((), (0.2, 0.1, 0.5)),
        (("--node", "0"), (0.0, 0.1, 0.5)),
        (("--node", "0", "--edge", "0.3", "--cost-weight", "2"), (0.0, 0.3, 2.0)),
    ):
        status, _, complaint = run("eval", *command, *words, "--out", "found.json")
        assert status == 0, complaint
        score, accuracy, nodes, edges = score_and_parts("found.json")
        assert score == pytest.approx(accuracy - weight * (node * nodes + edge * edges))


def test_folders_with_different_prices_are_refused_by_name(run: Run, refusal: Refusal, tmp_path: Path) -> None:
    for seed, node in ((1, 0.03), (2, 0.03), (3, 0.04)):
        write_stored(tmp_path / f"s{seed}", seed, "kgat", node=node)
    said = refusal("eval", "topology-pool", "s1", "s2", "s3")
    assert "different prices: node in s1: 0.03, s2: 0.03, s3: 0.04; give --node" in said
    status, _, complaint = run("eval", "topology-pool", "s1", "s2", "s3", "--node", "0.03")
    assert status == 0, complaint


def test_prices_that_are_nowhere_are_asked_for(run: Run, refusal: Refusal, tmp_path: Path) -> None:
    """Kind: config typing: no figure is made with a price that nobody named."""
    folder = write_stored(tmp_path / "a", 1, "kgat")
    (folder / "config.yaml").unlink()
    assert "a says in no config.yaml or summary.json what its evaluation charged" in refusal(
        "eval", "topology-rescore", "a"
    )
    status, _, complaint = run("eval", "topology-rescore", "a", "--node", "0", "--edge", "0", "--cost-weight", "1")
    assert status == 0, complaint
    (folder / "summary.json").write_text(json.dumps({"details": {"score": PRICES}}))  # a sweep's, or one from Python
    assert run("eval", "topology-rescore", "a")[0] == 0
    (folder / "config.yaml").write_text(yaml.safe_dump({"topology_eval": PRICES | {"edge": -1}}))
    assert "a/config.yaml: edge: Input should be greater than or equal to 0" in refusal("eval", "topology-rescore", "a")
    (folder / "config.yaml").write_text("{")
    assert "a/config.yaml can't be read" in refusal("eval", "topology-rescore", "a")


@pytest.mark.parametrize("command", [("topology-rescore", "a"), ("topology-pool", "a", "b")])
def test_a_file_that_can_not_be_written_is_refused_before_anything_is_read(
    refusal: Refusal, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("")
    assert "--out file/x.json: the folder" in refusal("eval", *command, "--out", "file/x.json")
    assert "--out /proc/x.json: the folder /proc cannot be written" in refusal(
        "eval", *command, "--out", "/proc/x.json"
    )


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
        (("--max-nodes", "0"), "max_nodes: Input should be greater than or equal to 1"),
    ],
)
def test_bad_input_is_one_line(refusal: Refusal, words: tuple[str, ...], message: str) -> None:
    """Kind: config typing: what is wrong, what was expected, before anything is played."""
    assert message in refusal(*SMALL, *words)
    assert not list(Path.cwd().glob("runs/topology/*"))


def test_stored_runs_that_are_none(refusal: Refusal, tmp_path: Path) -> None:
    assert "expected the folder of a topology evaluation" in refusal("eval", "topology-rescore", str(tmp_path))
    write_stored(tmp_path / "a", 1, "kgat")
    assert "at least two" in refusal("eval", "topology-pool", "a")
    assert "a folder stands twice" in refusal("eval", "topology-pool", "a", "a")
    assert "expected a file" in refusal("eval", "topology-rescore", "a", "--out", "a")
    assert "reference 'star' is none of the methods" in refusal("eval", "topology-rescore", "a", "--reference", "star")


def test_a_run_s_own_folder_is_no_place_for_it(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "run" / "rounds").mkdir(parents=True)
    assert "is the folder of a run or a model" in refusal(*SMALL, "--out", "run")


def test_a_trained_generator_under_another_limit(run: Run, refusal: Refusal, tmp_path: Path) -> None:
    """Teams grow past the N_max of training; questions, and what they may be compared by, stay the run's own."""
    write_run(tmp_path / "run")
    words = ("eval", "topology", "--run", "run", "--limit", "2", "--replicates", "1", "--methods", "kgat,debate")
    for more in ((), ("--max-nodes", "5")):
        status, _, complaint = run(*words, *more)
        assert status == 0, complaint
    own, wide = sorted(Path("runs/topology").iterdir(), key=lambda folder: len(folder.name))
    assert wide.name == f"{own.name}-n5"
    found = [read_methods(folder) for folder in (own, wide)]
    assert [[run.key for run in methods["kgat"]] for methods in found][0] == [r.key for r in found[1]["kgat"]]
    assert {len(run.roles) for run in found[1]["debate"]} == {5}
    assert max(len(run.roles) for run in found[0]["kgat"]) <= 3
    configs = [yaml.safe_load((folder / "config.yaml").read_text()) for folder in (own, wide)]
    assert configs[0]["data_hash"] == configs[1]["data_hash"]
    assert [config["topology_eval"]["max_nodes"] for config in configs] == [3, 5]
    tables = [json.loads((folder / "summary.json").read_text())["adaptation"] for folder in (own, wide)]
    assert set(tables[0]) == set(tables[1]) == {"agreement", "conflict", "irrelevance", "difference"}
    assert "max_nodes=11 must lie in [1, 10] for teams that a generator decodes" in refusal(*words, "--max-nodes", "11")
