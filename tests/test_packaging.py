"""The distribution: sdist, then a wheel from it, and what site-packages would get."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDERS = ("configs", "envs", "eval", "generators", "rewards", "trainers")
LEFT_OUT = (".git", ".venv", "runs", "wandb", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")


class Build(NamedTuple):
    """A copy of the tree and the names of the files in the wheel that was built from it."""

    copy: Path
    wheel_names: frozenset[str]


@pytest.fixture(scope="module")
def build(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("packaging")
    copy = folder / "copy"
    shutil.copytree(repository, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    build_sdist = "import setuptools.build_meta as backend; backend.build_sdist('dist')"
    subprocess.run([sys.executable, "-c", build_sdist], cwd=copy, check=True, capture_output=True)
    (sdist,) = (copy / "dist").glob("provgym-*.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w"]
    done = subprocess.run([*command, str(folder), str(sdist)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("provgym-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Build(copy, frozenset(archive.namelist()))


@pytest.mark.slow
def test_wheel_holds_provgym_and_nothing_else(build: Build) -> None:
    top = {name.split("/")[0] for name in build.wheel_names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"provgym"}
    assert not [name for name in build.wheel_names if "__pycache__" in name or name.endswith(".pyc")]


@pytest.mark.slow
def test_wheel_holds_every_source_file_and_asset(build: Build) -> None:
    patterns = {name: ["**/*.py"] for name in FOLDERS}
    patterns["configs"].append("**/*.yaml")
    patterns["envs"].append("**/*.json")
    patterns["generators"] += ["**/*.safetensors", "assets/**/*.*"]
    patterns["eval"].append("assets/**/*.*")
    wanted = {"provgym/__init__.py", "provgym/py.typed"}
    for folder, globs in patterns.items():
        for pattern in globs:
            found = (build.copy / folder).glob(pattern)
            wanted |= {f"provgym/{path.relative_to(build.copy).as_posix()}" for path in found}
    assert not wanted - build.wheel_names
