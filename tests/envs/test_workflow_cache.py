"""Stored replies: found again whole, refused by format, shared by processes, never paid for twice after a kill."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.workflow_worlds import CHAIN, STAR, A, R, ScriptedAgent, V, conflict, request, unit

from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.simulated_agents import SimulatedAgent
from provgym.envs.verifier import ClaimCheck, ClaimStatus, VerifierAccount
from provgym.envs.workflow import (
    AgentMessage,
    AgentReply,
    MemoryMessageCache,
    MessageCache,
    NodeCall,
    WorkflowRuntime,
)
from provgym.envs.workflow_cache import MESSAGES_FILE, StoredReply
from provgym.envs.workflow_key import content_digest, reply_key

KEY = "ab" * 32
CHECK = ClaimCheck("It rises.", ClaimStatus.CONTRADICTED, (unit(1, "cut", "s").span,), "It falls.")
CALL = NodeCall(
    task_id="t",
    role=DEFAULT_ROLES[A],
    question="Does it rise?",
    answer_kind="verdict",
    choices=(),
    evidence=(unit(1, "raised", "s1"), unit(2, "cut", "s2")),
    messages=(AgentMessage(R, 0, "yes"), AgentMessage(V, 1, "no")),
    replicate=0,
)


@pytest.mark.parametrize(
    "reply",
    [
        AgentReply("Answer: SUPPORT", 100, 7),
        AgentReply("", 0, 0, is_counted=False, is_cached=True),
        AgentReply("a\x00b \u2028 \U0001f600", 2**40, 1, True, VerifierAccount((CHECK, CHECK), "A", None)),
    ],
)
def test_what_is_stored_comes_back_equal_in_another_handle(tmp_path: Path, reply: AgentReply) -> None:
    first = MessageCache(tmp_path)
    assert first.get(KEY) is None
    first.put(KEY, StoredReply(reply, 0.25))
    first.put(KEY, StoredReply(AgentReply("later", 1, 1), 9.0))  # the first answer stays
    assert MessageCache(tmp_path).get(KEY) == StoredReply(reply, 0.25)


@settings(max_examples=25, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40), seconds=st.floats(0, 1e6))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, text: str, seconds: float) -> None:
    cache = MessageCache(tmp_path_factory.getbasetemp() / "any-reply")
    key = text.encode().hex().ljust(8, "0")
    cache.put(key, StoredReply(AgentReply(text, 1, 2), seconds))
    stored = cache.get(key)
    assert stored is not None
    assert stored.reply.text == text
    cache.close()


def test_half_a_surrogate_pair_and_negative_counts_are_no_reply() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        AgentReply("\ud800", 1, 1)
    with pytest.raises(ValueError, match="completion_tokens=-1"):
        AgentReply("x", 1, -1)


def test_another_format_and_other_files_are_refused_by_name(tmp_path: Path) -> None:
    MessageCache(tmp_path).close()
    database = sqlite3.connect(tmp_path / MESSAGES_FILE)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(ValueError, match=r"messages.sqlite3 holds format 99, expected messages of format 1"):
        MessageCache(tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / MESSAGES_FILE).write_text("no database, " * 100, encoding="utf-8")
    with pytest.raises(ValueError, match="expected a file of messages"):
        MessageCache(tmp_path / "text")


@pytest.mark.parametrize("spoiled", ["NULL", "'{'", "'{\"text\": 1}'"])
def test_an_entry_that_cannot_be_read_is_named_asked_again_and_replaced(tmp_path: Path, spoiled: str) -> None:
    cache = MessageCache(tmp_path)
    cache.put(KEY, StoredReply(AgentReply("good", 1, 2), 1.0))
    database = sqlite3.connect(tmp_path / MESSAGES_FILE)
    database.execute(f"UPDATE messages SET reply = {spoiled}")
    database.commit()
    database.close()
    with pytest.warns(RuntimeWarning, match=rf"the entry {KEY[:16]} can't be read; it is asked, and paid, again"):
        assert cache.get(KEY) is None
    cache.put(KEY, StoredReply(AgentReply("new", 1, 2), 1.0))
    assert cache.get(KEY) == StoredReply(AgentReply("new", 1, 2), 1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"question": "Does it fall?"},
        {"choices": ("a",)},
        {"answer_kind": "yes_no"},
        {"evidence": (unit(1, "raised", "s1"),)},
        {"evidence": (unit(2, "cut", "s2"), unit(1, "raised", "s1"))},
        {"evidence": (unit(1, "raised", "s9"), unit(2, "cut", "s2"))},
        {"messages": (AgentMessage(R, 0, "yes"),)},
        {"messages": (AgentMessage(V, 0, "yes"), AgentMessage(R, 1, "no"))},
        {"replicate": 1},
        {"sibling": 1},
        {"role": DEFAULT_ROLES[R]},
        {"role": replace(DEFAULT_ROLES[A], instruction="Answer in haste.")},
    ],
)
def test_whatever_a_reply_may_depend_on_is_in_its_key(change: dict[str, Any]) -> None:
    assert content_digest(replace(CALL, **change)) != content_digest(CALL)


@pytest.mark.parametrize(
    "change",
    [
        {"task_id": "other"},
        {"phase": "train"},
        {"messages": (AgentMessage(V, 7, "no"), AgentMessage(R, 3, "yes"))},
    ],
)
def test_what_decides_nothing_is_not_in_the_key(change: dict[str, Any]) -> None:
    assert content_digest(replace(CALL, **change)) == content_digest(CALL)


def test_another_agent_has_other_keys() -> None:
    digest = content_digest(CALL)
    prints = [SimulatedAgent(seed=seed).fingerprint for seed in (0, 1)]
    assert len({reply_key(p, digest) for p in prints}) == 2


def test_memory_and_disk_give_the_same_runs(tmp_path: Path) -> None:
    requests = [request(topology, conflict(), n) for n in range(3) for topology in (CHAIN, STAR)]
    found = []
    for cache in (None, MemoryMessageCache(), MessageCache(tmp_path), MessageCache(tmp_path)):
        runs = WorkflowRuntime(SimulatedAgent(), roles=DEFAULT_ROLES, cache=cache).run_many_sync(requests)
        found.append([(r.answer, r.messages, r.accounts, r.tokens) for r in runs])
    assert found[0] == found[1] == found[2] == found[3]


def test_a_failure_is_not_stored(tmp_path: Path) -> None:
    from tests.envs.workflow_worlds import fails

    agent = ScriptedAgent({A: fails("timeout")})
    for roles in (agent.roles, {}):
        agent.roles = roles
        engine = WorkflowRuntime(agent, roles=DEFAULT_ROLES, cache=MessageCache(tmp_path))
        engine.run_many_sync([request(CHAIN)])
    assert [call.role.name for call in agent.calls] == [R, V, A, A]


def test_a_full_disk_is_an_error_that_says_what_is_kept(tmp_path: Path) -> None:
    cache = MessageCache(tmp_path)
    cache.put(KEY, StoredReply(AgentReply("kept", 1, 1), 0.0))
    pages = cache._db.execute("PRAGMA page_count").fetchone()[0]
    cache._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OSError, match=r"messages.sqlite3: database or disk is full; make room"):
        cache.put("cd" * 32, StoredReply(AgentReply("x" * 100_000, 1, 1), 0.0))
    assert cache.get(KEY) == StoredReply(AgentReply("kept", 1, 1), 0.0)


PLAYER = """
import asyncio, json, os, sys
from pathlib import Path
from tests.envs.workflow_worlds import CHAIN, PAIR, STAR, conflict, request
from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.simulated_agents import SimulatedAgent
from provgym.envs.workflow import MessageCache, WorkflowRuntime
from provgym.envs.workflow_key import content_digest

