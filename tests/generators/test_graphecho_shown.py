"""What an agent is shown of GraphEcho-Syn before it walks tells neither stance nor source assignment."""

from scipy.stats import binomtest

from provgym.envs.presentation import MITIGATIONS, Mitigation, PresentationConfig
from provgym.envs.provenance import NodeKind, Stance
from provgym.envs.walk_text import GraphWalkTextEnv
from provgym.generators.graphecho import GraphEcho
from provgym.generators.seeds import Purpose, derive_seed

DATA = GraphEcho.generate(42, {"test": 200})


def opening(condition: str, number: int, mitigation: Mitigation) -> GraphWalkTextEnv:
    instance = DATA.instance(DATA.claims[number], condition)
    env = GraphWalkTextEnv([instance], presentation=PresentationConfig(mitigation))
    env.reset(seed=derive_seed(1, Purpose.PRESENTATION, number), options={"instance": 0})
    return env


def test_neither_the_first_node_listed_nor_the_first_label_tells_the_stance() -> None:
    first_listed, first_labelled = [], []
    for number in range(200):
        env = opening("C1", number, "M1")
        assert env.walk is not None
        assert env.presentation is not None
        graph = env.walk.instance.graph
        stance_of = {
            name: graph.atoms[graph.node_atom[node]].stance
            for node in map(int, env.walk.neighbours())
            if graph.node_kind[node] == NodeKind.OBSERVATION and (name := env.presentation.alias_of(node))
        }
        lowest = min(stance_of, key=lambda name: int(name[1:]))
        first_listed.append(stance_of[lowest] is Stance.SUPPORT)
        (labelled,) = env.presentation.source_ids(("S1",))
        first_labelled += [a.stance is Stance.SUPPORT for a in graph.atoms if a.source_id == labelled]
    for hits in (first_listed, first_labelled):
        assert len(hits) == 200
        assert binomtest(sum(hits), 200).pvalue > 0.001


def test_openings_hold_the_claim_and_no_evidence() -> None:
    for mitigation in MITIGATIONS:
        for number in range(20):
            env = opening("C3", number, mitigation)
            text = "\n".join(env.observation_lines)
            base = DATA.claims[number]
            assert base.claim.text in text
            assert not any(evidence in text for evidence in base.texts)
            shown = text.replace(base.claim.text, "")
            for secret in (*base.sources, base.claim.claim_id, "SUPPORT", "REFUTE", "C3"):
                assert secret not in shown


def test_without_ids_one_and_five_sources_look_the_same_until_a_source_is_near() -> None:
    """M0 hides provenance: the two sides of the source-count intervention open with the same text."""
    for number in range(20):
        one, five = (opening(name, number, "M0").observation_lines for name in ("1S5P", "5S5P"))
        assert one == five


def test_with_ids_the_two_differ_in_labels_alone() -> None:
    for number in range(20):
        one, five = (opening(name, number, "M1").observation_lines for name in ("1S5P", "5S5P"))
        assert one != five
        assert [line.split(" S")[0] for line in one] == [line.split(" S")[0] for line in five]
