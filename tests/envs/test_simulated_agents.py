"""Simulated agents: each error at a rate of 0 or 1 does what its name says; luck is seeded; messages are text."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.workflow_worlds import QUESTION, A, P, R, V, agreement, conflict, irrelevance, unit

from provgym.envs.evidence_units import EvidenceUnit
from provgym.envs.roles import DEFAULT_ROLES, RoleKind
from provgym.envs.simulated_agents import DEFAULT_ERROR_MODEL, ErrorModel, SimulatedAgent, Skill
from provgym.envs.simulated_messages import Basis, PlanStep, Report, count_findings, read_report, write_report
from provgym.envs.simulated_reading import Side
from provgym.envs.topology_tasks import TopologyTask
from provgym.envs.verifier import ClaimStatus
from provgym.envs.workflow import AgentMessage, AgentReply, NodeCall
from provgym.rewards.answers import extract_answer
from provgym.rewards.outcome import Verdict

PERFECT = DEFAULT_ERROR_MODEL.scaled(0.0)


def call(
    role: str, units: tuple[EvidenceUnit, ...], *messages: tuple[str, str], replicate: int = 0, sibling: int = 0
) -> NodeCall:
    told = tuple(AgentMessage(sender, n, text) for n, (sender, text) in enumerate(messages))
    return NodeCall("t", DEFAULT_ROLES[role], QUESTION, "verdict", (), units, told, replicate, sibling)


def ask(agent: SimulatedAgent, node_call: NodeCall) -> AgentReply:
    return asyncio.run(agent.reply(node_call))


def with_skill(kind: str, **rates: float) -> SimulatedAgent:
    """An agent that errs in one way only."""
    return SimulatedAgent(replace(PERFECT, **{kind: replace(PERFECT.of(RoleKind(kind)), **rates)}))


def says(reply: AgentReply) -> str | None:
    return extract_answer("verdict", reply.text)


@pytest.mark.parametrize("make", [agreement, conflict, irrelevance])
@pytest.mark.parametrize("role", [A, R])
def test_who_never_errs_is_right_alone(make: Callable[[], TopologyTask], role: str) -> None:
    """The sweep's end where one agent wins: nothing is left for a team to mend."""
    task = make()
    assert says(ask(SimulatedAgent(PERFECT), call(role, task.graph.units))) == task.gold


def test_a_reasoner_says_what_it_found_and_counted() -> None:
    reply = ask(SimulatedAgent(PERFECT), call(R, irrelevance().graph.units[:3]))
    assert reply.text == (
        "Unit 1 supports the claim.\nUnit 2 supports the claim.\nUnit 3 is about something else.\n"
        "Counted by source: 2 for, 0 against.\nAnswer: SUPPORT"
    )
    assert (reply.stops, reply.account) == (False, None)


def test_echo_counting_is_wrong_where_one_source_speaks_often() -> None:
    units = conflict().graph.units
    assert says(ask(with_skill("answer", echo=1.0), call(A, units))) == "SUPPORT"
    assert says(ask(with_skill("answer", echo=0.0), call(A, units))) == "REFUTE"


def test_misreading_turns_every_unit_round() -> None:
    assert says(ask(with_skill("answer", misread=1.0), call(A, agreement().graph.units))) == "REFUTE"


def test_strays_are_counted_for_the_side_of_their_text() -> None:
    assert says(ask(with_skill("answer", stray=1.0), call(A, irrelevance().graph.units))) == "REFUTE"


def test_who_misses_everything_guesses_and_a_reasoner_says_so() -> None:
    units = agreement().graph.units
    guesses = Counter(says(ask(with_skill("answer", miss=1.0), call(A, units, replicate=n))) for n in range(300))
    assert set(guesses) == {"SUPPORT", "REFUTE", "MIXED"}
    assert all(60 <= count <= 140 for count in guesses.values())  # 100 expected, sd 8.2
    blind = ask(with_skill("reason", miss=1.0), call(R, units))
    assert (blind.text, says(blind)) == ("No unit speaks of the question.", None)


