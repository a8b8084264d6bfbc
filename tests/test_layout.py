"""The layout: real folders on top, one import name, nothing that ties a file to one machine."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yaml

FOLDERS = ("configs", "envs", "eval", "generators", "rewards", "trainers")
ENV_IDS = ("provgym/GraphWalkText-v0", "provgym/GraphWalk-v0", "provgym/TopologyBuild-v0")
ACCELERATE_FILES = ("cpu1.yaml", "cpu2.yaml", "deepspeed_zero2.yaml", "fsdp.yaml", "gpu1.yaml")
MACHINE_PATH = re.compile(r"(?<![\w.])(?:/(?:work|farm|root)/|/tmp/[a-z])")

NO_LINKS = (
    "src/provgym/{name} is not a link. Git wrote it as a text file because links are off (the default on "
    "Windows). Turn on Developer Mode, then: git config core.symlinks true && git checkout -- src/provgym"
)


def is_sdist(repository: Path) -> bool:
    return (repository / "PKG-INFO").exists()


def project_files(repository: Path) -> list[Path]:
    """What git tracks or would track; links left out, since they only point at other entries."""
    if not (repository / ".git").exists():
        pytest.skip(f"{repository} is no git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=repository, capture_output=True, check=True).stdout
    paths = [repository / os.fsdecode(name) for name in listed.split(b"\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def run_python(code: str) -> str:
    """Run code in a fresh interpreter that sees what this one sees, and return what it printed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", FOLDERS)
def test_folder_is_linked_into_the_package(repository: Path, name: str) -> None:
    if is_sdist(repository):
        pytest.skip("an sdist holds folders in place of the links")
    link = repository / "src" / "provgym" / name
    assert link.is_symlink(), NO_LINKS.format(name=name)
    assert os.readlink(link) == f"../../{name}", "the link must be relative, or it breaks in another checkout"
    assert link.resolve() == repository / name


def test_nothing_is_imported_under_its_folder_name(repository: Path) -> None:
    # Two names for one file would make two classes of each class in it.
    folders = [repository / name for name in FOLDERS]
    wrong = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        ours = file is not None and any(Path(file).resolve().is_relative_to(folder) for folder in folders)
        if name.split(".")[0] in FOLDERS or (ours and not name.startswith("provgym.")):
            wrong.append(name)
    assert not wrong, f"{wrong} imported from the repository root: write `from provgym.NAME import ...`"


@pytest.mark.parametrize("name", ["datasets", "utils", "wandb", "accelerate", "trl"])
def test_root_shadows_no_library(repository: Path, name: str) -> None:
    # `python -m` puts the root on sys.path; a package there would win over the installed one.
    assert not (repository / name / "__init__.py").exists()
    assert not (repository / f"{name}.py").exists()


def test_no_machine_path_in_any_file(repository: Path) -> None:
    found = []
    for path in project_files(repository):
        content = path.read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), start=1):
            if MACHINE_PATH.search(line):
                found.append(f"{path.relative_to(repository)}:{number}: {line.strip()[:100]}")
    assert not found, "paths of one machine:\n" + "\n".join(found)


def test_only_trainers_import_trl(repository: Path) -> None:
    # import-linter checks the lower floors; this also covers what stands above them (cli, __init__).
    imports_trl = re.compile(r"^\s*(?:import|from)\s+trl\b", re.MULTILINE)
    allowed = (repository / "trainers", repository / "tests")
    wrong = [
        str(path.relative_to(repository))
        for path in project_files(repository)
        if path.suffix == ".py"
        and not any(path.is_relative_to(folder) for folder in allowed)
        and imports_trl.search(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, f"{wrong} import TRL; only provgym.trainers may"


def test_every_accelerate_file_is_listed_here(repository: Path) -> None:
    folder = repository / "configs" / "accelerate"
    if is_sdist(repository):
        folder = repository / "src" / "provgym" / "configs" / "accelerate"
    assert sorted(path.name for path in folder.glob("*")) == sorted(ACCELERATE_FILES)


@pytest.mark.parametrize("name", ACCELERATE_FILES)
def test_accelerate_file_loads_and_starts_with_its_command(repository: Path, name: str) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    path = repository / "src" / "provgym" / "configs" / "accelerate" / name
    first_line = path.read_text(encoding="utf-8").split("\n", 1)[0]
    command = (
        rf"# (?:[A-Z_]+=\w+ )*accelerate launch --config_file configs/accelerate/{re.escape(name)} "
        r"-m provgym\.trainers\.\w+ --config configs/\S+\.yaml$"
    )
    assert re.match(command, first_line), f"{name} must start with its launch command, not {first_line!r}"
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    config = load_config_from_file(str(path))  # raises on a key that accelerate does not know
    assert config.num_processes == settings["num_processes"]
    assert config.mixed_precision == settings["mixed_precision"]


# One file per process: two processes that print mix their lines.
WRITE_WORLD = """
import os, pathlib
from accelerate import Accelerator
state = Accelerator().state
seen = f"{state.num_processes} {state.backend} {state.device.type}"
pathlib.Path(__file__).with_name(f"{os.getpid()}.world").write_text(seen)
state.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "use_cpu", "expected"),
    [
        ("cpu1.yaml", False, ["1 None cpu"]),
        ("cpu2.yaml", True, ["2 gloo cpu"] * 2),
    ],
)
def test_cpu_launch_gives_the_world_it_names(
    repository: Path, tmp_path: Path, name: str, use_cpu: bool, expected: list[str]
) -> None:
    script = tmp_path / "write_world.py"
    script.write_text(WRITE_WORLD)
    path = repository / "src" / "provgym" / "configs" / "accelerate" / name
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(path), str(script)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"ACCELERATE_USE_CPU": "true"} if use_cpu else {})
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180)
    assert done.returncode == 0, done.stderr
    assert [path.read_text() for path in tmp_path.glob("*.world")] == expected


def test_import_is_cheap() -> None:
    heavy = run_python(
        "import sys, provgym\nprint(sorted({'torch', 'trl', 'transformers', 'wandb', 'networkx'} & set(sys.modules)))"
    )
    assert heavy == "[]"


def test_both_ids_are_registered_once() -> None:
    import gymnasium

    import provgym

    registered = {env_id: gymnasium.registry[env_id] for env_id in ENV_IDS}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        provgym.register_envs()
    assert {env_id: gymnasium.registry[env_id] for env_id in ENV_IDS} == registered


def test_registration_keeps_a_callers_own() -> None:
    printed = run_python(
        "import warnings; warnings.simplefilter('error')\n"
        "import gymnasium\n"
        "gymnasium.register('provgym/GraphWalk-v0', entry_point='elsewhere:Env')\n"
        "import provgym\n"
        "print(gymnasium.registry['provgym/GraphWalk-v0'].entry_point)"
    )
    assert printed == "elsewhere:Env"
