"""One run of a topology for people to read: who heard whom, what was said, what it cost, how it ended."""

from __future__ import annotations

from provgym.envs.topology import Topology
from provgym.envs.workflow import TopologyRun
from provgym.eval.table import ResultTable


def topology_table(topology: Topology) -> ResultTable:
    """Return a row per node: its number, its role, whom it hears and who hears it."""
    rows = tuple(
        (str(node), role, _names(topology, topology.predecessors(node)), _names(topology, topology.successors(node)))
        for node, role in enumerate(topology.roles)
    )
    title = f"Topology: {topology.num_nodes} nodes, {topology.num_edges} edges"
    return ResultTable(title, ("node", "role", "hears", "is heard by"), rows)


def message_lines(run: TopologyRun) -> list[str]:
    """Return what every node said, was spared from saying, or failed to say, under its name."""
    said = {message.node: message.text for message in run.messages}
    failed = {failure.node: failure for failure in run.failures}
    accounts = {found.node: found.account for found in run.accounts}
    lines: list[str] = []
    for node, role in enumerate(run.topology.roles):
        lines += ["", f"{role} ({node}):"]
        if node in said:
            lines += [f"  {_printable(line)}" for line in said[node].splitlines() or [""]]
        elif node in failed:
            lines.append(f"  failed: {failed[node].kind}: {_printable(failed[node].detail)}")
        else:
            lines.append("  not asked: a verifier stopped the topology")
        if node in accounts:
            counts = ", ".join(f"{count} {status}" for status, count in accounts[node].counts().items())
            before, after = accounts[node].answer_before or "no answer", accounts[node].answer_after or "no answer"
            lines.append(f"  [claims checked: {counts}; corrected: {accounts[node].corrections}; {before} -> {after}]")
    return [*lines, ""]


def ledger_table(run: TopologyRun) -> ResultTable:
    """Return a row per answered call, and their sum; stored replies are told from paid ones."""
    rows = [
        (
            f"{call.role} ({call.node})",
            str(call.prompt_tokens) if call.is_counted else "not said",
            str(call.completion_tokens) if call.is_counted else "not said",
            "stored" if call.is_cached else "paid",
            f"{call.seconds:.3f}",
        )
        for call in run.calls
    ]
    paid = sum(not call.is_cached for call in run.calls)
    prompt, completion = (sum(getattr(c, f"{name}_tokens") for c in run.calls) for name in ("prompt", "completion"))
    total = (f"all {len(run.calls)} calls", str(prompt), str(completion), f"{paid} paid", f"{run.latency_s:.3f}")
    caption = "seconds of the sum: along the slowest chain of calls"
    header = ("call", "prompt tokens", "completion tokens", "reply", "seconds")
    return ResultTable(f"Ledger ({run.phase})", header, (*rows, total), caption)


def outcome_line(run: TopologyRun, *, is_checked: bool) -> str:
    """Return how the run ended, with the answer.

    Args:
        run: What came of it.
        is_checked: Whether there was a gold answer worth comparing with.
    """
    parts = [run.ending.value]
    if run.reason is not None:
        parts.append(f"({run.reason})")
    if run.answer is not None:
        parts.append(f"answer: {_printable(run.answer)}")
    if is_checked and run.is_correct is not None:
        parts.append("right" if run.is_correct else "wrong")
    return " ".join(parts)


def _names(topology: Topology, nodes: tuple[int, ...]) -> str:
    return ", ".join(f"{topology.roles[node]} ({node})" for node in nodes) or "nobody"


def _printable(text: str) -> str:
    """Return a line that can't steer a terminal: control characters become a replacement character."""
    return "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in text)
