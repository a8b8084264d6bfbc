"""What every test gets: no network, one thread, the shared data sets where they are."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# A deadline would assert wall-clock time, which says nothing on a busy machine.
settings.register_profile("provgym", deadline=None)
settings.load_profile("provgym")

# Before anything imports torch, transformers or wandb: they read these once.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TOKENIZERS_PARALLELISM="false",
    WANDB_MODE="offline",
    WANDB_SILENT="true",
    MPLBACKEND="Agg",
)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """Hold torch to one thread where a test uses it; never the reason that it is imported."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout (or of the unpacked sdist) that the tests lie in."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets (SciFact, GSM8K ...), one folder each; without it, tests skip."""
    folder = Path(os.environ.get("PROVGYM_SHARED_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}; PROVGYM_SHARED_DATA=FOLDER names another place")
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run a command line in an empty folder; returns its status, what it said and what it complained about."""
    from typer.testing import CliRunner

    from provgym.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("PROVGYM_DEBUG", raising=False)

    def invoke(*words: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, list(words))
        return result.exit_code, result.stdout, result.stderr

    return invoke


@pytest.fixture
def refusal(run: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Run a command line that must be refused: status 2 and one line, which is returned."""

    def invoke(*words: str) -> str:
        status, _, complaint = run(*words)
        assert status == 2, complaint
        lines = [line for line in complaint.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, complaint
        assert "Traceback" not in complaint
        assert "Usage" not in complaint
        return lines[0]

    return invoke
