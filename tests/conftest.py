"""What every test gets: no network, one thread, the shared data sets where they are."""

import os
import sys
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
