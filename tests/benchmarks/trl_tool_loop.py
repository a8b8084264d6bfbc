"""The other side of the roll-out benchmark: TRL's own ``environment_factory`` tool loop, playing the same episodes.

Nothing of TRL is re-written: a :class:`trl.GRPOTrainer` is built with an environment class whose public methods are
the tools ``walk`` and ``stop``, and its own code path is run from the reset of the environments to the end of the
last generation. What TRL does afterwards (padding, scoring) is cut off by an exception.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.generators.chat_actions import TOOL_INSTRUCTIONS
from provgym.generators.episode import EpisodeTask
from provgym.generators.scripted import start_episode

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from trl import GRPOConfig, GRPOTrainer  # noqa: E402 - the variable above must be set first


class Elapsed(NamedTuple):
    """What a play took.

    Attributes:
        seconds: On the clock.
        cpu_seconds: Of this process.
    """

    seconds: float
    cpu_seconds: float


class Stopwatch:
    """Runs from its construction."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def read(self) -> Elapsed:
        """Return the time since then."""
        return Elapsed(time.perf_counter() - self._began[0], time.process_time() - self._began[1])


class TrlRollout(NamedTuple):
    """What TRL's loop played.

    Attributes:
        prompt_ids: Of each episode.
        completion_ids: Of each episode: sampled ids and the world's, and after a stop whatever TRL generated next.
        mask: 1 for sampled ids, 0 for the world's.
        time: From the reset of the environments to the end of the last generation.
        passes: Forward passes of the model.
        tokens: Tokens in them, padding included.
    """

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    mask: list[list[int]]
    time: Elapsed
    passes: int
    tokens: int


class WalkTools:
    """One episode as TRL wants it: ``reset`` begins it, public methods are tools.

    Args:
        tasks: The episodes that ``reset`` chooses from.
        after_stop: What the model reads after its stop.
    """

    def __init__(self, tasks: Sequence[EpisodeTask], after_stop: str) -> None:
        self._tasks, self._after_stop = tasks, after_stop
        self._env: GraphWalkTextEnv | None = None

    def reset(self, **row: Any) -> str:
        """Begin the episode of a dataset row; return the first observation."""
        self._env = start_episode(self._tasks[row["task"]])
        return "\n".join(self._env.observation_lines)

    def get_reward(self) -> float:
        """Return nothing of interest: TRL refuses to be built without a reward."""
        return 0.0

    def walk(self, node: str) -> str:
        """
        Walk to a neighbouring node of the evidence graph and read its content.

        Args:
            node: Alias of a node listed under Moves, such as n3.

        Returns:
            What is seen there, the walks left and the next moves.
        """
        return self._step("walk", {"node": node})

    def stop(
        self, support_count: int, refute_count: int, verdict: str, confidence: float, cited_sources: list[str]
    ) -> str:
        """
        End the episode with a judgement of the claim.

        Args:
            support_count: Distinct sources that support the claim.
            refute_count: Distinct sources that refute the claim.
            verdict: SUPPORT, REFUTE or MIXED.
            confidence: Between 0 and 1.
            cited_sources: Labels of the sources that were read.

        Returns:
            A note that the episode is over.
        """
        arguments = {
            "support_count": support_count,
            "refute_count": refute_count,
            "verdict": verdict,
            "confidence": confidence,
            "cited_sources": cited_sources,
        }
        return self._step("stop", arguments)

    def _step(self, name: str, arguments: dict[str, Any]) -> str:
        env = self._env
        if env is None or env.walk is None:
            raise RuntimeError("no episode was begun")
        if env.walk.is_over:
            return self._after_stop
        env.step(json.dumps({"name": name, "arguments": arguments}))
        return self._after_stop if env.walk.is_over else "\n".join(env.observation_lines)


class _PlayedError(Exception):
    """Leaves TRL's code path behind the last generation."""


class _GeneratingTrainer(GRPOTrainer):
    """Keeps what TRL's own ``_generate`` returns, and when."""

    def play(self, rows: list[dict[str, Any]]) -> tuple[Any, Elapsed]:
        """Return what TRL's ``_generate`` returned for a batch, and how long it took from the batch's beginning."""
        self._stopwatch = Stopwatch()
        with contextlib.suppress(_PlayedError):
            self._generate_and_score_completions(rows)
        return self._played

    def _generate(self, prompts: list[Any]) -> Any:
        self._played = super()._generate(prompts), self._stopwatch.read()
        raise _PlayedError


class TrlToolLoop:
    """TRL's roll-out of given episodes, greedy.

    Args:
        model: A causal LM.
        tokenizer: With a chat template that TRL knows, so that it can parse tool calls.
        tasks: Episodes to play.
        max_completion_tokens: TRL's budget for everything after the prompt; each turn may decode as many.
        can_end: Whether a stop ends the episode. TRL's environments have no way to say so, and it generates once
            more. With ``True`` a stop answers with more text than the completion budget has room for, at which
            TRL's own loop drops the episode before it generates again: its time without the extra generation.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        tasks: Sequence[EpisodeTask],
        *,
        max_completion_tokens: int,
        can_end: bool,
    ) -> None:
        after_stop = "The episode is over."
        if can_end:
            after_stop = "\n" + "0 " * max_completion_tokens
        budget = max(task.budget for task in tasks)
        self._model = model
        self._rows = [{"prompt": _prompt(), "task": number} for number in range(len(tasks))]
        self._folder = tempfile.TemporaryDirectory(prefix="provgym-bench-")
        self._trainer = _GeneratingTrainer(
            model=model,
            args=_config(self._folder.name, len(tasks), max_completion_tokens, budget),
            train_dataset=Dataset.from_list(self._rows),
            processing_class=tokenizer,
            environment_factory=lambda: WalkTools(tasks, after_stop),
        )
        model.eval()

    def play(self) -> TrlRollout:
        """Play every episode once."""
        counter = _PassCounter(self._model)
        try:
            played, elapsed = self._trainer.play(self._rows)
        finally:
            counter.remove()
        prompt_ids, completion_ids, mask = played[:3]
        return TrlRollout(prompt_ids, completion_ids, mask, elapsed, counter.passes, counter.tokens)


class _PassCounter:
    """Counts forward passes and their tokens."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.passes = self.tokens = 0
        self._handle = model.get_input_embeddings().register_forward_pre_hook(self._count)

    def _count(self, module: Any, arguments: tuple[Any, ...]) -> None:
        self.passes += 1
        self.tokens += int(arguments[0].numel())

    def remove(self) -> None:
        """Stop counting."""
        self._handle.remove()


def _prompt() -> list[dict[str, str]]:
    return [{"role": "system", "content": TOOL_INSTRUCTIONS}, {"role": "user", "content": ""}]


def _config(folder: str, rows: int, max_completion_tokens: int, budget: int) -> GRPOConfig:
    greedy = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None, "min_p": None}
    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=rows,
        num_generations=rows,
        max_completion_length=max_completion_tokens,
        max_tool_calling_iterations=budget + 1,
        generation_kwargs=greedy,
        bf16=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        gradient_checkpointing=False,
        remove_unused_columns=False,
    )
