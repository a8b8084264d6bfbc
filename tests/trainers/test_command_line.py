"""How commands end, and how they warn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType

import pytest

from provgym.generators import hf
from provgym.trainers import command_line
from provgym.trainers.command_line import exit_status_of


def warning_work(filename: str) -> Callable[[], int]:
    def work() -> int:
        warnings.warn_explicit("targets favour the cheapest", UserWarning, filename, 7)
        return 0

    return work


def shown_by(work: Callable[[], int], capsys: pytest.CaptureFixture[str]) -> str:
    before = warnings.formatwarning
    with warnings.catch_warnings():
        warnings.resetwarnings()
        # pytest records warnings; a user's Python prints them.
        warnings.showwarning = lambda *told, **more: print(warnings.formatwarning(*told[:4]), end="")
        assert exit_status_of(work, goes_on="goes on") == 0
    assert warnings.formatwarning is before  # nothing of it outlives the command
    return capsys.readouterr().out


@pytest.mark.parametrize("module", [hf, command_line])
def test_our_warnings_are_shown_as_text(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    shown = shown_by(warning_work(str(module.__file__)), capsys)
    assert shown == "warning: targets favour the cheapest\n"


def test_others_warnings_keep_their_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown_by(warning_work("/elsewhere/other.py"), capsys).startswith("/elsewhere/other.py:7: UserWarning:")
