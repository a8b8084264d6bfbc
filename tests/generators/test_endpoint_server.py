"""Endpoints against a real server on loopback: its faults, kills of the client, and two clients on one cache."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.protocol_server import Answer, Behaviour, Cut, Hang, ProtocolServer, Raw, Request, Reset, Trickle, serve

from provgym.generators.endpoint import EndpointPolicy
from provgym.generators.endpoint_config import EndpointConfig
from provgym.generators.endpoint_entry import ledger_totals
from provgym.generators.endpoint_ledger import read_ledger
from provgym.generators.engine import Sampling
from provgym.rewards.outcome import Ending

STOP = '{"stop": {"support_count": 1, "refute_count": 1, "verdict": "MIXED", "confidence": 0.8}}'
PLAYER = """
import json, sys
from pathlib import Path
from provgym.envs.builtin import demo_instances
from provgym.envs.presentation import PresentationConfig
from provgym.generators.endpoint import EndpointPolicy
from provgym.generators.endpoint_config import EndpointConfig
from provgym.generators.engine import Sampling
from provgym.generators.episode import EpisodeTask

url, folder = sys.argv[1], Path(sys.argv[2])
config = EndpointConfig(
    base_url=url, model="m", max_concurrency=3, cache_dir=folder / "cache", ledger=folder / "ledger.jsonl"
)
tasks = [
    EpisodeTask(demo_instances()[number % 3], 3, PresentationConfig(), number, 1000 + number, number // 3)
    for number in range(6)
]
print(json.dumps([episode.to_json() for episode in EndpointPolicy("m", config, Sampling(1.0)).play(tasks)]))
"""


@pytest.fixture
def server() -> Iterator[ProtocolServer]:
    with serve(walk_then_stop) as running:
        yield running


def walk_then_stop(request: Request) -> Behaviour:
    """Walk once, then stop."""
    return Answer('{"walk": "n1"}' if len(request.payload["messages"]) == 2 else STOP)


def policy(server: ProtocolServer, **settings: Any) -> EndpointPolicy:
    config = {"base_url": server.url, "model": "m", "timeout_s": 120, "max_attempts": 2, "max_wait_s": 0.01, **settings}
    return EndpointPolicy("m", EndpointConfig.model_validate(config), Sampling(0.0))


def test_a_server_answers_also_twice_in_one_process(build_tasks: Any, server: ProtocolServer) -> None:
    """Fault kind: closed event loop."""
    playing = policy(server)
    for _ in range(2):
        assert [e.outcome.ending for e in playing.play(build_tasks())] == [Ending.ANSWERED] * 6
    assert Counter(r.path for r in server.requests) == {"/v1/chat/completions": 24}
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize(
    ("behaviour", "kind", "attempts"),
    [
        (Cut(), "connection", 2),
        (Reset(), "connection", 2),
        (Raw(200, b"<html>Welcome to nginx</html>", {"content-type": "text/html"}), "not_json", 2),
        (Raw(502, b"<html>Bad gateway</html>", {"content-type": "text/html"}), "server", 2),
        (Raw(200, b'{"choices": [{"message": {"cont'), "not_json", 2),
        (Raw(200, b"no gzip at all", {"content-encoding": "gzip"}), "connection", 2),
        (Raw(429, b"", {"retry-after": "0"}), "rate_limited", 2),
        (Raw(429, b"", {"retry-after": "3600"}), "rate_limited", 1),
        (Raw(307, b"", {"location": "/v1/other"}), "refused", 1),
        (Raw(401, b'{"error": {"message": "Incorrect API key provided"}}'), "refused", 1),
        (Raw(200, b'{"choices": []}'), "no_choices", 1),
        (Answer(None), "no_content", 1),
    ],
)
def test_a_fault_ends_its_own_episode_and_no_other(
    build_tasks: Any,
    tmp_path: Path,
    server: ProtocolServer,
    behaviour: Behaviour,
    kind: str,
    attempts: int,
) -> None:
    """Fault kinds: one failure loses its siblings; endpoint failure scored as wrong."""
    broken = build_tasks(conditions=[1])[0]
    line = "Claim: " + broken.instance.base_claim.text

    def script(request: Request) -> Behaviour:
        spoiled = line in request.payload["messages"][1]["content"] and len(request.payload["messages"]) > 2
        return behaviour if spoiled else walk_then_stop(request)

    server.script = script
    tasks = build_tasks(conditions=[0, 1, 2])
    shares_claim = [task.instance.base_claim.text == broken.instance.base_claim.text for task in tasks]
    ledger = tmp_path / "ledger.jsonl"
    episodes = policy(server, ledger=ledger).play(tasks)
    for episode, is_broken in zip(episodes, shares_claim, strict=True):
        if not is_broken:
            assert (episode.outcome.ending, episode.error) == (Ending.ANSWERED, None)
            continue
        assert episode.outcome.ending is Ending.ERROR
        assert str(episode.error).startswith(f"{kind}: ")
        assert len(episode.turns) == 1
        assert episode.usage["attempts"] == 1 + attempts
    entries = read_ledger(ledger)
    assert len(entries) == len(server.requests)
    assert sum(e.outcome == kind for e in entries) == attempts * sum(shares_claim)


@pytest.mark.parametrize("behaviour", [Hang(), Trickle()])
def test_a_silent_server_times_out(
    build_tasks: Any, tmp_path: Path, server: ProtocolServer, behaviour: Behaviour
) -> None:
    """Fault kind: one failure loses its siblings (never answers): bytes that trickle in are no answer either."""
    server.script = lambda request: behaviour
    ledger = tmp_path / "ledger.jsonl"
    episodes = policy(server, timeout_s=0.3, ledger=ledger).play(build_tasks(conditions=[0, 1]))
    assert [e.outcome.ending for e in episodes] == [Ending.ERROR] * 2
    assert {str(e.error).split(":")[0] for e in episodes} == {"timeout"}
    assert [e.outcome for e in read_ledger(ledger)] == ["timeout"] * 4


def test_faults_that_pass_are_waited_out(build_tasks: Any, server: ProtocolServer) -> None:
    """Fault kind: one failure loses its siblings (429 with Retry-After twice)."""
    faults: list[Behaviour] = [Raw(429, b"", {"retry-after": "0"}), Reset(), Raw(503), Cut(), Raw(200, b"<html>")]

    def script(request: Request) -> Behaviour:
        return faults[request.number] if request.number < len(faults) else walk_then_stop(request)

    server.script = script
    (episode,) = policy(server, max_attempts=6).play(build_tasks(conditions=[0]))
    assert episode.outcome.ending is Ending.ANSWERED
    assert episode.usage == {"attempts": 7, "prompt_tokens": 200, "completion_tokens": 14}


def test_an_unreachable_server_is_an_error_and_not_a_wrong_answer(build_tasks: Any, server: ProtocolServer) -> None:
    """Fault kind: endpoint failure scored as wrong."""
    server.close()
    episodes = policy(server).play(build_tasks())
    assert {e.outcome.ending for e in episodes} == {Ending.ERROR}
    assert {str(e.error).split(":")[0] for e in episodes} == {"connection"}


def start_player(url: str, folder: Path, repository: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    command = [sys.executable, "-c", PLAYER, url, str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def episodes_of(player: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, err = player.communicate(timeout=600)
    assert player.returncode == 0, err
    episodes: list[dict[str, Any]] = json.loads(out)
    for episode in episodes:  # what was asked now and what was stored before differs, and nothing else
        usage = episode["usage"]
        assert usage.pop("attempts", 0) + usage.pop("cached", 0) == len(episode["turns"])
    return episodes


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> list[dict[str, Any]]:
    """The episodes of a player that was left alone."""
    with serve(walk_then_stop) as running:
        return episodes_of(start_player(running.url, tmp_path_factory.mktemp("whole"), repository))


@pytest.mark.parametrize("answered_before", [0, 7])
def test_nothing_is_paid_twice_after_kill_9(
    tmp_path: Path,
    repository: Path,
    server: ProtocolServer,
    uninterrupted: list[dict[str, Any]],
    answered_before: int,
) -> None:
    """Fault kind: one failure loses its siblings (killed after some items, resumed): every answer is paid once."""

    def script(request: Request) -> Behaviour:
        return Hang() if request.number >= answered_before else walk_then_stop(request)

    server.script = script
    player = start_player(server.url, tmp_path, repository)
    # Every worker waits for an answer that never comes, so all that was answered is stored.
    server.wait_for(lambda: len(server.hanging) == 3)
    player.send_signal(signal.SIGKILL)
    player.communicate(timeout=300)
    assert player.returncode == -signal.SIGKILL
    server.script = walk_then_stop
    resumed = episodes_of(start_player(server.url, tmp_path, repository))
    assert len(server.answered) == 12
    assert set(Counter(request.identity for request in server.answered).values()) == {1}
    totals = ledger_totals(read_ledger(tmp_path / "ledger.jsonl"))
    assert (totals.requests, totals.answered, totals.unfinished, totals.failed) == (15, 12, 3, 0)
    assert (totals.prompt_tokens, totals.completion_tokens) == (1200, 84)
    assert resumed == uninterrupted


def test_two_processes_on_one_cache_pay_once(
    tmp_path: Path, repository: Path, server: ProtocolServer, uninterrupted: list[dict[str, Any]]
) -> None:
    """Fault kind: one failure loses its siblings (nothing paid twice): two players of the same episodes at once."""

    def script(request: Request) -> Behaviour:
        time.sleep(0.05)  # long enough for the other player to want the same meanwhile
        return walk_then_stop(request)

    server.script = script
    players = [start_player(server.url, tmp_path, repository) for _ in range(2)]
    first, second = (episodes_of(player) for player in players)
    assert first == second == uninterrupted
    assert len(server.requests) == 12
    entries = read_ledger(tmp_path / "ledger.jsonl")
    assert (len(entries), len({e.call for e in entries})) == (12, 12)
