"""What the README shows is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provgym.envs.actions import Stop, parse_action
from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.generators.graphecho import GraphEcho
from provgym.rewards.outcome import Ending

README = Path(__file__).resolve().parent.parent / "README.md"


@pytest.fixture
def shown() -> list[str]:
    """The lines of the episode in the README."""
    if not README.is_file():
        pytest.skip("README.md is not part of this distribution")
    found = re.search(r"```\n(Claim: .*?)\n```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found, "README.md shows no episode"
    return found.group(1).split("\n")


def test_the_episode_in_the_readme_is_a_real_one(shown: list[str]) -> None:
    """Its claim is a generated test claim under C2, and its lines are the environment's own, word for word."""
    instances = GraphEcho.generate(42).instances("test", ["C2"])
    (instance,) = [i for i in instances if f"Claim: {i.base_claim.text}" == shown[0]]
    actions = [line.removeprefix("> ") for line in shown if line.startswith("> ")]
    env = GraphWalkTextEnv([instance])
    replays = []
    for seed in range(10):  # the README doesn't name the seed, which orders the nodes
        observation, _ = env.reset(seed=seed)
        lines = observation.split("\n")
        for action in actions:
            observation, *_ = env.step(action)
            lines += [f"> {action}", *observation.split("\n")]
            if env.walk is not None and env.walk.is_over:
                break
        replays.append(lines)
    assert [*shown, "The episode is over."] in replays
    assert isinstance(parse_action(actions[-1]), Stop)


def test_its_answer_is_right(shown: list[str]) -> None:
    instances = GraphEcho.generate(42).instances("test", ["C2"])
    (instance,) = [i for i in instances if f"Claim: {i.base_claim.text}" == shown[0]]
    env = GraphWalkTextEnv([instance])
    env.reset(seed=2)
    for line in shown:
        if line.startswith("> "):
            env.step(line.removeprefix("> "))
    outcome = env.outcome()
    assert (outcome.ending, outcome.is_correct, outcome.echoes) == (Ending.ANSWERED, True, 0)
    assert outcome.acquired == outcome.available == 2
