"""What a Verifier's reply is read as, and what its account says of right and wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.workflow_worlds import unit

from provgym.envs.verifier import (
    ClaimStatus,
    VerifierAccount,
    atomic_claims,
    common_answer,
    read_verification,
)

UNITS = (unit(1, "raised", "s1"), unit(2, "cut", "s2"), unit(12, "raised", "s3"))


def test_a_whole_reply_is_read() -> None:
    reply = (
        "Let me see.\n"
        "CHECK: bolnan raised it | supported | 1 | -\n"
        "- check: two sources say so | Contradicted | u2, 3 | only one does\n"
        "CHECK: it is old | not found | | none\n"
        "REVISED: One source says that it rises.\nAnswer: MIXED"
    )
    found = read_verification(reply, UNITS)
    assert [c.status for c in found.checks] == [
        ClaimStatus.SUPPORTED,
        ClaimStatus.CONTRADICTED,
        ClaimStatus.NOT_FOUND,
    ]
    assert [c.claim for c in found.checks] == ["bolnan raised it", "two sources say so", "it is old"]
    assert [[s.document_id for s in c.spans] for c in found.checks] == [["d1"], ["d2", "d12"], []]
    assert [c.correction for c in found.checks] == [None, "only one does", None]
    assert (found.message, found.stops) == ("One source says that it rises.\nAnswer: MIXED", False)


@pytest.mark.parametrize(
    ("field", "documents"),
    [
        ("1", ["d1"]),
        ("u12", ["d12"]),
        ("unit 2", ["d2"]),
        ("[3], (1)", ["d1", "d12"]),
        ("12", []),
        ("0", []),
        ("u9", []),
    ],
)
def test_units_are_named_by_number_or_id(field: str, documents: list[str]) -> None:
    (check,) = read_verification(f"CHECK: it holds | supported | {field}", UNITS).checks
    assert [span.document_id for span in check.spans] == documents


def test_support_by_no_unit_that_exists_is_not_found() -> None:
    (check,) = read_verification("CHECK: it holds | supported | 77", UNITS).checks
    assert (check.status, check.spans) == (ClaimStatus.NOT_FOUND, ())


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("SUPPORTED", ClaimStatus.SUPPORTED),
        ("not supported", ClaimStatus.NOT_FOUND),
        ("unsupported", ClaimStatus.NOT_FOUND),
        ("not_found", ClaimStatus.NOT_FOUND),
        ("contradicted", ClaimStatus.CONTRADICTED),
        ("not contradicted", ClaimStatus.NOT_FOUND),
        ("perhaps", ClaimStatus.NOT_FOUND),
    ],
)
def test_a_status_is_read_with_care(word: str, status: ClaimStatus) -> None:
    assert read_verification(f"CHECK: it holds | {word} | 1", UNITS).checks[0].status is status


@pytest.mark.parametrize(
    ("reply", "message", "stops"),
    [
        ("All wrong.\nSTOP", "All wrong.", True),
        ("**Stop**", "", True),
        ("REVISED: nothing holds\nStop.", "nothing holds", True),
        ("Never stop asking.", "Never stop asking.", False),
        ("It stops the decay.\nAnswer: SUPPORT", "It stops the decay.\nAnswer: SUPPORT", False),
    ],
)
def test_a_stop_is_a_line_of_its_own(reply: str, message: str, stops: bool) -> None:
    found = read_verification(reply, UNITS)
    assert (found.message, found.stops) == (message, stops)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(["CHECK:", "REVISED:", "STOP", "|", "\n", "supported", "1", "u2", " ", "{", "\u2028"])
        | st.text(max_size=8)
    ).map("".join)
)
def test_no_reply_raises(reply: str) -> None:
    found = read_verification(reply, UNITS)
    assert all(check.spans or check.status is ClaimStatus.NOT_FOUND for check in found.checks)
    assert atomic_claims(reply) is not None


def test_a_megabyte_of_bars_is_no_harm() -> None:
    assert len(read_verification("CHECK: " + "|" * 1_000_000, UNITS).checks) == 1
    assert len(read_verification("CHECK: a | supported | 1\n" * 5_000, UNITS).checks) == 1_000


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("A", "A", "kept_right"),
        ("A", "B", "right_to_wrong"),
        ("A", None, "right_to_wrong"),
        ("B", "A", "wrong_to_right"),
        ("B", "C", "kept_wrong"),
        ("B", None, "kept_wrong"),
        (None, "A", "no_answer_before"),
    ],
)
def test_what_a_check_did_to_the_answer(before: str | None, after: str | None, change: str) -> None:
    assert VerifierAccount((), before, after).change(lambda answer: answer == "A") == change


def test_an_account_counts_its_checks() -> None:
    reply = "CHECK: a | supported | 1\nCHECK: b | supported | 2\nCHECK: c | contradicted | 1 | d\nCHECK: e | no | 1"
    account = VerifierAccount(read_verification(reply, UNITS).checks, None, None)
    assert account.counts() == {"supported": 2, "contradicted": 1, "not found": 1}
    assert account.corrections == 1


def test_a_divided_team_gave_no_answer() -> None:
    assert common_answer([]) is None
    assert common_answer(["A", "B", "B", "A"]) is None
    assert common_answer(["B", "A", None, "B"]) == "B"
