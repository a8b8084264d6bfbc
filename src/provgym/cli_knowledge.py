"""``provgym data knowledge``: knowledge graphs made, checked, searched, and extracted from text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from provgym.cli_group import checked, new_group

if TYPE_CHECKING:
    from provgym.envs.evidence_units import KnowledgeGraph
    from provgym.generators.retriever import Encoder

knowledge_app = new_group("Make, check and search knowledge graphs: evidence units with their places in documents.")

EncoderName = Literal["hashed", "minilm"]
Graph = Annotated[Path, typer.Argument(help="Knowledge graph file (.jsonl or .parquet).", show_default=False)]
Out = Annotated[Path, typer.Option(help="File to write; .parquet gives Parquet.", show_default=False)]
Inputs = Annotated[list[Path], typer.Argument(help="Input files, in this order.", show_default=False)]


def add_knowledge(group: typer.Typer) -> None:
    """Add the commands ``knowledge ...`` to a group of commands."""
    group.add_typer(knowledge_app, name="knowledge")


@knowledge_app.command(
    epilog="Example: provgym data knowledge build claims my_claims.jsonl --out my_graph.jsonl | "
    "provgym data knowledge build scifact claims_dev.jsonl corpus.jsonl --out scifact.parquet | "
    "provgym data knowledge build 2wiki dev.json --out wiki.jsonl"
)
def build(
    kind: Annotated[str, typer.Argument(help="claims, scifact (claims, then corpus) or 2wiki.", show_default=False)],
    files: Inputs,
    out: Out,
) -> None:
    """Turn claim files, SciFact's two files or a 2WikiMultihopQA file into one knowledge graph file."""
    from provgym.generators.knowledge_graph_files import write_knowledge_graph

    _check_out(out)
    graph, said = _built(checked(Literal["claims", "scifact", "2wiki"], kind, "kind"), files)
    typer.echo(said)
    write_knowledge_graph(out, graph)
    typer.echo(f"{len(graph.units)} units in {len(graph.documents)} documents in {out}")


@knowledge_app.command(epilog="Example: provgym data knowledge check my_graph.jsonl")
def check(graph: Graph) -> None:
    """Check a knowledge graph file: every bad line is named."""
    from collections import Counter

    from provgym.generators.knowledge_graph_files import read_knowledge_graph

    found, report = read_knowledge_graph(graph, "lenient")
    typer.echo(report.text())
    sources = Counter(unit.source_id for unit in found.units)
    if sources:
        name, most = sources.most_common(1)[0]
        typer.echo(f"{len(sources)} sources; the one with most units is {name!r} with {most}")
    if report.bad_total:
        raise ValueError(
            f"{graph}: {report.bad_total} bad lines; the first: {report.bad_lines[0]}. See docs/knowledge_graphs.md"
        )


@knowledge_app.command(
    epilog='Example: provgym data knowledge retrieve my_graph.jsonl --question "Does tea lower blood pressure?" -k 5'
)
def retrieve(
    graph: Graph,
    question: Annotated[str, typer.Option(help="What is asked.", show_default=False)],
    k: Annotated[int, typer.Option("-k", help="Units to show.")] = 3,
    encoder: Annotated[str, typer.Option(help="hashed (words, no weights) or minilm (extra 'encoder').")] = "hashed",
    index: Annotated[str, typer.Option(help="flat (exact) or hnsw (approximate).")] = "flat",
    cache: Annotated[Path | None, typer.Option(help="Folder for minilm's vectors.")] = None,
) -> None:
    """Show the units that are nearest to a question, with their similarity."""
    from provgym.generators.knowledge_graph_files import read_knowledge_graph
    from provgym.generators.retriever import IndexKind, Retriever

    index_kind: IndexKind = checked(IndexKind, index, "--index")
    chosen = _encoder(checked(EncoderName, encoder, "--encoder"), cache)
    context = Retriever(read_knowledge_graph(graph).graph, chosen, index_kind).retrieve(question, k)
    for unit, similarity in zip(context.units, context.similarities, strict=True):
        typer.echo(f"{similarity:6.3f}  {unit.linearised()}")
    if not context.units:
        typer.echo("the graph holds no unit")


@knowledge_app.command(
    epilog="Example: provgym data knowledge extract report.txt --endpoint-file endpoint.yaml --out report.jsonl"
)
def extract(
    files: Inputs,
    out: Out,
    endpoint_file: Annotated[Path, typer.Option(help="YAML of the endpoint: docs/endpoints.md.", show_default=False)],
    endpoint_dir: Annotated[Path, typer.Option(help="Folder of its cache and ledger.")] = Path("runs/endpoint"),
    passage: Annotated[int, typer.Option(help="Characters the model reads at a time.")] = 2_000,
) -> None:
    """Extract units from text files by a language model; each file is a document and a source.

    Answers are stored: an interrupted extraction goes on where it was, and nothing is paid for twice. If calls fail,
    what was had is written and the exit status is 1.
    """
    from collections import Counter

    from provgym.envs.event_loop import run_to_end
    from provgym.generators.endpoint_client import ChatClient
    from provgym.generators.endpoint_config import read_endpoint_config
    from provgym.generators.knowledge_graph_files import write_knowledge_graph
    from provgym.generators.unit_extractor import Extraction, TextDocument, extract_units

    _check_out(out)
    twice = [name for name, count in Counter(path.name for path in files).items() if count > 1]
    if twice:
        raise ValueError(f"files {twice} have one name, which names the document; rename one of them")
    documents = [TextDocument(path.name, path.read_text(encoding="utf-8-sig"), path.stem) for path in files]
    config = read_endpoint_config(endpoint_file, endpoint_dir, {})

    async def extracted() -> Extraction:
        async with ChatClient(config) as client:
            return await extract_units(documents, client, passage_characters=passage)

    graph, report = run_to_end(extracted())
    typer.echo(report.text())
    write_knowledge_graph(out, graph)
    typer.echo(f"{len(graph.units)} units in {len(graph.documents)} documents in {out}")
    if report.failed:
        raise typer.Exit(1)


def _check_out(out: Path) -> None:
    """Refuse a file that can't be written, before anything is read or asked."""
    from provgym.generators.writable_folder import check_file_writable

    check_file_writable(out, "--out", such_as="graph.jsonl")


def _built(kind: Literal["claims", "scifact", "2wiki"], files: list[Path]) -> tuple[KnowledgeGraph, str]:
    """Return a graph and the account of how it was made."""
    expected = {"claims": None, "scifact": 2, "2wiki": 1}[kind]
    if expected not in (None, len(files)):
        raise ValueError(f"{kind} takes {expected} files, found {len(files)}; see the example in --help")
    if kind == "scifact":
        from provgym.generators.knowledge_graph_scifact import read_scifact_knowledge

        knowledge = read_scifact_knowledge(files[0], files[1])
        return knowledge.graph, knowledge.report.text()
    if kind == "2wiki":
        from provgym.generators.knowledge_graph_2wiki import read_2wiki_knowledge

        wiki = read_2wiki_knowledge(files[0])
        return wiki.graph, wiki.report.text()
    from provgym.generators.claim_files import read_claims
    from provgym.generators.knowledge_graphs import graph_from_instance, join_graphs

    instances, report = read_claims(*files)
    return join_graphs(map(graph_from_instance, instances)), report.text()


def _encoder(name: EncoderName, cache: Path | None) -> Encoder:
    if name == "hashed":
        from provgym.generators.hashed_encoder import HashedEncoder

        return HashedEncoder()
    from provgym.generators.sentence_encoder import SentenceEncoder

    return SentenceEncoder(cache=cache)
