"""Runs a search agent over questions: one episode each, many at once, kept as they finish.

    agentir synth rollout --questions questions.jsonl --index runs/index --searcher bm25 \
        --model.name Qwen3-8B --model.base-url http://127.0.0.1:8000/v1 --model.dialect qwen3 --out runs/rollout

The agent is given the tool search (and visit, if asked for) over a conventional retriever, as DR-Synth does it. Writes
trajectories.jsonl, one episode a line in the order of the questions, which `agentir synth extract` and `agentir synth export`
read. Stopped anywhere, it goes on where it was when started again, and asks the model nothing twice; an episode whose model
could not be reached is tried again then.
"""

from __future__ import annotations

import asyncio
import hashlib
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator
from tqdm import tqdm  # type: ignore[import-untyped]

from agentir.agent.episode import Agent, Limits
from agentir.agent.journal import JournalFolder
from agentir.agent.prompts import SYSTEM
from agentir.agent.terminal import AnswerPolicy
from agentir.artifacts import Artifact, read_manifest, sha256_json
from agentir.chat.endpoint import Endpoint
from agentir.chat.settings import ModelSection
from agentir.config import RUNTIME, Field, ProgramConfig
from agentir.corpus.qa import read_questions
from agentir.drsynth.candidates import ListMaker
from agentir.drsynth.episodes import EpisodeStore, remove_working_files
from agentir.drsynth.failure_streak import FailureStreak
from agentir.drsynth.faults import Faults
from agentir.drsynth.gold import resolve_gold
from agentir.drsynth.label_file import LabelFile
from agentir.drsynth.oracle import Oracle
from agentir.drsynth.oracle_options import OracleOptions
from agentir.drsynth.oracle_search import OracleSearch
from agentir.drsynth.rollout import RolloutState, roll_out
from agentir.errors import AgentirError, ConfigError
from agentir.jsonl import Rejects
from agentir.records import QAItem, Usage
from agentir.search.index import Index
from agentir.search.retriever import Retriever, SearcherKind
from agentir.tools.search import SNIPPET_WORDS, VISIT_CHARS, ResultForm, SearchTools
from agentir.tools.tool import Tool
from agentir.tools.toolset import Toolset

if TYPE_CHECKING:
    from agentir.search.remote import RemoteRetriever

LABELS, OPEN_LABELS = "labels.jsonl", "open-labels"
NUM_NAMED = 5


