"""Grammar-constrained actions: which tokens may come next, so that every sampled action is a legal one.

Off by default. A constraint reads the legal moves off the observation's last line alone, so the legal-token
sets of a stored episode can be computed again (:func:`replay_legal_tokens`). Training on constrained samples
is only on-policy if those sets are applied to the trainer's logits too: log-probabilities are of the masked
distribution.

Supported: the tiny dialogue, and JSON actions of chat models with byte-level tokenizers. Tool calls are not.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from provgym.envs.graph_arrays import MAX_NEIGHBOURS
from provgym.generators.chat import MAX_CITED_SOURCES, ChatDialogue
from provgym.generators.engine import ActionConstraint, LegalTokens
from provgym.generators.episode import Episode
from provgym.generators.tiny import END
from provgym.generators.token_automaton import Automaton, States
from provgym.rewards.outcome import Verdict

_FOOTER = re.compile(r"Left \d+\. (?:Stop now|Moves (.*))\.")
_MOVE = re.compile(r"(?<![^\s\[])n(\d+)(?:-n(\d+))?(?![^\s\];])")
_LABEL_CHARACTERS = string.ascii_letters + string.digits + "_.:-/"
_LONGEST_LABEL = 32
_JSON_CHARACTERS = _LABEL_CHARACTERS + '{}[]", '
_Symbol = TypeVar("_Symbol")


def legal_moves(lines: Sequence[str]) -> tuple[str, ...]:
    """Read the aliases that can be walked to off an observation's last line, whatever stands between them.

    With real source ids as labels, an id that holds an alias as a word of its own is taken for one.

    Returns:
        Aliases in ascending order.

    Raises:
        ValueError: If the last line lists no moves.

    Example:
        >>> legal_moves(["n1 result", "Left 6. Moves n0-n2 n5."])
        ('n0', 'n1', 'n2', 'n5')
        >>> legal_moves(["Left 4. Moves S1 n2 S3 n7 n9-n10 [n0 n3]."])
        ('n0', 'n2', 'n3', 'n7', 'n9', 'n10')
        >>> legal_moves(["Left 4. Moves S1 x2: n2 n4; source S2: n7 [n0]."])
        ('n0', 'n2', 'n4', 'n7')
        >>> legal_moves(["Left 0. Stop now."])
        ()
    """
    footer = _FOOTER.fullmatch(lines[-1]) if lines else None
    if footer is None:
        raise ValueError(f"expected the moves in the observation's last line, found {list(lines)[-1:]}")
    numbers: set[int] = set()
    for first, last in _MOVE.findall(footer.group(1) or ""):
        run = range(int(first), int(last or first) + 1)
        if len(run) <= MAX_NEIGHBOURS:  # no node has more moves: a longer run is part of somebody's source id
            numbers.update(run)
    return tuple(f"n{number}" for number in sorted(numbers))


class TinyConstraint:
    """Legal actions of the tiny policy: ``walk`` to a listed move, or ``stop`` with any well-formed judgement.

    Args:
        tokenizer: As built by :func:`~provgym.generators.tiny.build_tokenizer`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        vocabulary = tokenizer.get_vocab()
        self._vocabulary = vocabulary
        self._end = vocabulary[END]
        self._counts = [[i for t, i in vocabulary.items() if re.fullmatch(rf"[{s}]\d+", t)] for s in "+-"]
        self._confidences = [i for t, i in vocabulary.items() if re.fullmatch(r"0\.\d|1\.0", t)]
        self._labels = [i for t, i in vocabulary.items() if re.fullmatch(r"S\d+", t)]
        self._automaton = lru_cache(maxsize=4_096)(self._build)

    def legal_tokens(self, lines: Sequence[str]) -> LegalTokens:
        """Return the rule for the action that answers an observation."""
        automaton = self._automaton(legal_moves(lines))

        def legal(ids: tuple[int, ...]) -> Sequence[int]:
            states = _walk_through(automaton, ids)
            return sorted(automaton.symbols(states) | ({self._end} if automaton.may_end(states) else set()))

        return legal

    def _build(self, moves: tuple[str, ...]) -> Automaton[int]:
        automaton = Automaton[int]()
        known = [[self._vocabulary[alias]] for alias in moves if alias in self._vocabulary]
        if known:
            automaton.accept(automaton.choice(automaton.sequence(automaton.start, [self._vocabulary["walk"]]), known))
        ends = automaton.sequence(automaton.start, [self._vocabulary["stop"]])
        for signed in self._counts:
            ends = automaton.repeat(ends, signed, least=1, most=1)
        ends = automaton.choice(ends, [[self._vocabulary[verdict.value]] for verdict in Verdict])
        ends = automaton.repeat(ends, self._confidences, least=1, most=1)
        automaton.accept(automaton.repeat(ends, self._labels, most=MAX_CITED_SOURCES))
        return automaton


