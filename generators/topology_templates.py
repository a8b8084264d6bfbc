"""Hand-made topologies: candidates to learn from, and baselines to beat.

Example:
    >>> from provgym.envs.roles import DEFAULT_ROLES
    >>> found = templates(TopologyRules(DEFAULT_ROLES.names, max_nodes=4))
    >>> for name, topology in found.items():
    ...     print(name, topology.key)
    single Answerer:
    chain Planner+Reasoner+Answerer:0>1,1>2
    star Reasoner+Reasoner+Reasoner+Answerer:0>3,1>3,2>3
    tree Reasoner+Reasoner+Reasoner+Answerer:0>2,1>3,2>3
    with_verifier Reasoner+Verifier+Answerer:0>1,1>2
    debate Reasoner+Reasoner+Reasoner+Answerer:0>1,0>2,0>3,1>2,1>3,2>3
"""

from __future__ import annotations

from itertools import combinations

from provgym.envs.roles import ANSWERER, DEFAULT_ROLES, RoleKind, RoleLibrary
from provgym.envs.topology import Topology
from provgym.envs.topology_rules import TopologyRules

TEMPLATE_NAMES = ("single", "chain", "star", "tree", "with_verifier", "debate")
"""Every template there is; which of them there are under given rules, :func:`templates` says."""


def templates(rules: TopologyRules, roles: RoleLibrary = DEFAULT_ROLES) -> dict[str, Topology]:
    """Return the templates that the roles and the number of nodes allow, by name.

    * ``single``: the Answerer alone.
    * ``chain``: a planner, a reasoner, the Answerer; without planner or room for it, reasoner and Answerer.
    * ``star``: as many reasoners as the Answerer may hear, at least two.
    * ``tree``: reasoners as a binary tree that leads to the Answerer, filled level by level, of 4 to 7 nodes.
    * ``with_verifier``: a reasoner, a verifier that checks it, the Answerer.
    * ``debate``: reasoners that each hear all earlier ones, and the Answerer that hears all: the complete graph of
      N_max nodes, at least three. It alone may exceed the limit on in-degree, as baselines may; whoever needs
      topologies within the rules asks ``rules.is_valid``.

    Args:
        rules: N_max, d_max and the names of the roles that may be used.
        roles: Says of what kind each of those names is; of several of one kind the first in ``rules`` is taken.

    Raises:
        ValueError: If a name of the rules is not in the library.
    """
    of_kind: dict[RoleKind, str] = {}
    for name in rules.role_names:
        of_kind.setdefault(roles[name].kind, name)
    planner, reasoner = of_kind.get(RoleKind.PLAN), of_kind.get(RoleKind.REASON)
    verifier = of_kind.get(RoleKind.VERIFY)
    room = rules.max_nodes
    found = {"single": Topology((ANSWERER,), ())}
    if reasoner is None:
        return found
    if room >= 2:
        found["chain"] = _chain(reasoner) if planner is None or room < 3 else _chain(planner, reasoner)
    workers = int(min(rules.in_degree_limit, room - 1))
    if workers >= 2:
        found["star"] = _star(reasoner, workers)
        if room >= 4:
            found["tree"] = _tree(reasoner, min(room, 7))
    if verifier is not None and room >= 3:
        found["with_verifier"] = _chain(reasoner, verifier)
    if room >= 3:
        found["debate"] = _debate(reasoner, room)
    return found


def _chain(*before: str) -> Topology:
    return Topology((*before, ANSWERER), tuple((node, node + 1) for node in range(len(before))))


def _star(worker: str, workers: int) -> Topology:
    return Topology((worker,) * workers + (ANSWERER,), tuple((node, workers) for node in range(workers)))


def _tree(worker: str, num_nodes: int) -> Topology:
    """Return a binary tree in heap order, read backwards so that senders come first and the root is the Answerer."""
    last = num_nodes - 1
    edges = tuple((last - place, last - (place - 1) // 2) for place in range(1, num_nodes))
    return Topology((worker,) * last + (ANSWERER,), edges)


def _debate(debater: str, num_nodes: int) -> Topology:
    return Topology((debater,) * (num_nodes - 1) + (ANSWERER,), tuple(combinations(range(num_nodes), 2)))
