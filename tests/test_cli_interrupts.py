"""Interrupted, killed or given twice at once: finished work is kept, and the same command goes on from there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from provgym.envs.provenance import Instance
from provgym.eval.episode_store import EpisodeWriter
from provgym.generators.claim_files import write_claims

Run = Callable[..., tuple[int, str, str]]
SOURCE = Path(__file__).resolve().parent.parent / "src"
WALK = ("eval", "walk", "-p", "naive", "--limit", "5", "--conditions", "C1", "--general-draws", "0", "--out", "out")


def run_code(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, in the present folder."""
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})


def die_after_two_episodes(number: int) -> subprocess.CompletedProcess[str]:
    """Run an evaluation in a process that sends itself a signal once two episodes are stored."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # background jobs inherit deafness to it
        "from provgym.cli import app\n"
        "from provgym.eval.episode_store import EpisodeWriter\n"
        "append = EpisodeWriter.append\n"
        "def watched(self, episode):\n"
        "    append(self, episode)\n"
        "    if self.written == 2:\n"
        f"        os.kill(os.getpid(), {number})\n"
        "EpisodeWriter.append = watched\n"
        "app(sys.argv[1:])\n"
    )
    return run_code(code, *WALK)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_an_evaluation_goes_on_where_it_stopped(run: Run, number: int, status: int) -> None:
    """Kind: one failure loses its siblings (Ctrl-C and kill -9; a dead process's lock holds nobody up)."""
    done = die_after_two_episodes(number)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert ("the same command goes on from there" in done.stderr) == (status == 130)
    (part,) = Path("out/naive").glob("episodes.part-*.jsonl")
    assert len(part.read_text().splitlines()) == 2
    again, out, err = run(*WALK)
    assert again == 0, err
    assert "3/3" in err  # only what was missing is played
    assert "5 episodes of 5 claims" in out


def test_two_evaluations_at_once_into_one_folder(run: Run, refusal: Callable[..., str]) -> None:
    """The second is told that the first still runs; its own request works once that one is done."""
    with EpisodeWriter(Path("out/naive/episodes.part-00000.jsonl")):
        line = refusal(*WALK)
    assert "is being written by another evaluation that is still running; wait for it, or choose another" in line
    assert run(*WALK)[0] == 0
    assert sorted(path.name for path in Path("out/naive").iterdir() if path.is_file()) == [
        "config.yaml",
        "episodes.jsonl",
        "summary.json",
    ]


def test_an_interrupted_export_can_be_given_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("data", "graphecho", "--out", "d", "--train", "1", "--dev", "1", "--test", "0", "--conditions", "C1")

    def stop_at_dev(path: Path, instances: Sequence[Instance]) -> None:
        if path.stem == "dev":
            raise KeyboardInterrupt
        write_claims(path, instances)

    with monkeypatch.context() as patch:
        patch.setattr("provgym.generators.export.write_claims", stop_at_dev)
        assert run(*words)[0] == 130
    assert not Path("d/dataset.json").exists()
    assert run(*words)[0] == 0
    assert sorted(path.name for path in Path("d").iterdir()) == ["dataset.json", "dev.jsonl", "train.jsonl"]


def test_scripted_evaluation_loads_no_model_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys\nfrom provgym.cli import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit as end:\n    print('STATUS', end.code)\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'trl', 'peft', 'accelerate', 'datasets', 'wandb', 'httpx'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    monkeypatch.chdir(tmp_path)
    done = run_code(code, *WALK, "-p", "oracle")
    assert "STATUS 0" in done.stdout, done.stderr
    assert "HEAVY []" in done.stdout