class ChatJSONConstraint:
    """Legal JSON actions of a chat model, in any split into tokens.

    Actions are written as ``json.dumps`` writes them; counts lie in 0-99, confidences have at most two
    decimals, and up to ten sources are cited. A split into many short tokens can still be cut by the
    dialogue's token limit.

    Args:
        tokenizer: Of the model; byte-level BPE.
        dialogue: With the ``json`` grammar.

    Raises:
        ValueError: If the dialogue's grammar is another, or the tokenizer is not byte-level.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, dialogue: ChatDialogue) -> None:
        if dialogue.grammar != "json":
            raise ValueError(f"grammar {dialogue.grammar!r} can't be constrained; use 'json'")
        texts = _token_texts(tokenizer, dialogue.control_ids)
        missing = set(_JSON_CHARACTERS) - set(texts.values())
        if missing:
            raise ValueError(f"constrained actions need a byte-level tokenizer; no token is {sorted(missing)}")
        self._texts, self._end = texts, dialogue.turn_end
        self._trie = _TrieNode()
        for token, text in texts.items():
            self._trie.insert(text, token)
        self._automaton = lru_cache(maxsize=1_024)(_json_automaton)
        self._after = lru_cache(maxsize=65_536)(self._find_tokens)

    def legal_tokens(self, lines: Sequence[str]) -> LegalTokens:
        """Return the rule for the action that answers an observation."""
        automaton = self._automaton(legal_moves(lines))

        def legal(ids: tuple[int, ...]) -> Sequence[int]:
            text = "".join(self._texts.get(token, "\0") for token in ids)
            return self._after(automaton, _walk_through(automaton, text))

        return legal

    def _find_tokens(self, automaton: Automaton[str], states: States) -> tuple[int, ...]:
        found = [self._end] if automaton.may_end(states) else []
        stack = [(self._trie, states)]
        while stack:
            node, at = stack.pop()
            found += node.tokens
            for character in automaton.symbols(at) & node.children.keys():
                stack.append((node.children[character], automaton.step(at, character)))
        return tuple(sorted(found))


@dataclass(slots=True)
class _TrieNode:
    """Tokens whose text ends here, and where longer texts go on."""

    children: dict[str, _TrieNode] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)

    def insert(self, text: str, token: int) -> None:
        node = self
        for character in text:
            node = node.children.setdefault(character, _TrieNode())
        node.tokens.append(token)


def replay_legal_tokens(constraint: ActionConstraint, episode: Episode) -> list[Sequence[int] | None]:
    """Compute again which tokens were legal at each place of an episode's completion.

    Returns:
        One entry per completion id: the legal ids where the policy sampled, None for the world's ids.

    Raises:
        ValueError: If the episode has no tokens, or a sampled id was not legal (it was sampled
            unconstrained).
    """
    tokens = episode.tokens
    if tokens is None:
        raise ValueError(f"episode {episode.instance_id!r} holds no tokens")
    sets: list[Sequence[int] | None] = []
    turns = iter(episode.turns)
    legal: LegalTokens | None = None
    ids: tuple[int, ...] = ()
    for place, (token, sampled) in enumerate(zip(tokens.completion_ids, tokens.mask, strict=True)):
        if not sampled:
            legal = None
            sets.append(None)
            continue
        if legal is None:
            legal, ids = constraint.legal_tokens(next(turns).observation.splitlines()), ()
        allowed = legal(ids)
        if token not in allowed:
            raise ValueError(
                f"episode {episode.instance_id!r}: token {token} at place {place} was not legal; it was not "
                "sampled under this constraint"
            )
        sets.append(allowed)
        ids += (token,)
    return sets


def _walk_through(automaton: Automaton[_Symbol], symbols: Iterable[_Symbol]) -> States:
    states = automaton.start
    for symbol in symbols:
        states = automaton.step(states, symbol)
    return states


def _token_texts(tokenizer: PreTrainedTokenizerBase, control_ids: frozenset[int]) -> dict[int, str]:
    """Return the tokens of a byte-level vocabulary that are printable ASCII."""
    texts = {token_id: token.replace("\u0120", " ") for token, token_id in tokenizer.get_vocab().items()}
    return {i: text for i, text in texts.items() if text.isascii() and text.isprintable() and i not in control_ids}


def _json_automaton(moves: tuple[str, ...]) -> Automaton[str]:
    automaton = Automaton[str]()
    if moves:
        ends = automaton.sequence(automaton.start, '{"walk": "')
        automaton.accept(automaton.sequence(automaton.choice(ends, moves), '"}'))
    ends = automaton.sequence(automaton.start, '{"stop": {"support_count": ')
    ends = automaton.sequence(_count(automaton, ends), ', "refute_count": ')
    ends = automaton.sequence(_count(automaton, ends), ', "verdict": "')
    ends = automaton.choice(ends, [verdict.value for verdict in Verdict])
    ends = automaton.sequence(ends, '", "confidence": ')
    whole = automaton.choice(ends, ["0", "1", "0.0", "1.0"])
    part = automaton.repeat(automaton.sequence(ends, "0."), string.digits, least=1, most=2)
    ends = automaton.sequence(whole | part, ', "cited_sources": [')
    every = ends
    for number in range(MAX_CITED_SOURCES):
        ends = automaton.sequence(ends, '"' if number == 0 else ', "')
        ends = automaton.repeat(ends, _LABEL_CHARACTERS, least=1, most=_LONGEST_LABEL)
        ends = automaton.sequence(ends, '"')
        every |= ends
    automaton.accept(automaton.sequence(every, "]}}"))
    return automaton


def _count(automaton: Automaton[str], ends: States) -> States:
    """Add a number from 0 to 99 without a leading zero."""
    tens = automaton.repeat(ends, "123456789", least=1, most=1)
    return automaton.sequence(ends, "0") | automaton.repeat(tens, string.digits, most=1)
