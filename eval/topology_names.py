"""The names of methods, and what each changes against the reference: one thing at a time."""

from __future__ import annotations

from types import MappingProxyType

KGAT = "kgat"
QUERY_CONDITIONED = "query_conditioned"
EVIDENCE_REMOVED = "evidence_removed"
NO_EVIDENCE_IN_TRAINING = "no_evidence_in_training"
NO_EVIDENCE_AT_INFERENCE = "no_evidence_at_inference"
CLOSED_BOOK = "closed_book"
NO_VERIFIER = "no_verifier"
RANDOM_RETRIEVAL = "random_retrieval"
SINGLE_AGENT = "single_agent"
SINGLE_AGENT_CLOSED_BOOK = "single_agent_closed_book"
SELF_CONSISTENCY = "self_consistency_matched"
SELF_CONSISTENCY_CONSTANT = "self_consistency_constant"
REACT = "react"
CHAIN = "chain"
STAR = "star"
TREE = "tree"
WITH_VERIFIER = "with_verifier"
BEST_FIXED = "best_fixed"
DEBATE = "debate"
RANDOM = "random"

WHAT_CHANGES = MappingProxyType(
    {
        KGAT: "the reference: team from question and evidence, agents see the evidence",
        QUERY_CONDITIONED: "the same model trained and asked without evidence; agents see the evidence",
        EVIDENCE_REMOVED: "kgat's own weights, asked without evidence; agents see the evidence",
        NO_EVIDENCE_IN_TRAINING: "a model whose teams were mined and trained closed book; agents see the evidence now",
        NO_EVIDENCE_AT_INFERENCE: "kgat's own weights asked without evidence, and agents without evidence",
        CLOSED_BOOK: "kgat's own teams, agents without evidence",
        NO_VERIFIER: "kgat's weights, the Verifier's role masked while decoding",
        RANDOM_RETRIEVAL: "kgat on as many units drawn at random; agents see these",
        SINGLE_AGENT: "one Answerer",
        SINGLE_AGENT_CLOSED_BOOK: "one Answerer without evidence",
        SELF_CONSISTENCY: "one Answerer sampled until kgat's tokens of that question are spent, majority of answers",
        SELF_CONSISTENCY_CONSTANT: "the same, but on every question kgat's mean tokens over all questions are spent",
        REACT: "one Answerer that retrieves and answers step by step, up to as many units as kgat's agents see",
        CHAIN: "template",
        STAR: "template",
        TREE: "template",
        WITH_VERIFIER: "template",
        BEST_FIXED: "one team for all questions: the best on dev of the templates and of what was mined",
        DEBATE: "template: every node hears all before it; the in-degree limit does not hold",
        RANDOM: "a feasible team drawn at random for each question",
    }
)
"""Method to what it changes against :data:`KGAT`; also the order in which methods are played and shown."""

METHODS = tuple(WHAT_CHANGES)

FIXED_TEAMS = (SINGLE_AGENT, CHAIN, STAR, TREE, WITH_VERIFIER, DEBATE)
"""Methods that are one template for all questions."""

GENERATED = (
    KGAT,
    QUERY_CONDITIONED,
    EVIDENCE_REMOVED,
    NO_EVIDENCE_IN_TRAINING,
    NO_EVIDENCE_AT_INFERENCE,
    CLOSED_BOOK,
    NO_VERIFIER,
    RANDOM_RETRIEVAL,
)
"""Methods whose teams a generator decodes."""

SECOND_GENERATOR = (QUERY_CONDITIONED,)
"""Those of them that need a second generator, trained without evidence."""

THIRD_GENERATOR = (NO_EVIDENCE_IN_TRAINING,)
"""Those that need a third one, of a run in which not even the agents saw evidence."""

SWEPT = (KGAT, QUERY_CONDITIONED, BEST_FIXED, SINGLE_AGENT, SELF_CONSISTENCY, REACT, WITH_VERIFIER, DEBATE)
"""Methods that sweeps play unless others are asked for."""

TOKEN_MATCHED = (SELF_CONSISTENCY, SELF_CONSISTENCY_CONSTANT)
"""Lone agents that spend the reference's tokens: question by question, or the same on every question."""

UNTRAINED = (SINGLE_AGENT, *TOKEN_MATCHED, REACT, CHAIN, STAR, TREE, WITH_VERIFIER, BEST_FIXED, DEBATE, RANDOM)
"""Baselines that no generator trained for; a report says so where one is as good as the reference."""

EVIDENCE_PAIRS = MappingProxyType({KGAT: CLOSED_BOOK, SINGLE_AGENT: SINGLE_AGENT_CLOSED_BOOK})
"""Method to the same one whose agents see no evidence: open against closed book."""

RESERVED_NAMES = (
    "adaptation",
    "calls_ratio_cached",
    "planted_optimum_ratio",
    "planted_evidence_ratio",
    "details",
    "name",
    "seed",
    "config_hash",
)
"""Keys of ``summary.json`` beside the methods'."""
