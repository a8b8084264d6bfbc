"""Where the reasoning of a reply ends: what stands in it is neither an action nor an answer."""

from __future__ import annotations

_START, _END = "<think>", "</think>"


def said_after_reasoning(text: str) -> str | None:
    """Return the part of a reply behind its reasoning, which stands between ``<think>`` and ``</think>``.

    The first mark may be missing: chat templates that ask for reasoning write it themselves.

    Returns:
        The end of the text; all of it without reasoning; None if the reply was cut inside it.

    Example:
        >>> said_after_reasoning("<think>B? No.</think> A"), said_after_reasoning("A"), said_after_reasoning("<think>B")
        (' A', 'A', None)
    """
    start, end = text.rfind(_START), text.rfind(_END)
    if start > end:
        return None
    return text[end + len(_END) :] if end >= 0 else text