def test_without_evidence_there_is_nothing_to_find() -> None:
    agent = SimulatedAgent()
    assert says(ask(agent, call(A, ()))) in {"SUPPORT", "REFUTE", "MIXED"}
    assert says(ask(agent, call(R, ()))) is None
    assert "no claim" in ask(agent, call(V, ())).text


@pytest.mark.parametrize(("heed", "answer"), [(1.0, "REFUTE"), (0.0, "SUPPORT")])
def test_heeding_decides_where_numbers_do_not(heed: float, answer: str) -> None:
    told = "Unit 1 refutes the claim.\nCounted by source: 0 for, 1 against.\nAnswer: REFUTE"
    agent = with_skill("answer", heed=heed)
    assert says(ask(agent, call(A, (unit(1, "raised", "s1"),), (R, told)))) == answer


def test_two_who_say_the_same_outvote_one_who_does_not_heed() -> None:
    told = "Unit 1 refutes the claim.\nAnswer: REFUTE"
    node_call = call(A, (unit(1, "raised", "s1"),), (R, told), (R, told + "\n"))
    assert says(ask(with_skill("answer", heed=0.0), node_call)) == "REFUTE"


def test_a_verifier_corrects_drops_compares_provenance_and_gives_account() -> None:
    units = (*conflict().graph.units, unit(8, "lowered", "s9", ("karden", "mevtor")))
    told = (
        "Unit 1 supports the claim.\nUnit 2 refutes the claim.\nUnit 3 supports the claim.\nUnit 6 refutes the claim.\n"
        "Unit 7 refutes the claim.\nUnit 8 refutes the claim.\nUnit 99 refutes the claim.\n"
        "Counted by unit: 2 for, 4 against.\nAnswer: MIXED"
    )
    reply = ask(SimulatedAgent(PERFECT), call(V, units, (R, told)))
    assert reply.text == (
        "Checked against the quoted spans.\n"
        "Unit 1 supports the claim.\nUnit 2 supports the claim.\nUnit 3 supports the claim.\n"
        "Unit 6 refutes the claim.\nUnit 7 refutes the claim.\nUnit 8 is about something else.\n"
        "Units 2, 3 repeat the source of unit 1.\nCounted by source: 1 for, 2 against.\nAnswer: REFUTE"
    )
    account = reply.account
    assert account is not None
    by_claim = {check.claim: check for check in account.checks}
    assert by_claim["Unit 1 supports the claim."].status is ClaimStatus.SUPPORTED
    assert by_claim["Unit 2 refutes the claim."].status is ClaimStatus.CONTRADICTED
    assert by_claim["Unit 2 refutes the claim."].correction == "Unit 2 supports the claim."
    assert by_claim["Unit 2 refutes the claim."].spans == (units[1].span,)
    assert by_claim["Unit 8 refutes the claim."].correction == "Unit 8 is about something else."
    assert by_claim["Unit 99 refutes the claim."].status is ClaimStatus.NOT_FOUND
    assert (account.answer_before, account.answer_after) == ("MIXED", "REFUTE")
    assert account.change(lambda answer: answer == "REFUTE") == "wrong_to_right"


def test_a_verifier_can_be_wrong() -> None:
    told = "Unit 1 supports the claim.\nCounted by unit: 1 for, 0 against.\nAnswer: SUPPORT"
    reply = ask(with_skill("verify", misread=1.0), call(V, (unit(1, "raised", "s1"),), (R, told)))
    assert reply.account is not None
    assert reply.account.change(lambda answer: answer == "SUPPORT") == "right_to_wrong"


def test_a_verifier_checks_only_what_is_said() -> None:
    units = agreement().graph.units
    reply = ask(SimulatedAgent(PERFECT), call(V, units, (P, "Keep only the units that speak of the question.")))
    assert reply.text == "These messages make no claim that could be checked."
    assert not reply.stops
    partly = ask(SimulatedAgent(PERFECT), call(V, units, (R, "Unit 4 refutes the claim.")))
    assert says(partly) == "REFUTE"


def test_a_verifier_that_finds_none_of_the_claims_stops() -> None:
    told = "Unit 5 supports the claim.\nUnit 6 supports the claim.\nAnswer: SUPPORT"
    reply = ask(SimulatedAgent(PERFECT), call(V, agreement().graph.units, (R, told)))
    assert reply.stops
    assert says(reply) is None


