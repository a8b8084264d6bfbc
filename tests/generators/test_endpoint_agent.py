"""An agent behind an endpoint: what it sends, what it reads, what it pays, and how it fails."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.envs.workflow_worlds import CHAIN, PAIR, SINGLE, STAR, A, R, V, agreement, conflict, request
from tests.protocol_server import Answer, Behaviour, Hang, Raw, Request, serve

from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.topology import Topology
from provgym.envs.verifier import ClaimStatus
from provgym.envs.workflow import MemoryMessageCache, MessageCache, TopologyRun, WorkflowRuntime
from provgym.generators.endpoint_agent import EndpointAgent
from provgym.generators.endpoint_config import EndpointConfig
from provgym.generators.endpoint_entry import ledger_totals
from provgym.generators.endpoint_ledger import read_ledger
from provgym.generators.engine import Sampling
from provgym.rewards.outcome import Ending

Handler = Callable[[dict[str, Any]], httpx.Response]


def answer(text: str | None, usage: dict[str, int] | None = None, **choice: Any) -> httpx.Response:
    """A chat completion."""
    body: dict[str, Any] = {"choices": [{"message": {"role": "assistant", "content": text}, **choice}]}
    counted = {"prompt_tokens": 100, "completion_tokens": 7}
    return httpx.Response(200, json={**body, "usage": counted if usage is None else usage})


def role_of(payload: dict[str, Any]) -> str:
    """The role that a request plays, by its system text."""
    (name,) = (role.name for role in DEFAULT_ROLES if role.instruction == payload["messages"][0]["content"])
    return name


class Scripted:
    """An agent over a scripted transport; keeps what was sent."""

    def __init__(self, handler: Handler, temperature: float = 0.0, **config: Any) -> None:
        self.payloads: list[dict[str, Any]] = []
        self._handler = handler
        settings = {"base_url": "http://agents.test/v1", "model": "m", "max_attempts": 3, **config}
        self.agent = EndpointAgent(
            EndpointConfig.model_validate(settings),
            Sampling(temperature),
            transport=httpx.MockTransport(self._handle),
            sleep=self._sleep,
        )

    async def _handle(self, sent: httpx.Request) -> httpx.Response:
        payload = json.loads(sent.content)
        self.payloads.append(payload)
        await asyncio.sleep(0)
        return self._handler(payload)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def run(agent: EndpointAgent, topology: Topology, **options: Any) -> TopologyRun:
    return WorkflowRuntime(agent, roles=DEFAULT_ROLES, **options).run_many_sync([request(topology)])[0]


def test_a_request_is_the_prompt_and_its_answer_is_the_message() -> None:
    scripted = Scripted(lambda payload: answer("Answer: SUPPORT"), temperature=0.7)
    result = run(scripted.agent, PAIR)
    assert [role_of(payload) for payload in scripted.payloads] == [R, A]
    system, user = scripted.payloads[1]["messages"]
    assert (system["role"], user["role"]) == ("system", "user")
    assert "Reasoner:\n> Answer: SUPPORT" in user["content"]
    assert scripted.payloads[0]["temperature"] == 0.7
    assert 0 <= scripted.payloads[0]["seed"] < 2**31
    assert scripted.payloads[0]["seed"] != scripted.payloads[1]["seed"]
    assert (result.is_correct, result.tokens) == (True, 214)


def test_equal_siblings_and_replicates_are_asked_with_other_seeds() -> None:
    scripted = Scripted(lambda payload: answer("Answer: SUPPORT"), temperature=1.0)
    engine = WorkflowRuntime(scripted.agent, roles=DEFAULT_ROLES)
    engine.run_many_sync([request(STAR, replicate=n) for n in range(2)])
    seeds = [payload["seed"] for payload in scripted.payloads if role_of(payload) == R]
    assert len(set(seeds)) == len(seeds) == 6


def test_a_verifiers_reply_is_read_for_checks_and_passed_on_revised() -> None:
    verdict = (
        "CHECK: it is lowered | contradicted | 1 | it is raised\nCHECK: all say so | not found |\n"
        "REVISED: It is raised.\nAnswer: SUPPORT"
    )
    texts = {R: "It is lowered.\nAnswer: REFUTE", V: verdict, A: "Answer: SUPPORT"}
    scripted = Scripted(lambda payload: answer(texts[role_of(payload)]))
    result = run(scripted.agent, CHAIN)
    assert result.messages[1].text == "It is raised.\nAnswer: SUPPORT"
    (found,) = result.accounts
    assert [check.status for check in found.account.checks] == [ClaimStatus.CONTRADICTED, ClaimStatus.NOT_FOUND]
    assert found.account.change(lambda given: given == "SUPPORT") == "wrong_to_right"
    assert "CHECK" not in scripted.payloads[2]["messages"][1]["content"]


def test_a_verifier_may_stop_the_topology() -> None:
    texts = {R: "It is lowered.", V: "CHECK: it is lowered | contradicted | 1\nREVISED: nothing can be said\nSTOP"}
    scripted = Scripted(lambda payload: answer(texts[role_of(payload)]))
    result = run(scripted.agent, CHAIN)
    assert (result.ending, result.reason, len(scripted.payloads)) == (Ending.INVALID, "stopped_by_verifier", 2)


@pytest.mark.parametrize(
    ("reply", "kind", "ending", "attempts"),
    [
        (httpx.Response(200, json={"choices": []}), "no_choices", Ending.ERROR, 1),
        (answer(None), "no_content", Ending.ERROR, 1),
        (httpx.Response(500, text="down"), "server", Ending.ERROR, 3),
        (httpx.Response(401, text="who?"), "refused", Ending.ERROR, 1),
        (httpx.Response(400, text="maximum context length is 4096"), "too_long", Ending.TRUNCATED, 1),
    ],
)
def test_a_failure_is_the_nodes_own_and_no_wrong_answer(
    reply: httpx.Response, kind: str, ending: Ending, attempts: int
) -> None:
    """Fault kinds: endpoint failure scored as wrong; one failure loses its siblings."""
    scripted = Scripted(lambda payload: reply if role_of(payload) == V else answer("Answer: SUPPORT"))
    result = run(scripted.agent, Topology((R, V, A), ((0, 2), (1, 2))))
    first = next(failure for failure in result.failures if failure.cause is None)
    assert (first.role, first.kind, result.ending) == (V, kind, ending)
    assert sum(role_of(payload) == V for payload in scripted.payloads) == attempts
    assert [message.sender for message in result.messages] == [R]


def test_what_a_model_does_oddly_is_a_message() -> None:
    """Fault kind: HTTP 200 with finish_reason length, with no usage, with fenced JSON: answers, read by one rule."""
    fenced = 'Sure!\n```json\n{"answer": "SUPPORT"}\n```'
    result = run(Scripted(lambda payload: answer(fenced, usage={})).agent, SINGLE)
    assert (result.answer, result.calls[0].is_counted) == ("SUPPORT", False)
    cut = run(Scripted(lambda payload: answer(None, finish_reason="length")).agent, SINGLE)
    assert cut.ending is Ending.INVALID


def test_nothing_is_asked_twice_over_both_stores(tmp_path: Path) -> None:
    requests = [request(CHAIN, conflict(), n) for n in range(2)]

    def played(cache: MemoryMessageCache | MessageCache | None) -> tuple[int, list[TopologyRun], WorkflowRuntime]:
        scripted = Scripted(lambda payload: answer("Answer: SUPPORT"), cache_dir=tmp_path, ledger=tmp_path / "l.jsonl")
        engine = WorkflowRuntime(scripted.agent, roles=DEFAULT_ROLES, cache=cache)
        return len(scripted.payloads), engine.run_many_sync(requests), engine

    _, first, engine = played(MessageCache(tmp_path))  # in the same folder as the completions
    assert engine.ledger.totals().paid_calls == 6
    _, again, engine = played(MessageCache(tmp_path))
    assert (engine.ledger.totals().paid_calls, engine.ledger.totals().cached_calls) == (0, 6)
    _, below, engine = played(None)  # without the messages, the completions are still there
    assert (engine.ledger.totals().paid_calls, engine.ledger.totals().cached_calls) == (0, 6)
    entries = read_ledger(tmp_path / "l.jsonl")
    assert len(entries) == 6
    assert [r.messages for r in first] == [r.messages for r in again] == [r.messages for r in below]


def test_training_and_evaluation_are_booked_apart_with_what_was_asked(tmp_path: Path) -> None:
    scripted = Scripted(lambda payload: answer("Answer: SUPPORT"), ledger=tmp_path / "l.jsonl")
    engine = WorkflowRuntime(scripted.agent, roles=DEFAULT_ROLES)
    engine.run_many_sync([request(PAIR, replicate=3, phase="train"), request(SINGLE, phase="eval")])
    entries = read_ledger(tmp_path / "l.jsonl")
    assert Counter((e.phase, e.replicate) for e in entries) == {("train", 3): 2, ("eval", 0): 1}
    assert {e.item for e in entries} == {"agreement Reasoner/0", "agreement Answerer/0"}
    for phase in ("train", "eval"):
        ours, theirs = engine.ledger.totals(phase), ledger_totals(entries, phase)
        assert (ours.prompt_tokens, ours.completion_tokens) == (theirs.prompt_tokens, theirs.completion_tokens)


def test_it_runs_twice_in_one_process_and_closes_what_it_opened() -> None:
    """Fault kind: closed event loop."""
    scripted = Scripted(lambda payload: answer("Answer: SUPPORT"))
    engine = WorkflowRuntime(scripted.agent, roles=DEFAULT_ROLES)
    for replicate in range(2):
        assert engine.run_many_sync([request(STAR, replicate=replicate)])[0].is_correct
    assert len(scripted.agent._open) == 0


def test_what_decides_a_reply_is_in_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprint(temperature: float = 0.0, seed: int = 0, **config: Any) -> str:
        settings = {"base_url": "http://agents.test/v1", "model": "m", **config}
        return EndpointAgent(EndpointConfig.model_validate(settings), Sampling(temperature), seed=seed).fingerprint

    monkeypatch.setenv("MY_KEY", "sk-secret")
    prints = [fingerprint(), fingerprint(0.5), fingerprint(seed=1), fingerprint(model="n"), fingerprint(max_tokens=9)]
    assert len(set(prints)) == 5
    assert fingerprint(timeout_s=5.0, api_key_env="MY_KEY") == fingerprint()
    assert "sk-secret" not in fingerprint(api_key_env="MY_KEY")
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ValueError, match="MY_KEY is unset or empty"):
        fingerprint(api_key_env="MY_KEY")


PLAYER = """
import json, sys
from pathlib import Path
from tests.envs.workflow_worlds import CHAIN, STAR, conflict, request
from provgym.envs.roles import DEFAULT_ROLES
from provgym.envs.workflow import MessageCache, WorkflowRuntime
from provgym.generators.endpoint_agent import EndpointAgent
from provgym.generators.endpoint_config import EndpointConfig
from provgym.generators.engine import Sampling

