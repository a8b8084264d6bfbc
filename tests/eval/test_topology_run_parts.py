"""What a run left for an evaluation: nothing of another training, no team that is none, no control that is none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.trainers.kgat_runs import make_config

from provgym.eval.topology_config import topology_eval_config
from provgym.eval.topology_data import TopologyData, ladder_parts, read_fixed_team
from provgym.eval.topology_ladder import build_methods, default_methods
from provgym.eval.topology_run_parts import parts_of_run
from provgym.generators.hashed_encoder import HashedEncoder
from provgym.generators.kgat_folder import StoredGenerator, load_generator, save_generator
from provgym.generators.kgat_model import KgatModel

TEAM = {"roles": ["Reasoner", "Answerer"], "edges": [[0, 1]]}
LARGE = {"roles": ["Reasoner"] * 5 + ["Answerer"], "edges": [[n, 5] for n in range(5)]}


def generator(folder: Path, **about: Any) -> Path:
    """Write an untrained generator for teams of up to 4."""
    model = KgatModel(make_config(Path("nowhere")).generator, seed=0)
    save_generator(folder, StoredGenerator(model, HashedEncoder().fingerprint, about=about))
    return folder


def fixed(folder: Path, team: Any, training: str = "a") -> Path:
    path = folder / "fixed_team.json"
    path.write_text(json.dumps({"topology": team, "training_hash": training}), encoding="utf-8")
    return path


def test_an_unfinished_run_has_nothing_and_a_finished_one_all(tmp_path: Path) -> None:
    assert parts_of_run(tmp_path) == {}
    second = generator(tmp_path / "query_generator", training_hash="a")
    team = fixed(tmp_path, TEAM)
    assert parts_of_run(tmp_path) == {}
    own = generator(tmp_path / "generator", training_hash="a")
    assert parts_of_run(tmp_path) == {"generator": own, "query_generator": second, "fixed_team": team}
    team.unlink()
    assert parts_of_run(tmp_path) == {"generator": own, "query_generator": second}


@pytest.mark.parametrize("name", ["query_generator", "fixed_team"])
def test_what_another_training_left_is_refused(tmp_path: Path, name: str) -> None:
    """It was played as if it were the run's own control."""
    generator(tmp_path / "generator", training_hash="a")
    generator(tmp_path / "query_generator", training_hash="b" if name == "query_generator" else "a")
    fixed(tmp_path, TEAM, "b" if name == "fixed_team" else "a")
    with pytest.raises(ValueError, match=rf"{name}.*: found training 'b', expected 'a'.*give the run's command again"):
        parts_of_run(tmp_path)


def test_generators_that_note_no_training_are_taken(tmp_path: Path) -> None:
    generator(tmp_path / "generator")
    fixed(tmp_path, TEAM, "b")
    assert set(parts_of_run(tmp_path)) == {"generator", "fixed_team"}


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    generator(tmp_path / "generator", training_hash="a")
    (tmp_path / "fixed_team.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"fixed_team.json: found .*, expected .*; remove it"):
        parts_of_run(tmp_path)


@pytest.mark.parametrize(
    ("team", "problem"),
    [
        ({"roles": ["Poet", "Answerer"], "edges": [[0, 1]]}, "'Poet', which is unknown"),
        ({"roles": ["Reasoner"], "edges": []}, "Answerer"),
        ({"roles": ["Reasoner", "Answerer"], "edges": []}, "other data"),
    ],
)
def test_a_fixed_team_that_is_none_is_refused_with_its_file(tmp_path: Path, team: Any, problem: str) -> None:
    """It was refused only after the methods before it had played, and no file was named."""
    path = fixed(tmp_path, team)
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))}: .*{problem}"):
        read_fixed_team(path)


def test_a_fixed_team_above_the_limits_is_left_out_or_refused(tmp_path: Path) -> None:
    """``--max-nodes`` holds for every team, also for one that was chosen under other limits."""
    given = {"encoder": "hashed", "limit": 1, "replicates": 1, "fixed_team": fixed(tmp_path, LARGE)}
    config = topology_eval_config(None, {**given, "max_nodes": 4})
    data = TopologyData((), HashedEncoder())
    parts = ladder_parts(config, data)
    assert "best_fixed" not in default_methods(parts)
    with pytest.raises(ValueError, match="method 'best_fixed': .* has 6 nodes and does not fit"):
        build_methods(["best_fixed"], parts)
    roomy = ladder_parts(topology_eval_config(None, {**given, "max_nodes": 6, "max_in_degree": 5}), data)
    assert "best_fixed" in default_methods(roomy)
    assert build_methods(["best_fixed"], roomy)


def test_a_closed_generator_is_one(tmp_path: Path) -> None:
    own = generator(tmp_path / "generator")
    data = TopologyData((), HashedEncoder())
    with pytest.raises(ValueError, match="closed_generator is a control of generator"):
        topology_eval_config(None, {"encoder": "hashed", "closed_generator": own})
    for number, about in enumerate(({}, {"agents_see_evidence": False}, {"agents_see_evidence": True})):
        closed = generator(tmp_path / f"closed-{number}", **about)
        config = topology_eval_config(None, {"encoder": "hashed", "generator": own, "closed_generator": closed})
        if about.get("agents_see_evidence"):
            with pytest.raises(ValueError, match=r"closed-2: found a generator whose teams were mined by agents that"):
                ladder_parts(config, data)
        else:
            assert "no_evidence_in_training" in default_methods(ladder_parts(config, data))


@pytest.mark.parametrize(
    "changes",
    [{"about": "abc"}, {"about": None}, {"fingerprint": ...}, {"format": ...}, {"settings": {"hidden_size": 2**44}}],
)
def test_a_generator_with_odd_settings_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Some of these ended with a bare KeyError, or with a message that named no file."""
    folder = generator(tmp_path / "g")
    path = folder / "generator.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    for key, value in changes.items():
        if value is ...:
            del data[key]
        else:
            data[key] = {**data[key], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match=r"generator.json describes no generator: .*copy the whole folder again"):
        load_generator(folder)


def test_settings_nested_without_end_are_named(tmp_path: Path) -> None:
    folder = generator(tmp_path / "g")
    (folder / "generator.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(ValueError, match="generator.json describes no generator"):
        load_generator(folder)
