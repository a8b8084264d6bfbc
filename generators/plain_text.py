"""World text as ids: cached piece by piece, and never a control token, whatever the text holds."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

# A piece ends behind a line break that has text on both sides: byte-level BPE (GPT-2, Llama 3, Qwen) never
# forms a token across such a place, so pieces can be encoded (and cached) one by one.
_PIECE_ENDS = re.compile(r"(?<=\S\n)(?=\S)")
_PROBES = (
    'Claim: A raises b.\nn1 result S2\nn2 source S1.\n"Quoted"\n(x) 12 %\nLeft 6. Moves n1-n2.',
    "It's 3\n's end:\n/path/to\n#1\n\u4e2d\u6587\u3002\n\U0001f600 ok\n-5\n\u00e9t\u00e9\n...\nend",
)
CACHED_PIECES = 65_536


class PlainText:
    """Encodes text with a tokenizer as plain text only, and a template's own text with its control tokens.

    Args:
        tokenizer: Any Hugging Face tokenizer. A copy is used: encoding leaves traces in the object.

    Attributes:
        is_piecewise: Whether text is encoded piece by piece; False where that could differ from encoding it
            whole.

    Raises:
        ValueError: If a control token is a single character, which no text could avoid.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = copy.deepcopy(tokenizer)
        self._tokenizer.model_max_length = int(1e30)  # length limits are the engine's affair; no warning here
        added = {token_id: token for token_id, token in tokenizer.added_tokens_decoder.items() if str(token).strip()}
        single = [str(token) for token in added.values() if token.special and len(str(token)) == 1]
        if single:
            raise ValueError(f"control tokens {single} are single characters: plain text can't be told from them")
        self._control = {str(token): token_id for token_id, token in added.items() if len(str(token)) > 1}
        self._control_ids = frozenset(self._control.values())
        self._any_control = _one_of([_pattern(token) for token in added.values() if len(str(token)) > 1])
        # split_special_tokens covers the special ones; other added tokens (<tool_call>, <think>) are cut
        # apart by us.
        self._unsplit = _one_of([re.escape(str(t)) for t in added.values() if not t.special and len(str(t)) > 1])
        self._unk = -1 if tokenizer.unk_token_id is None else int(tokenizer.unk_token_id)
        self._encode_piece = lru_cache(maxsize=CACHED_PIECES)(self._encode_uncached)
        self.is_piecewise = self._pieces_agree()

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids of special and other added tokens (white space aside): the ones that text never yields."""
        return self._control_ids

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text; control-token strings in it become ordinary tokens."""
        if not self.is_piecewise:
            return list(self._encode_piece(text))
        return [token for piece in _PIECE_ENDS.split(text) if piece for token in self._encode_piece(piece)]

    def split_frame(self, text: str) -> list[str | int]:
        r"""Split a template's own text into plain runs and control ids.

        Example: ``"<|im_start|>user\n"`` gives ``[1, "user\n"]``.
        """
        parts: list[str | int] = []
        position = 0
        for match in self._any_control.finditer(text):
            if match.start() > position:
                parts.append(text[position : match.start()])
            parts.append(self._control[match.group().strip()])
            position = match.end()
        if position < len(text):
            parts.append(text[position:])
        return parts

    def encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        """Encode plain runs and control ids; neighbouring runs are encoded as one text."""
        ids: list[int] = []
        run: list[str] = []
        for part in parts:
            if isinstance(part, str):
                run.append(part)
                continue
            if run:
                ids += self.encode("".join(run))
                run = []
            ids.append(part)
        return ids + self.encode("".join(run)) if run else ids

    def encode_marked(self, text: str) -> list[int]:
        """Encode a template's own text, control tokens included."""
        return self.encode_parts(self.split_frame(text))

    def count_unknown(self, text: str) -> int:
        """Count tokens of plain text that the tokenizer does not know (0 for byte-level tokenizers)."""
        return self.encode(text).count(self._unk)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens shown as they are written."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _encode_uncached(self, text: str) -> tuple[int, ...]:
        match = self._unsplit.search(text)
        if match is not None:
            cut = match.start() + 1
            return self._encode_uncached(text[:cut]) + self._encode_uncached(text[cut:])
        ids = self._encode_raw(text)
        if len(text) > 1 and any(token in self._control_ids and token != self._unk for token in ids):
            # A normalizer made a control token out of other characters (full-width ones, say): one by one it
            # can't.
            return tuple(token for character in text for token in self._encode_uncached(character))
        return ids

    def _encode_raw(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def _pieces_agree(self) -> bool:
        """Whether this tokenizer encodes texts piece by piece as it does whole."""
        return all(
            [token for piece in _PIECE_ENDS.split(probe) for token in self._encode_raw(piece)]
            == list(self._encode_raw(probe))
            for probe in _PROBES
        )


def _one_of(patterns: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of the given, longest first; none given: it never matches."""
    return re.compile("|".join(sorted(patterns, key=len, reverse=True)) or r"(?!)")


def _pattern(token: object) -> str:
    """Return the pattern of an added token together with the white space that it swallows."""
    left = r"\s*" if getattr(token, "lstrip", False) else ""
    right = r"\s*" if getattr(token, "rstrip", False) else ""
    return f"{left}{re.escape(str(token))}{right}"
