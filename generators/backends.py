"""One place that turns a description of a policy into the policy: scripted, tiny, language model, or endpoint.

What a policy needs is imported when it is built: a scripted walker plays without torch and transformers.
"""

from __future__ import annotations

from types import MappingProxyType

from provgym.generators.baseline_walkers import breadth_first_walker, random_walker
from provgym.generators.engine import Sampling
from provgym.generators.episode import Policy
from provgym.generators.policy_kinds import EndpointSpec, PolicySpec, ScriptedSpec, shown_name
from provgym.generators.scripted import ScriptedPolicy, echo_avoiding_oracle, naive_path_counter

WALKERS = MappingProxyType(
    {
        "naive": naive_path_counter,
        "oracle": echo_avoiding_oracle,
        "random": random_walker,
        "bfs": breadth_first_walker,
    }
)


def load_policy(spec: PolicySpec) -> Policy:
    """Build the policy that a spec describes.

    Raises:
        FileNotFoundError: If a model or adapter is missing.
        ModuleNotFoundError: If a package that the spec needs is missing.
        ValueError: If the parts don't go together; the message says which.
    """
    if isinstance(spec, ScriptedSpec):
        return ScriptedPolicy(shown_name(spec), WALKERS[spec.walker])
    if isinstance(spec, EndpointSpec):
        from provgym.generators.endpoint import EndpointPolicy

        return EndpointPolicy(shown_name(spec), spec.endpoint, Sampling(spec.temperature))
    from provgym.generators.model_policies import load_model_policy

    return load_model_policy(spec)