folder, hangs_after, nap = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])


class PaidAgent(SimulatedAgent):
    asked = 0

    async def reply(self, call):
        self.asked += 1
        if self.asked > hangs_after:
            (folder / "hanging").touch()
            await asyncio.sleep(600)
        await asyncio.sleep(nap)
        with (folder / "paid.log").open("a") as file:
            file.write(content_digest(call) + "\\n")
            file.flush()
            os.fsync(file.fileno())
        return await super().reply(call)


runtime = WorkflowRuntime(PaidAgent(), roles=DEFAULT_ROLES, cache=MessageCache(folder / "cache"), max_concurrency=1)
requests = [request(team, conflict(), n, "train") for n in range(3) for team in (CHAIN, PAIR, STAR)]
runs = runtime.run_many_sync(requests)
found = [[run.answer, run.is_correct, [m.text for m in run.messages], run.tokens] for run in runs]
print(json.dumps([found, runtime.ledger.totals("train").paid_calls, runtime.ledger.totals("eval").calls]))
"""


def start_player(folder: Path, repository: Path, hangs_after: int = 10**6, nap: float = 0.0) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": f"{repository / 'src'}{os.pathsep}{repository}"}
    command = [sys.executable, "-c", PLAYER, str(folder), str(hangs_after), str(nap)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def played(player: subprocess.Popen[str]) -> tuple[list[Any], int]:
    out, err = player.communicate(timeout=300)
    assert player.returncode == 0, err
    runs, paid, booked_elsewhere = json.loads(out)
    assert booked_elsewhere == 0
    return runs, paid


def paid_for(folder: Path) -> list[str]:
    return (folder / "paid.log").read_text(encoding="ascii").split()


def test_nothing_is_paid_twice_after_kill_9_or_by_two_processes(tmp_path: Path, repository: Path) -> None:
    """Fault kind: one failure loses its siblings (killed after some items, resumed; nothing paid twice)."""
    players = [start_player(tmp_path / "shared", repository, nap=0.01) for _ in range(2)]
    killed = start_player(tmp_path / "killed", repository, hangs_after=9)
    (first, paid_first), (second, paid_second) = (played(player) for player in players)
    assert first == second
    shared = paid_for(tmp_path / "shared")
    assert len(set(shared)) == len(shared) == paid_first + paid_second

    end = time.monotonic() + 300
    while not (tmp_path / "killed" / "hanging").exists():
        assert killed.poll() is None, killed.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL
    assert len(paid_for(tmp_path / "killed")) == 9
    resumed, paid = played(start_player(tmp_path / "killed", repository))
    log = paid_for(tmp_path / "killed")
    assert resumed == first
    assert len(set(log)) == len(log) == 9 + paid
    assert set(log) == set(shared)


def test_who_waits_for_a_key_gets_in_when_its_holder_fails() -> None:
    async def hold(cache: MemoryMessageCache) -> str:
        with pytest.raises(RuntimeError, match="dropped"):
            async with cache.alone(KEY):
                raise RuntimeError("dropped")
        async with cache.alone(KEY):
            return "held again"

    assert asyncio.run(hold(MemoryMessageCache())) == "held again"
