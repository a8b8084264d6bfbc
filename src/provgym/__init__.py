"""ProvGym: train and evaluate evidence-first agents.

Importing the package registers its Gymnasium environments and nothing else: no torch, no TRL, no environment
module (``gymnasium.make`` imports those by name).

Example:
    >>> import gymnasium, provgym
    >>> "provgym/GraphWalk-v0" in gymnasium.registry
    True
"""

from typing import Final

__all__ = ["__version__", "register_envs"]

__version__ = "0.1.0"

_ENTRY_POINTS: Final = {
    "provgym/GraphWalkText-v0": ("provgym.envs.walk_text:GraphWalkTextEnv", "provgym.envs.vector:make_text_vec"),
    "provgym/GraphWalk-v0": ("provgym.envs.walk_discrete:GraphWalkEnv", "provgym.envs.vector:make_array_vec"),
    "provgym/TopologyBuild-v0": (
        "provgym.envs.topology_build:TopologyBuildEnv",
        "provgym.envs.topology_build:make_build_vec",
    ),
}
"""Id to the environment, and to what ``gymnasium.make_vec`` makes unless it is told a mode."""


def register_envs() -> None:
    """Register ProvGym's environments with Gymnasium.

    Runs on ``import provgym``. An id that is registered already is left alone: a second call changes nothing
    and warns of nothing, and what a caller registered before under one of our ids stays.
    """
    # Imported here, not on top: a Gymnasium that loads plug-ins calls this function from inside its own
    # import, and then needs to find it defined.
    from gymnasium.envs.registration import register, registry

    for env_id, (entry_point, vector_entry_point) in _ENTRY_POINTS.items():
        if env_id not in registry:
            register(id=env_id, entry_point=entry_point, vector_entry_point=vector_entry_point)


register_envs()
