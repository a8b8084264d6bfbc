"""Every shipped configuration loads and says how to launch it; every command names one that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provgym.trainers.chat_warm_start import ChatWarmStartConfig
from provgym.trainers.config_file import load_config
from provgym.trainers.kgat_config import KgatConfig
from provgym.trainers.papt_config import PaptConfig, Strict
from provgym.trainers.study_config import StudyConfig
from provgym.trainers.warm_start_config import WarmStartConfig

REPOSITORY = Path(__file__).resolve().parent.parent
CONFIGS = REPOSITORY / "src" / "provgym" / "configs"
FILES = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))
LAUNCH = re.compile(
    r"# (?:[A-Z_]+=\S+ )*(?:accelerate launch --config_file configs/accelerate/\w+\.yaml (?:\S+ )*-m provgym\.\w+\.\w+|"
    r"provgym [\w-]+) --config configs/(\S+)$"
)
MENTION = re.compile(r"configs/[\w./-]+\.yaml")


def model_of(name: str) -> type[Strict] | None:
    """The model of a file; accelerate's own files are checked by test_layout."""
    if name.startswith("accelerate/"):
        return None
    if name.startswith("studies/"):
        return StudyConfig
    if name.startswith("kgat/"):
        return KgatConfig
    if name.endswith("smollm2-warm-start.yaml"):
        return ChatWarmStartConfig
    return WarmStartConfig if name.endswith("warm-start.yaml") else PaptConfig


def test_there_are_configurations_to_check() -> None:
    assert "papt/qwen3-4b.yaml" in FILES
    assert "papt/smollm2-135m.yaml" in FILES


@pytest.mark.parametrize("name", FILES)
def test_file_loads_against_its_model(name: str) -> None:
    model = model_of(name)
    if model is not None:
        load_config(model, CONFIGS / name)


@pytest.mark.parametrize("name", FILES)
def test_first_line_is_the_launch_command(name: str) -> None:
    first = (CONFIGS / name).read_text(encoding="utf-8").split("\n", 1)[0]
    found = LAUNCH.match(first)
    assert found, f"{name} must start with its launch command, not {first!r}"
    if model_of(name) is not None:
        assert found.group(1) == name, f"the launch command of {name} names {found.group(1)}"


@pytest.mark.parametrize("name", [n for n in FILES if model_of(n) is PaptConfig])
def test_step_divides_among_processes(name: str) -> None:
    """The step's trajectories split evenly over one process, and over two where micro_batch allows."""
    config = load_config(PaptConfig, CONFIGS / name)
    optim = config.optim
    assert optim.group_size * optim.groups_per_step % optim.micro_batch == 0


@pytest.mark.parametrize("name", [n for n in FILES if model_of(n) is PaptConfig])
def test_selection_sees_as_many_checkpoints_as_it_wants(name: str) -> None:
    config = load_config(PaptConfig, CONFIGS / name)
    assert config.total_steps // config.checkpoints.every >= config.checkpoints.select_last


def test_names_differ_so_that_runs_never_share_a_folder() -> None:
    names = [load_config(PaptConfig, CONFIGS / n).name for n in FILES if model_of(n) is PaptConfig]
    assert len(set(names)) == len(names)


def test_qwen_states_the_source_settings() -> None:
    """GraphEcho, section 4.3: groups of 4, LoRA r=16 alpha=32, one epoch over 500 instances, seed 42, thinking off."""
    config = load_config(PaptConfig, CONFIGS / "papt/qwen3-4b.yaml")
    assert config.lora is not None
    assert (config.lora.r, config.lora.alpha, config.optim.group_size, config.seed) == (16, 32, 4, 42)
    assert config.total_steps * config.optim.groups_per_step == config.data.train_claims == 500
    assert (config.optim.learning_rate, config.optim.kl_weight, config.optim.temperature) == (1e-5, 0.0, 1.0)
    assert config.optim.loss_type == "dapo"
    assert not config.model.enable_thinking
    assert (config.generation.engine, config.generation.vllm_mode) == ("vllm", "colocate")
    assert config.data.general_share == 0.0
    for processes in (1, 2, 4, 8):
        share, rest = divmod(config.optim.group_size * config.optim.groups_per_step, processes)
        assert rest == 0
        assert share % config.optim.micro_batch == 0


def test_source_recipe_is_one_epoch_without_general_conditions() -> None:
    config = load_config(PaptConfig, CONFIGS / "papt/source.yaml")
    assert len(config.phases) == 1
    assert config.total_steps * config.optim.groups_per_step == config.data.train_claims == 500
    assert config.data.general_share == 0.0
    weights = {"verdict": 1.0, "count": 0.4, "coverage": 0.4, "echo": -0.4, "cost": -0.05}
    assert {name: w for name, w in config.phases[0].rubric().weights.items() if w} == weights


def test_kgat_source_states_the_source_settings() -> None:
    """K-GAT, section 5: N_max 6, d_max 3, 40 instances (42 here: three kinds of evidence) x 5 candidates x 2 runs."""
    config = load_config(KgatConfig, CONFIGS / "kgat/source.yaml")
    assert (config.generator.max_nodes, config.generator.max_in_degree) == (6, 3)
    assert (config.curriculum.candidates, config.mining.replicates, config.mining.rungs) == (5, 2, 1)
    assert (config.score.estimator, config.mining.rescore_replicates, config.mining.memory) == ("raw", 0, "round")
    assert not config.mining.keeps_unpruned
    assert not config.mining.pruning_keeps_score
    assert 3 * config.tasks.evidence.train_claims == 42


def test_kgat_runs_never_share_a_folder() -> None:
    names = [load_config(KgatConfig, CONFIGS / n).name for n in FILES if model_of(n) is KgatConfig]
    assert sorted(names) == ["kgat-endpoint", "kgat-simulated", "kgat-source"]


def test_warm_start_file_writes_out_the_defaults() -> None:
    """The file is documentation of the defaults: it must not drift from them."""
    assert load_config(WarmStartConfig, CONFIGS / "papt/warm-start.yaml") == WarmStartConfig()


def test_smollm2_is_warm_started_on_what_papt_shows_it() -> None:
    """The adapter that the run starts from was made by the file beside it, on the same model, grammar and walks."""
    start = load_config(ChatWarmStartConfig, CONFIGS / "papt/smollm2-warm-start.yaml")
    run = load_config(PaptConfig, CONFIGS / "papt/smollm2-135m.yaml")
    assert run.model == start.model.model_copy(update={"adapter": f"{start.out}/policy"})
    assert run.walk == start.walk.model_copy(update={"budgets": run.walk.budgets})
    assert max(start.walk.budgets) == max(run.walk.budgets)
    assert (run.lora, run.data.general_share) == (start.lora, start.data.general_share)
    assert start.model_copy(update={"out": ChatWarmStartConfig().out}) == ChatWarmStartConfig()


@pytest.mark.parametrize(
    "name", ["README.md", "Makefile", *sorted(f"docs/{p.name}" for p in REPOSITORY.glob("docs/*.md"))]
)
def test_commands_name_configurations_that_exist(name: str) -> None:
    path = REPOSITORY / name
    if not path.is_file():
        pytest.skip(f"{name} is not part of this distribution")
    for mention in MENTION.findall(path.read_text(encoding="utf-8")):
        if not re.search(r"[A-Z]{3,}", mention):  # configs/papt/NAME.yaml stands for any
            assert (CONFIGS.parent / mention).is_file(), f"{name} names {mention}, which does not exist"