class Config(ProgramConfig):
    """Who answers which questions, with what."""

    questions: Path
    """The questions: JSON lines (also .gz), or a JSON array, as MuSiQue, HotpotQA, 2WikiMultihopQA and WebShaper have them."""
    splits: tuple[str, ...] = Field((), json_schema_extra=RUNTIME)
    """Only questions with one of these values in `split`; default: all."""
    max_questions: int | None = Field(None, json_schema_extra=RUNTIME, ge=1)
    """Only so many questions, the first ones; default: all. An unfinished folder goes on with more or fewer of them."""
    index: Path | None = None
    """The index folder that the agent searches; or give server."""
    server: str | None = Field(None, json_schema_extra=RUNTIME)
    """The address of an `agentir index serve` that the agent searches, such as http://127.0.0.1:8321."""
    searcher: SearcherKind = "bm25"
    """What searches the index: bm25, dense, or auto (dense where the index holds vectors)."""
    encoder: str | None = None
    """The query encoder of a dense search; default: the one that built the index."""
    k: int = Field(5, ge=1, le=100)
    """Results a search (AgentIR and BrowseComp-Plus: 5)."""
    snippet_words: int = Field(SNIPPET_WORDS, ge=1, le=100_000)
    """How much of each document a result shows; the default is about their 512 tokens."""
    results: ResultForm = "text"
    """How results are shown: text (numbered, with titles) or json (a list of docid, title, score, snippet)."""
    pass_reasoning: bool = False
    """Search with the agent's reasoning beside its query, where the encoder reads it; DR-Synth's rollouts do not."""
    tools: Literal["search", "search+visit"] = "search"
    """What the agent may call: search only, or also visit, which shows a whole document."""
    visit_chars: int = Field(VISIT_CHARS, ge=100)
    """How much of a document a visit shows."""
    several_queries: bool = False
    """Let one search take a list of queries; their reasoning is then shared."""
    max_calls: int = Field(1, ge=1, le=64)
    """Calls a turn that are run; further ones get an error. DR-Synth forbids parallel calls, so that each query has a
    reasoning of its own."""
    system: Path | None = None
    """A file with the system prompt; default: one that asks for thinking, single searches and a short answer."""
    task: str = "{question}"
    """The user's message, with {question} in it."""
    answer_form: str = ""
    """How the final answer is to be given, for the messages that demand it."""
    max_turns: int = Field(100, ge=1)
    """Generations after which the answer is demanded (AgentIR: 100)."""
    max_context_tokens: int = Field(108 * 1024, ge=256)
    """Tokens of the conversation at which the answer is demanded (AgentIR's Tongyi: 110,592)."""
    max_minutes: float | None = Field(None, gt=0)
    """Minutes after which the answer is demanded (AgentIR: 150); default: none."""
    oracle: ModelSection = Field(default_factory=lambda: ModelSection.model_validate({}))
    """Let this model, which is told the answers, rank what each search finds before the agent sees it, as AgentIR's
    evaluation code can; its rankings are kept, and `agentir synth label --labelled` takes them. It has a budget of its own.
    Default: none."""
    lists: OracleOptions = OracleOptions()
    """The lists that the oracle ranks, and how it is asked about them, under the names that `agentir synth label` has."""
    episodes_at_once: int = Field(256, json_schema_extra=RUNTIME, ge=1)
    """Most episodes under way; `model.concurrency` bounds the requests."""
    on_failure: Literal["retry", "leave_out"] = Field("retry", json_schema_extra=RUNTIME)
    """What becomes of episodes that failed at last: the next start tries them again, or they are left out and
    listed. Where many in a row fail because a server refuses them or is away, the run stops in either case; a next start
    that leaves out does not count those that had failed before."""
    model: ModelSection
    """The agent's language model."""

    @field_validator("task")
    @classmethod
    def _holds_the_question(cls, task: str) -> str:
        if "{question}" not in task:
            raise ValueError("expected {question} in it, which the question takes the place of")
        return task


def main(config: Config) -> None:
    """Reads the questions, runs the episodes, and writes them in order."""
    check(config)
    rejects = Rejects(set_aside=config.on_bad_line == "set_aside")
    questions = read_questions(config.questions, rejects)
    rejects.check()
    items = chosen(config, questions)
    if config.oracle.name and (unknown := [item.qid for item in items if not item.answers]):
        raise ConfigError(
            f"oracle: expected an answer to every question, found none for {', '.join(unknown[:NUM_NAMED])}"
        )
    check_reachable(config)
    inputs = {"questions": config.questions} | {
        name: path for name, path in (("index", config.index), ("system", config.system)) if path is not None
    }
    with Artifact(config.out, "trajectories", config, inputs, facts_of(config)) as artifact:
        if artifact.complete:
            check_same_questions(config, items)
            print(f"{config.out}: complete already")
            remove_working_files(config.out)
            return
        faults = Faults(config.out)
        with EpisodeStore(config.out) as store:
            num_before = len(store.finished)
            if store.num_damaged:
                print(f"{store.num_damaged} damaged lines in {config.out}: their questions are asked again", flush=True)
            state, usage, labels = asyncio.run(run(config, artifact, items, store, faults))
            tell(config, items, store, state, usage, num_before)
            if state.stopped:
                raise AgentirError(f"{state.stopped} and run the same command again to continue")
            if state.failed and (config.on_failure == "retry" or not store.finished):
                raise AgentirError(
                    f"{len(state.failed)} of {len(items)} episodes failed; run the same command again to try them again"
                    + (", or with --on-failure leave_out to finish without them" if store.finished else "")
                )
            artifact.write_lines("trajectories.jsonl", store.in_order([item.qid for item in items]))
            report = report_of(items, store, state, faults)
            if labels is not None:
                report["oracle"] = {
                    "rankings": len(labels),
                    "usage": asdict(labels.usage),
                    "usage_of_failed": asdict(labels.journals.usage()),
                }
            artifact.finish(report, rejects)
        JournalFolder(config.out / OPEN_LABELS).clear()
        remove_working_files(config.out)
    print(f"trajectories: {config.out / 'trajectories.jsonl'}; next: agentir synth extract --trajectories {config.out}")


