"""The tiny policy: a small decoder with a tokenizer of its own, made from the generator's vocabulary.

It needs no download and trains on a laptop CPU. It reads GraphEcho-Syn's language and nothing else: words outside
its vocabulary become ``<unk>``, which every report counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from provgym.envs.provenance import REPRESENTATION_KINDS, NodeKind
from provgym.generators.graphecho import DOMAINS, DOWN, NAME_ENDS, NAME_STARTS, PERCENTS, UP
from provgym.rewards.outcome import Verdict

PAD, BOS, ACT, END, UNK = SPECIAL_TOKENS = ("<pad>", "<bos>", "<act>", "<end>", "<unk>")
CONTINUED = "##"
_WORDS = (
    "Claim In the of by percent Left Moves Stop now No such move Not an action none cut x "
    "Count distinct sources not paths nodes one source are piece evidence walk stop adding"
).split()
_PUNCTUATION = list(".,:;-+|[]()")
_MAX_ALIAS, _MAX_LABEL, _MAX_COUNT = 128, 32, 10


def vocabulary() -> list[str]:
    """Return the tokens, in the order of their ids."""
    words = list(_WORDS)
    words += [kind.name.lower() for kind in NodeKind] + list(REPRESENTATION_KINDS)
    words += list(DOMAINS) + list(itertools.chain.from_iterable(DOMAINS.values()))
    words += list(itertools.chain.from_iterable(UP + DOWN))
    words += [verdict.value for verdict in Verdict]
    words += [f"n{i}" for i in range(_MAX_ALIAS)] + [f"S{i}" for i in range(1, _MAX_LABEL + 1)]
    words += [f"{sign}{i}" for sign in "+-" for i in range(_MAX_COUNT + 1)]
    words += [f"{i / 10:.1f}" for i in range(11)] + [str(i) for i in range(max(PERCENTS) + 1)]
    words += list(NAME_STARTS) + [CONTINUED + end for end in NAME_ENDS]
    return list(dict.fromkeys([*SPECIAL_TOKENS, *_PUNCTUATION, *words]))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer: whole words, signed counts, and invented names in pieces."""
    tokenizer = Tokenizer(
        models.WordPiece(
            {token: i for i, token in enumerate(vocabulary())},
            unk_token=UNK,
            continuing_subword_prefix=CONTINUED,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"[+-]?\d+(?:\.\d+)?(?!\w)|x(?=\d+(?!\w))|\w+|[^\w\s]"), behavior="removed", invert=True
    )
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUED, cleanup=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=END,
        unk_token=UNK,
        additional_special_tokens=[ACT],
        padding_side="left",
        model_max_length=2048,
    )


def build_model(
    seed: int = 42,
    *,
    hidden_size: int = 128,
    num_layers: int = 4,
    num_heads: int = 4,
    intermediate_size: int = 256,
    initializer_range: float = 0.06,
) -> LlamaForCausalLM:
    """Build the untrained decoder (0.8 M parameters by default), seeded without touching the global generator.

    A wider initialisation than Llama's 0.02 lets so small a model learn to compare stances at all.
    """
    tokens = vocabulary()
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        max_position_embeddings=2048,
        initializer_range=initializer_range,
        tie_word_embeddings=True,
        pad_token_id=tokens.index(PAD),
        bos_token_id=tokens.index(BOS),
        eos_token_id=tokens.index(END),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


SHIPPED_TINY = Path(__file__).resolve().parent / "assets" / "tiny"
"""The shipped warm start: the naive policy that `make train` begins from."""


class TinyDialogue:
    """``<bos> world text <act> action <end> world text <act> ...``; instructions are left out.

    Args:
        tokenizer: As built by :func:`build_tokenizer`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._act = self._id(ACT)
        self._end, self._bos, self._unk = self._id(END), self._id(BOS), self._id(UNK)
        self._encode_line = lru_cache(maxsize=65_536)(self._encode_uncached)

    def _id(self, token: str) -> int:
        found = self._tokenizer.convert_tokens_to_ids(token)
        if not isinstance(found, int) or (token != UNK and found == self._tokenizer.unk_token_id):
            raise ValueError(f"the tokenizer has no token {token!r}; the tiny dialogue needs the tiny tokenizer")
        return found

    def _encode_uncached(self, line: str) -> tuple[int, ...]:
        # split_special_tokens: "<act>" inside evidence is text, never the control token.
        return tuple(self._tokenizer.encode(line, add_special_tokens=False, split_special_tokens=True))

    @property
    def end_ids(self) -> frozenset[int]:
        """The ``<end>`` token."""
        return frozenset([self._end])

    @property
    def max_action_tokens(self) -> int:
        """A stop that cites ten sources, and its end."""
        return 16

    def opening(self, lines: Sequence[str], instructions: str) -> list[int]:
        """Return ``<bos> lines <act>``."""
        return [self._bos, *self._world(lines), self._act]

    def reply(self, lines: Sequence[str], *, ended: bool) -> list[int]:
        """Return ``lines <act>``, after an ``<end>`` if the action lacked one."""
        return [*([] if ended else [self._end]), *self._world(lines), self._act]

    def decode(self, ids: Sequence[int]) -> str:
        """Return an action's text."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def encode_action(self, text: str) -> list[int]:
        """Return an action's ids with its end token, for cloning scripted walkers."""
        return [*self._encode_line(text), self._end]

    def unknown_in(self, lines: Sequence[str]) -> int:
        """Count ``<unk>`` in world text."""
        return sum(self._encode_line(line).count(self._unk) for line in lines)

    def _world(self, lines: Sequence[str]) -> list[int]:
        return [token for line in lines for token in self._encode_line(line)]


def load_tiny(path: str | Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Load a saved tiny policy.

    Raises:
        FileNotFoundError: If the folder lacks its weights.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no tiny policy (no config.json); run `provgym warm-start` to make one")
    model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder, local_files_only=True)