url, folder = sys.argv[1], Path(sys.argv[2])
config = EndpointConfig(base_url=url, model="m", cache_dir=folder, ledger=folder / "ledger.jsonl")
agent = EndpointAgent(config, Sampling(1.0))
runtime = WorkflowRuntime(agent, roles=DEFAULT_ROLES, cache=MessageCache(folder), max_concurrency=3)
runs = runtime.run_many_sync([request(team, conflict(), n, "train") for n in range(3) for team in (CHAIN, STAR)])
print(json.dumps([[run.answer, [m.text for m in run.messages], run.tokens] for run in runs]))
"""


def start_player(url: str, folder: Path, repository: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{repository / 'src'}{os.pathsep}{repository}"}
    command = [sys.executable, "-c", PLAYER, url, str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def runs_of(player: subprocess.Popen[str]) -> Any:
    out, err = player.communicate(timeout=500)
    assert player.returncode == 0, err
    return json.loads(out)


def test_nothing_is_paid_twice_after_kill_9(tmp_path: Path, repository: Path) -> None:
    """Fault kind: one failure loses its siblings (killed after some items, resumed): by the server's own count."""

    def quick(sent: Request) -> Behaviour:
        return Answer("Answer: REFUTE")

    def hangs_later(sent: Request) -> Behaviour:
        return Hang() if sent.number >= 8 else quick(sent)

    with serve(hangs_later) as server:
        player = start_player(server.url, tmp_path, repository)
        server.wait_for(lambda: len(server.hanging) == 3)  # every slot waits, so all that was answered is stored
        player.send_signal(signal.SIGKILL)
        player.communicate(timeout=300)
        assert player.returncode == -signal.SIGKILL
        server.script = quick
        runs = runs_of(start_player(server.url, tmp_path, repository))
        assert [r[0] for r in runs] == ["REFUTE"] * 6
        assert len(server.answered) == 3 * (3 + 4 - 1)  # both teams begin with a Reasoner that is told the same
        assert set(Counter(sent.identity for sent in server.answered).values()) == {1}
        totals = ledger_totals(read_ledger(tmp_path / "ledger.jsonl"), "train")
        assert (totals.requests, totals.answered, totals.unfinished) == (21, 18, 3)
        assert totals.prompt_tokens + totals.completion_tokens == 18 * 107
        assert sum(r[2] for r in runs) == 21 * 107  # a run costs what it costs by itself


def test_a_hanging_server_fails_its_own_node_by_name() -> None:
    """Fault kind: one failure loses its siblings (one of three workers never answers)."""

    def script(sent: Request) -> Behaviour:
        is_slow = sent.payload["messages"][0]["content"] == DEFAULT_ROLES[V].instruction
        return (
            Hang() if is_slow else Raw(429, b"", {"retry-after": "0"}) if sent.number < 2 else Answer("Answer: SUPPORT")
        )

    with serve(script) as server:
        config = EndpointConfig(base_url=server.url, model="m", timeout_s=0.5, max_attempts=3, max_wait_s=0.01)
        agent = EndpointAgent(config, Sampling(0.0))
        result = WorkflowRuntime(agent, roles=DEFAULT_ROLES).run_many_sync(
            [request(Topology((R, R, V, A), ((0, 3), (1, 3), (2, 3))), agreement())]
        )[0]
    assert [(f.role, f.kind) for f in result.failures] == [(V, "timeout"), (A, "predecessor")]
    assert [m.sender for m in result.messages] == [R, R]