def check(config: Config) -> None:
    """Refuses settings that contradict each other, and names those that have no effect."""
    if (config.index is None) == (config.server is None):
        raise ConfigError("index, server: expected one of the two, an index folder or the address of a server")
    if config.oracle.name and (config.index is None or config.several_queries or config.pass_reasoning):
        raise ConfigError("oracle: expected index, and neither several_queries nor pass_reasoning beside it")
    ignored = [name for name in ("searcher", "encoder", "snippet_words") if name in config.model_fields_set]
    if config.server is not None and ignored:
        warnings.warn(f"the server decides how it searches, so {', '.join(ignored)} has no effect", stacklevel=2)
    if "lists" in config.model_fields_set and not config.oracle.name:
        warnings.warn("no oracle is named, so lists has no effect", stacklevel=2)


def check_reachable(config: Config) -> None:
    """Opens once what the run will open, so that a wrong name is told before the folder is bound to it."""
    Endpoint(config.model)
    if config.oracle.name:
        Endpoint(oracle_of(config))
    if config.index is not None:
        with Index.open(config.index) as index:
            if config.searcher == "dense" and not index.has_vectors:
                raise ConfigError(f"searcher: dense needs an index with vectors, found {config.index} without")
            if config.searcher == "bm25":
                index.bm25()


def oracle_of(config: Config) -> ModelSection:
    """The oracle's model: on the agent's server, unless it has an address of its own."""
    return config.oracle.model_copy(update={"base_url": config.oracle.base_url or config.model.base_url})


def facts_of(config: Config) -> dict[str, Any]:
    """What decides about the episodes and is no option: the prompts, and the index of a server."""
    facts: dict[str, Any] = {"system_sha256": hashlib.sha256(system_prompt(config).encode()).hexdigest()}
    if config.oracle.name:
        facts["oracle_prompt_sha256"] = config.lists.prompt_sha256
    if config.server is not None:
        from agentir.search.remote import RemoteRetriever

        with RemoteRetriever(config.server) as remote:
            facts["index_version"] = remote.search("a", k=1).index_version
    return facts


def system_prompt(config: Config) -> str:
    """The agent's system prompt."""
    if config.system is None:
        return SYSTEM
    try:
        return config.system.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"system: expected {config.system} in UTF-8: {error}") from None


def check_same_questions(config: Config, items: Sequence[QAItem]) -> None:
    """Refuses to take a finished folder for an answer to other questions."""
    report = read_manifest(config.out)["report"]
    if report["qids_sha256"] != sha256_json([item.qid for item in items]):
        raise AgentirError(
            f"{config.out}: complete with {report['questions']} questions, which are not the {len(items)} that splits and "
            "max_questions choose now; name a new out folder for these"
        )


def chosen(config: Config, items: Sequence[QAItem]) -> list[QAItem]:
    """The questions that are asked."""
    kept = [item for item in items if not config.splits or item.split in config.splits][: config.max_questions]
    if not kept:
        raise ConfigError(
            f"{config.questions}: expected questions{' of these splits' if config.splits else ''}, found none"
        )
    return kept


async def run(
    config: Config, artifact: Artifact, items: Sequence[QAItem], store: EpisodeStore, faults: Faults
) -> tuple[RolloutState, Usage, LabelFile | None]:
    """Runs the episodes under a progress bar."""
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(Endpoint(config.model, spent=store.spent))
        agent, labels = await make_agent(config, artifact, model, items, stack)
        state, leaves_out = RolloutState(), config.on_failure == "leave_out"
        with tqdm(desc="episodes", unit="episode", initial=len(store.finished), total=len(items)) as bar:

            async def show() -> None:
                while True:
                    failed = "".join(f", {count} failed ({cause})" for cause, count in state.failed_by_cause.items())
                    status = f"{state.num_running} running{failed}, {model.usage.num_calls} calls, {model.status()}"
                    bar.set_postfix_str(status, refresh=False)
                    bar.update(len(store.finished) - bar.n)
                    bar.refresh()
                    await asyncio.sleep(1)

            shown = asyncio.create_task(show())
            try:
                await roll_out(
                    agent,
                    items,
                    store,
                    num_at_once=config.episodes_at_once,
                    # Where others worked, those to be left out may be all that is left.
                    streak=FailureStreak(
                        "episodes", passed_over=faults.failed if leaves_out and store.finished else ()
                    ),
                    state=state,
                )
            finally:
                shown.cancel()
                bar.update(len(store.finished) - bar.n)
                faults.add({qid: error.partition(":")[0] for qid, error in state.failed.items()}, model.retries)
        if labels is not None and not state.stopped:
            labels.complete()
        return state, model.usage, labels