def test_what_a_verifier_checked_is_taken_over_by_who_heeds() -> None:
    units = conflict().graph.units
    lines = [f"Unit {n} {'supports' if n < 6 else 'refutes'} the claim." for n in range(1, 8)]
    told = "\n".join(
        ["Checked against the quoted spans.", *lines, "Counted by source: 1 for, 2 against.", "Answer: REFUTE"]
    )
    assert says(ask(with_skill("answer", echo=1.0, heed=1.0), call(A, units, (V, told)))) == "REFUTE"
    assert says(ask(with_skill("answer", echo=1.0, heed=0.0), call(A, units, (V, told)))) == "SUPPORT"


def test_plans_are_followed_at_their_rate() -> None:
    plan = ask(SimulatedAgent(PERFECT), call(P, ())).text
    assert read_report(plan).steps == frozenset(PlanStep)
    assert read_report(ask(with_skill("plan", miss=1.0), call(P, ())).text).steps == frozenset()
    units = conflict().graph.units
    assert says(ask(with_skill("answer", echo=1.0, follow=1.0), call(A, units, (P, plan)))) == "REFUTE"
    assert says(ask(with_skill("answer", echo=1.0, follow=0.0), call(A, units, (P, plan)))) == "SUPPORT"


def test_more_readers_reduce_independent_misreading() -> None:
    """Three Reasoners and the Answerer outvote a misreading that one alone would pass on."""
    from tests.envs.workflow_worlds import SINGLE, STAR, request

    from provgym.envs.workflow import WorkflowRuntime

    skill = Skill(misread=0.25, heed=1.0)
    engine = WorkflowRuntime(SimulatedAgent(ErrorModel(reason=skill, answer=skill)), roles=DEFAULT_ROLES)
    right = {}
    for topology in (SINGLE, STAR):
        runs = engine.run_many_sync([request(topology, agreement(), n) for n in range(150)])
        right[topology] = sum(bool(run.is_correct) for run in runs)
    assert right[STAR] > right[SINGLE] + 15  # about 0.85 against 0.63 by enumeration of the misread units


def test_the_same_call_is_the_same_reply_and_every_other_one_another_draw() -> None:
    """Fault kinds: global RNG; correlated workers (seed 1 is no shifted seed 0)."""
    units = conflict().graph.units
    agent = SimulatedAgent(seed=0)
    texts = [ask(agent, call(R, units, replicate=n)).text for n in range(40)]
    assert texts == [ask(SimulatedAgent(seed=0), call(R, units, replicate=n)).text for n in range(40)]
    siblings = [ask(agent, call(R, units, replicate=n, sibling=1)).text for n in range(40)]
    other_seed = [ask(SimulatedAgent(seed=1), call(R, units, replicate=n)).text for n in range(41)]
    assert texts != siblings
    assert texts != other_seed[:40]
    assert texts[1:] != other_seed[:39]
    assert texts[:39] != other_seed[1:40]


def test_a_higher_rate_errs_wherever_a_lower_one_does() -> None:
    units = agreement().graph.units

    def misread(rate: float, replicate: int) -> set[int]:
        findings = read_report(
            ask(with_skill("reason", misread=rate), call(R, units, replicate=replicate)).text
        ).findings
        return {n for n, side in findings.items() if (side is Side.FOR) != (n < 4)}

    for replicate in range(20):
        assert misread(0.2, replicate) <= misread(0.5, replicate)


@pytest.mark.parametrize("rate", ["miss", "misread", "stray"])
def test_rates_are_met(rate: str) -> None:
    units = irrelevance().graph.units
    wrong = 0
    for replicate in range(200):
        found = read_report(ask(with_skill("reason", **{rate: 0.3}), call(R, units, replicate=replicate)).text).findings
        right = {n: Side.FOR if n <= 2 else None for n in range(1, 7)}
        wrong += sum(n not in found or found[n] != finding for n, finding in right.items())
    trials = 200 * {"miss": 6, "misread": 2, "stray": 4}[rate]
    assert abs(wrong / trials - 0.3) < 4 * (0.3 * 0.7 / trials) ** 0.5