async def make_agent(
    config: Config, artifact: Artifact, model: Endpoint, items: Sequence[QAItem], stack: AsyncExitStack
) -> tuple[Agent, LabelFile | None]:
    """The agent that the configuration describes, and the labels of its oracle; what it uses is closed with the stack."""
    retriever = open_retriever(config, stack)
    tools = SearchTools(
        retriever,
        k=config.k,
        form=config.results,
        pass_reasoning=config.pass_reasoning,
        visit_chars=config.visit_chars,
    )
    labels = None
    if config.oracle.name:
        assert isinstance(retriever, Retriever)
        journals = JournalFolder(config.out / OPEN_LABELS)
        labels = stack.enter_context(LabelFile(artifact.include(LABELS), journals, config.lists.shown))
        search = await oracle_search(config, labels, retriever, items, stack)
    else:
        search = tools.search_several if config.several_queries else tools.search
    agent = Agent(
        name=model.name,
        model=model,
        toolset=Toolset(
            [search, tools.visit] if config.tools == "search+visit" else [search], max_calls=config.max_calls
        ),
        system=system_prompt(config),
        task=config.task,
        terminal=AnswerPolicy(answer_form=config.answer_form),
        limits=Limits(
            max_turns=config.max_turns,
            max_context_tokens=config.max_context_tokens,
            max_seconds=None if config.max_minutes is None else config.max_minutes * 60,
        ),
    )
    return agent, labels


def open_retriever(config: Config, stack: AsyncExitStack) -> Retriever | RemoteRetriever:
    """What the agent searches."""
    if config.server is not None:
        from agentir.search.remote import RemoteRetriever

        remote = RemoteRetriever(config.server)
        stack.push_async_callback(remote.aclose)
        return remote
    assert config.index is not None
    retriever = Retriever.open(
        config.index, config.encoder, searcher=config.searcher, snippet_words=config.snippet_words
    )
    stack.callback(retriever.close)
    return retriever


async def oracle_search(
    config: Config, labels: LabelFile, retriever: Retriever, items: Sequence[QAItem], stack: AsyncExitStack
) -> Tool:
    """The search tool whose results the oracle ranks."""
    assert config.index is not None
    with_gold, _ = resolve_gold(items, config.index, Rejects())
    model = await stack.enter_async_context(Endpoint(oracle_of(config), spent=labels.spent))
    return OracleSearch(
        retriever,
        ListMaker(retriever.index.pack, retriever.searcher, config.lists),
        Oracle(model, config.lists.settings),
        {item.qid: item for item in with_gold},
        labels,
        k=config.k,
        form=config.results,
    ).tool


def report_of(items: Sequence[QAItem], store: EpisodeStore, state: RolloutState, faults: Faults) -> dict[str, Any]:
    """What the manifest says of the rollout; its usage is that of the episodes in the file."""
    qids = {item.qid for item in items}
    done = [line for line in store.finished.values() if line.qid in qids]
    return {
        "questions": len(items),
        "qids_sha256": sha256_json([item.qid for item in items]),
        "episodes": len(done),
        "by_status": dict(Counter(line.status for line in done)),
        "failed": dict(sorted(state.failed.items())),
        "failed_by_cause": dict(state.failed_by_cause),
        "usage": asdict(sum((line.usage for line in done), Usage())),
        "usage_of_failed": asdict(store.usage_besides(qids)),
        "retries": dict(faults.retries),
    }


def tell(
    config: Config, items: Sequence[QAItem], store: EpisodeStore, state: RolloutState, usage: Usage, num_before: int
) -> None:
    """Prints what was done and left out."""
    by_status = Counter(line.status for line in store.finished.values())
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(by_status.items()))
    print(
        f"{len(store.finished)} of {len(items)} episodes ({num_before} from before): {statuses or 'none'} -> {config.out}"
    )
    cost = f", cost {usage.cost:.4f}" if usage.cost else ""
    print(
        f"  this start: {usage.num_calls} calls, {usage.num_attempts} requests, {usage.prompt_tokens} tokens read, "
        f"{usage.completion_tokens} written{cost}"
    )
    print(f"  failed={len(state.failed)}")
    for line in state.failures(NUM_NAMED):
        print(f"    {line}")