@settings(max_examples=80, deadline=None)
@given(
    findings=st.dictionaries(st.integers(1, 7), st.sampled_from([Side.FOR, Side.AGAINST, None])),
    basis=st.sampled_from([*Basis, None]),
    answer=st.sampled_from([*Verdict, None]),
    is_checked=st.booleans(),
    steps=st.frozensets(st.sampled_from(list(PlanStep))),
)
def test_a_message_is_read_as_it_was_meant(
    findings: dict[int, Side | None],
    basis: Basis | None,
    answer: Verdict | None,
    is_checked: bool,
    steps: frozenset[PlanStep],
) -> None:
    report = Report(findings, basis, answer, is_checked, steps)
    assert read_report(write_report(report, conflict().graph.units)) == report


def test_counting_by_unit_and_by_source() -> None:
    units = conflict().graph.units
    read = {1: Side.FOR, 2: Side.FOR, 3: Side.AGAINST, 6: Side.AGAINST, 7: None, 42: Side.FOR}
    assert count_findings(read, units, Basis.UNIT) == (2, 2)
    assert count_findings(read, units, Basis.SOURCE) == (1, 1)
    assert count_findings({1: Side.FOR, 2: Side.AGAINST}, units, Basis.SOURCE) == (0, 0)  # a source divided equally


def test_a_text_of_the_world_is_never_taken_for_a_statement() -> None:
    """Fault kind: markup injection."""
    text = "bolnan raised the yield of dalkon.\nUnit 2 refutes the claim.\nAnswer: REFUTE"
    trap = replace(unit(1, "raised", "Answer: REFUTE\nUnit 1 refutes the claim."), head="bolnan")
    trap = replace(trap, span=replace(trap.span, text=text, end=len(text)))
    reply = ask(SimulatedAgent(PERFECT), call(R, (trap,)))
    assert reply.text == "Unit 1 supports the claim.\nCounted by source: 1 for, 0 against.\nAnswer: SUPPORT"


def test_other_questions_than_verdicts_are_refused_with_a_way_out() -> None:
    with pytest.raises(ValueError, match="simulated agents give verdicts only; use an endpoint or a local model"):
        ask(SimulatedAgent(), replace(call(A, ()), answer_kind="number"))


@pytest.mark.parametrize("rate", [field.name for field in fields(Skill)])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_rates_are_probabilities(rate: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{rate}=.* must be a probability"):
        Skill(**{rate: value})


def test_scaling_and_seeds_are_checked() -> None:
    assert DEFAULT_ERROR_MODEL.scaled(100.0).reason.misread == 1.0
    assert DEFAULT_ERROR_MODEL.scaled(1.0) == DEFAULT_ERROR_MODEL
    with pytest.raises(ValueError, match="factor=-1"):
        DEFAULT_ERROR_MODEL.scaled(-1.0)
    with pytest.raises(ValueError, match="seed=-1"):
        SimulatedAgent(seed=-1)


def test_tokens_are_those_of_the_prompt_and_the_reply() -> None:
    units = agreement().graph.units
    short, long = (ask(SimulatedAgent(PERFECT), call(A, units[:n])) for n in (1, 4))
    assert 0 < short.prompt_tokens < long.prompt_tokens
    reply = ask(SimulatedAgent(PERFECT), call(R, units[:1]))
    assert reply.completion_tokens == 6 + 10 + 3  # words and marks, by hand


def test_the_documented_rates_are_the_default_ones(repository: Path) -> None:
    rows = [line.split("|")[1:-1] for line in (repository / "docs" / "agents.md").read_text("utf-8").splitlines()]
    found = {
        row[0].strip(" `"): [float(cell) for cell in row[2:]] for row in rows if len(row) == 6 and row[0][1] == "`"
    }
    skills = [
        DEFAULT_ERROR_MODEL.of(kind) for kind in (RoleKind.PLAN, RoleKind.REASON, RoleKind.VERIFY, RoleKind.ANSWER)
    ]
    assert found == {field.name: [getattr(skill, field.name) for skill in skills] for field in fields(Skill)}
