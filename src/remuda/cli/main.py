"""The command line."""

from __future__ import annotations

import errno
import pdb
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column, Table
from rich.text import Text

import remuda
from remuda.core.errors import ConfigError, RemudaError, RunError, StorageError, UnknownName, UsageError
from remuda.core.failures import format_traceback
from remuda.core.machine import cores
from remuda.core.options import Options
from remuda.core.plan import ParallelSwitches, Plan
from remuda.core.yamlfile import read_assignments, read_yaml
from remuda.engines.table import AUTO, AUTO_RULE, ENGINES
from remuda.games.cage2.verify import verify as replay_traces
from remuda.games.registry import SHIPPED, find_game
from remuda.learners.registry import LEARNERS, PLAYERS
from remuda.runs.evaluation import EvaluationSetup
from remuda.runs.evaluation import evaluate as score
from remuda.runs.export import export as export_agent
from remuda.runs.film import make_film, play, trained_bindings
from remuda.runs.recording import record as record_episodes
from remuda.runs.replay import replay as replay_schedule
from remuda.runs.replay import replay_failure
from remuda.runs.run import Run, to_json
from remuda.runs.settings import PRESETS
from remuda.runs.training import start
from remuda.studies.compare import page
from remuda.studies.compare.compare import compare as compare_engines
from remuda.studies.workflows.options import SearchOptions, WorkflowTrial
from remuda.studies.workflows.ranking import Search
from remuda.studies.workflows.search import SearchListener, resume_search
from remuda.studies.workflows.search import search as search_workflows
from remuda.studies.workflows.state import is_search

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Train herds of independent agents: each its own network, memory and optimiser.",
)
ANY_FLAG = {"ignore_unknown_options": True, "allow_interspersed_args": True}
Words = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="any other setting, also as --key value")
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object at the end")]


@app.command(context_settings=ANY_FLAG)
def train(
    game: Annotated[str | None, typer.Argument(help="a shipped game (see `remuda games`) or module:entry")] = None,
    words: Words = None,
    agents: Annotated[int | None, typer.Option(help="agents in the game")] = None,
    worlds: Annotated[int | None, typer.Option(help="copies of the game played side by side")] = None,
    epochs: Annotated[int | None, typer.Option(help="episodes per world; or say --total-episodes")] = None,
    total_episodes: Annotated[int | None, typer.Option(help="episodes over all worlds")] = None,
    seed: Annotated[int | None, typer.Option(help="decides every random number")] = None,
    learner: Annotated[str | None, typer.Option(help="see `remuda learners`")] = None,
    engine: Annotated[str | None, typer.Option(help="see `remuda engines`")] = None,
    n_workers: Annotated[int | None, typer.Option(help="threads or processes; default: the cores")] = None,
    deterministic: Annotated[
        bool | None, typer.Option("--deterministic", help="the same weights on every engine")
    ] = None,
    timeline: Annotated[
        bool | None, typer.Option("--timeline", help="write what every process and thread did when, for Perfetto")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="the run directory; must not exist")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings; flags and words override it")] = None,
    as_json: Json = False,
) -> None:
    """Train a herd.

    `remuda train treasurehunt --agents 4 --worlds 32 lr=0.001 spawn=0.01`

    Ends with a run directory: config, metrics, checkpoints, learning curve and film. Ctrl-C saves;
    `remuda resume` goes on.
    """
    flags = {
        "game": game, "agents": agents, "worlds": worlds, "epochs": epochs, "total_episodes": total_episodes,
        "seed": seed, "out": out, "learner": learner, "engine": engine, "n_workers": n_workers,
        "deterministic": deterministic, "timeline": timeline,
    }  # fmt: skip
    if game and "=" in game:  # a setting, not a game: the file or another word names that
        flags["game"], words = None, [game, *(words or [])]
    settings = {**(read_yaml(config) if config else {}), **_given(flags), **_words(words)}
    _conclude(start(settings, settings.pop("out", None)), as_json)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    checkpoint: Annotated[str | None, typer.Option(help="which one; default: the newest")] = None,
    engine: Annotated[str | None, typer.Option(help="go on with another engine")] = None,
    n_workers: Annotated[int | None, typer.Option(help="go on with more or fewer threads", min=1)] = None,
    as_json: Json = False,
) -> None:
    """Go on with a run or a search as if it had never stopped."""
    if is_search(run):
        if checkpoint or engine or n_workers:
            raise ConfigError(f"{run} is a search: it goes on as it began, without --checkpoint, --engine, --n-workers")
        with _audience() as listener:
            found = resume_search(run, listener)
        _conclude_search(found, as_json)
        return
    finished = remuda.resume(run, checkpoint_name=checkpoint, engine=engine, n_workers=n_workers)
    _conclude(finished, as_json)


@app.command(context_settings=ANY_FLAG)
def evaluate(
    target: Annotated[str, typer.Argument(help="a run directory, or a game for players named by learners=…")],
    words: Words = None,
    episodes: Annotated[int, typer.Option(help="how many", min=1)] = 100,
    epsilon: Annotated[float, typer.Option(help="share of random actions; 0 is greedy", min=0.0, max=1.0)] = 0.0,
    sampled: Annotated[bool, typer.Option("--sampled", help="choose as in training instead of greedily")] = False,
    checkpoint: Annotated[str | None, typer.Option(help="which one, or `best`; default: the newest")] = None,
    as_json: Json = False,
) -> None:
    """Score a trained herd, or agents of different runs in one world.

    `remuda evaluate runs/a --episodes 500`

    `remuda evaluate runs/a simulator=cyborg`: other options of the run's game, the same agents

    `remuda evaluate treasurehunt 'learners={0: frozen:runs/a/0, 1: frozen:runs/b/1}'`
    """
    if sampled and epsilon:
        raise ConfigError(f"--sampled and --epsilon {epsilon:g} contradict each other: give one of them")
    setup = EvaluationSetup.of(target, _words(words), checkpoint)
    summary = score(setup.plan, setup.spec, setup.bindings, episodes, None if sampled else epsilon).summary()
    if as_json:
        print(to_json(summary))
        return
    table = Table("agent", "return", "95 %", *summary["metrics"])
    widths = summary["metrics_ci95"]
    for agent, (mean, width) in enumerate(zip(summary["mean_return"], summary["mean_return_ci95"], strict=True)):
        own = [f"{m[agent]:.2f} {_pm(widths[name][agent])}" for name, m in summary["metrics"].items()]
        table.add_row(str(agent), f"{mean:.2f}", _pm(width), *own)
    Console().print(table)
    print(f"total return {summary['total_return']:.2f} {_pm(summary['total_return_ci95'])} over {episodes} episodes")


@app.command(context_settings=ANY_FLAG)
def search(
    game: Annotated[str, typer.Argument(help="a game with workflows: cage2")],
    words: Words = None,
    method: Annotated[str | None, typer.Option(help="gp-ucb, random, halving or conditioned")] = None,
    total_episodes: Annotated[int | None, typer.Option(help="episodes of training, over all trials")] = None,
    compliance_threshold: Annotated[float | None, typer.Option(help="below it a trial reports no return")] = None,
    side_by_side: Annotated[int | None, typer.Option(help="trials at once, each in a process of its own")] = None,
    seed: Annotated[int | None, typer.Option(help="decides every random number")] = None,
    out: Annotated[Path, typer.Option(help="the directory to write; must not exist")] = Path("search"),
    as_json: Json = False,
) -> None:
    """Find the order of repair under which a trained defender does best.

    `remuda search cage2 --total-episodes 100000 --compliance-threshold 0.9 --seed 1 --out DIR`

    Ends with a ranking, the trained policies, tables and a page with pictures. Killed at any moment, `remuda resume
    DIR` goes on. More options: `remuda settings`; any other word is a setting of the trials.
    """
    flags = {
        "method": method, "total_episodes": total_episodes, "compliance_threshold": compliance_threshold,
        "side_by_side": side_by_side, "seed": seed,
    }  # fmt: skip
    settings = {**_given(flags), **_words(words)}
    with _audience() as listener:
        found = search_workflows(game, settings, out, listener)
    _conclude_search(found, as_json)


@app.command(context_settings=ANY_FLAG)
def compare(
    game: Annotated[str, typer.Argument(help="a shipped game or module:entry of your own")],
    words: Words = None,
    engines: Annotated[str, typer.Option(help="all, or names with commas between")] = "all",
    n_workers: Annotated[str, typer.Option(help="numbers of workers, with commas between")] = str(cores()),
    seconds: Annotated[float, typer.Option(help="how long to measure each time", min=0.1)] = 20.0,
    repeats: Annotated[int, typer.Option(help="how often, taking turns", min=1)] = 3,
    ideal: Annotated[bool, typer.Option("--ideal", help="show what a machine that never waits would do")] = False,
    on_cores: Annotated[str | None, typer.Option("--cores", help="predict machines, e.g. 8,32,128")] = None,
    html: Annotated[Path, typer.Option(help="the page to write")] = Path("compare.html"),
    json_file: Annotated[Path | None, typer.Option("--json", help="a file for all figures")] = None,
) -> None:
    """Try one plan on several engines: which should I use here?

    `remuda compare cage2 --engines all --n-workers 2,10,100 --seconds 20 --json out.json`
    """
    console = Console(stderr=True)
    counts, machines = _numbers("n_workers", n_workers), _numbers("cores", on_cores) if on_cores else []
    for path in filter(None, (html, json_file)):
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no directory {path.absolute().parent}")
    with console.status("measuring") as status:
        shown = compare_engines(
            {"game": game, **_words(words)}, engines, counts, seconds, repeats, ideal, machines,
            " ".join(["remuda", *sys.argv[1:]]), lambda text: status.update(f"measuring {text}"),
        )  # fmt: skip
    for table in page.tables(shown):
        Console().print(table)
    if shown.ideal is not None:
        print(f"ideal machine: {shown.ideal:,.1f} episodes/s")
    html.write_text(page.html(shown), encoding="utf-8")
    if json_file is not None:
        json_file.write_text(to_json(page.as_json(shown), indent=1), encoding="utf-8")
    print(f"look at {html}")
    if not shown.recommendations:
        raise ConfigError("no engine could run this plan; the table says why")


def _numbers(name: str, text: str) -> list[int]:
    """2,10,100 as numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= 4096 for part in parts):
        raise ConfigError(f"{name}={text} should be whole numbers from 1 to 4096 with commas between, e.g. 2,10,100")
    return [int(part) for part in parts]


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    gif: Annotated[Path | None, typer.Option(help="where to write the film; default: watch.gif in the run")] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="play in this terminal instead")] = False,
    episode: Annotated[int, typer.Option(help="which evaluation episode", min=0)] = 0,
    checkpoint: Annotated[str | None, typer.Option(help="which one, or `best`; default: the newest")] = None,
    delay: Annotated[float, typer.Option(help="seconds between turns in the terminal", min=0.0)] = 0.1,
) -> None:
    """Watch a trained herd play, as a GIF or in the terminal."""
    opened = Run(run)
    games = play(opened, trained_bindings(opened, checkpoint), episode)
    if not terminal:
        target = gif or opened.path / "watch.gif"
        make_film(target, games)
        print(target)
        return
    with Live(console=Console(), auto_refresh=False) as live:
        for turn, game in enumerate(games):
            live.update(Text(f"{game.text(0)}\nturn {turn + 1}"), refresh=True)
            time.sleep(delay)


@app.command(context_settings=ANY_FLAG)
def record(
    target: Annotated[str, typer.Argument(help="a run directory, or a game; learners=… say who plays it")],
    words: Words = None,
    out: Annotated[Path, typer.Option(help="the file to write (.npz); must not exist")] = Path("episodes.npz"),
    episodes: Annotated[int, typer.Option(help="how many", min=1)] = 10,
    epsilon: Annotated[float, typer.Option(help="share of random actions; 0 is greedy", min=0.0, max=1.0)] = 0.0,
    checkpoint: Annotated[str | None, typer.Option(help="which one, or `best`; default: the newest")] = None,
) -> None:
    """Write down episodes, turn by turn, for any program that reads numpy's files (docs/recording.md).

    `remuda record runs/a --episodes 100 --out episodes.npz`

    A game is played by random players unless `learners=…` says otherwise.
    """
    recorded = record_episodes(target, out, episodes, _words(words), epsilon, checkpoint)
    print(f"{out}: {len(recorded.turns)} episodes, {int(recorded.turns.sum())} turns")


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    agent: Annotated[int, typer.Option(help="which agent, by its number in the herd", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="the directory to write; must not exist")] = Path("agent"),
    checkpoint: Annotated[str | None, typer.Option(help="which one, or `best`; default: the newest")] = None,
) -> None:
    """Take a trained agent out: weights, a readable torch module and ONNX, all usable without remuda.

    `remuda export runs/a --agent 0 --out agent`
    """
    for path in export_agent(Run(run), agent, out, checkpoint):
        print(path)


@app.command(context_settings=ANY_FLAG)
def check(
    game: Annotated[str, typer.Argument(help="a shipped game or module:entry of your own")],
    words: Words = None,
) -> None:
    """Run the conformance suite on a game; says what each finding means for training."""
    findings = remuda.check(game, **_words(words))
    for finding in findings:
        print(f"{'ok  ' if finding.good else 'FAIL'} {finding.promise}")
        if not finding.good:
            print(f"     {finding.problem}\n     for training this means: {finding.meaning}")
    if not all(finding.good for finding in findings):
        raise typer.Exit(1)


@app.command()
def verify(
    game: Annotated[str, typer.Argument(help="a game with recorded truth: cage2")],
    folder: Annotated[Path, typer.Argument(help="where the traces (.npz) are, at any depth")],
) -> None:
    """Replay recorded games of the original through our rules; exit code 1 if anything differs."""
    if game != "cage2":
        raise UnknownName("game with recorded truth", game, ["cage2"])
    report = replay_traces(folder)
    print(report)
    if not report.good:
        raise typer.Exit(1)


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    failure: Annotated[int | None, typer.Option(help="the number of an episode that failed", min=1)] = None,
    debug: Annotated[bool, typer.Option("--debug", help="open the debugger where the failure is raised")] = False,
) -> None:
    """Play a run or one of its failures once more, in one process.

    A finished actor-learner run with log_schedule=true is played and learned again; exit code 1 if other
    weights come out.

    `--failure K` plays the episodes of failure K with the same chance and the same actions; exit code 1 if
    nothing is raised this time.
    """
    if failure is not None:
        _replay_failure(run, failure, debug)
        return
    opened = Run(run)
    if not opened.finished:
        raise RunError(f"{run} is not finished: `remuda resume {run}` first")
    again, then = replay_schedule(run), opened.result["weights_sha256"]
    print(f"the run ended with weights {then}\nthe replay ended with  {again}")
    if again != then:
        raise typer.Exit(1)


@app.command()
def games(name: Annotated[str | None, typer.Argument(help="show this game's options")] = None) -> None:
    """List the games, or one game's options."""
    if name:
        entry = find_game(name)
        print(f"{entry.name}: {entry.summary}")
        _options_table(entry.options)
        return
    table = Table("game", "what it is")
    for shipped in SHIPPED:
        table.add_row(shipped, find_game(shipped).summary)
    Console().print(table)


@app.command()
def engines() -> None:
    """List the engines: where collecting and learning happen, and who waits for whom."""
    table = Table("engine", "collects", "learns", "waits for", "deterministic")
    for row in ENGINES.values():
        table.add_row(row.name, row.collectors, row.trainers, row.waits_for, "yes" if row.deterministic else "no")
    Console().print(table)
    print(f"{AUTO}: {AUTO_RULE}")


@app.command()
def learners(name: Annotated[str | None, typer.Argument(help="show this learner's options")] = None) -> None:
    """List the learners and players, or one learner's options."""
    if name:
        if name not in LEARNERS:
            raise UnknownName("learner", name, LEARNERS)
        _options_table(LEARNERS[name].options_type())
        return
    table = Table("name", "what it is")
    for key, learner in LEARNERS.items():
        table.add_row(key, (learner.__doc__ or "").splitlines()[0])
    for key, player in PLAYERS.items():
        table.add_row(key, (player.__doc__ or "").splitlines()[0])
    for game in SHIPPED:
        for key, scripted in find_game(game).players.items():
            table.add_row(key, f"{(getattr(scripted, '__doc__', None) or '').splitlines()[0]} ({game} only)")
    table.add_row("frozen:RUN/agent", "A trained agent of another run; it does not learn.")
    Console().print(table)


@app.command()
def settings() -> None:
    """List the settings of a plan, and the presets; games and learners have more."""
    _options_table(Plan)
    print("of a search (`remuda search`)")
    _options_table(SearchOptions)
    print("parallel={…}: the familiar switches, mapped onto engines")
    _options_table(ParallelSwitches)
    table = Table("preset", "what it sets")
    for name, preset in PRESETS.items():
        table.add_row(name, " ".join(f"{key}={value}" for key, value in preset.items()))
    Console().print(table)


def _replay_failure(run: Path, number: int, debug: bool) -> None:
    record, error = replay_failure(run, number)
    print(f"failure {number}, {record.task}, turn {record.turn}, seed {record.seed}, then: {record.what}")
    if error is None:
        print(f"played again up to turn {record.turn}: nothing was raised")
        raise typer.Exit(1)
    print(f"played again: {error}\n{format_traceback(error.__cause__ or error)}")
    if debug:
        pdb.post_mortem((error.__cause__ or error).__traceback__)


def _options_table(options: type[Options]) -> None:
    table = Table("option", "default", "what it does")
    for name, info in options.model_fields.items():
        default = "" if info.is_required() else str(info.default)
        table.add_row(name, default, info.description or "")
    Console().print(table)


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def _words(words: list[str] | None) -> dict[str, Any]:
    """`key=value`, `--key=value` and `--key value` words as settings."""
    assignments: list[str] = []
    rest = list(words or [])
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and "=" not in word:
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"{word} needs a value: {word} VALUE")
            word = f"{word}={rest.pop(0)}"
        assignments.append(word.removeprefix("--"))
    return {name.replace("-", "_"): value for name, value in read_assignments(assignments).items()}


def _pm(width: float | None) -> str:
    return "" if width is None or width != width else f"± {width:.2f}"


def _conclude(run: Run, as_json: bool) -> None:
    """Say what came out of it and where to look."""
    result = run.result
    if as_json:
        print(to_json(result))
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    first, last = result["first_mean_return"], result["mean_return"]
    if first is not None:
        console.print(f"total return: {sum(first):.1f} in the first tenth, {sum(last):.1f} in the last")
    console.print(f"weights {result['weights_sha256'][:16]}…, {result['agent_steps_per_s']:,.0f} agent-steps/s")
    pictures = [name for name in ("curve.png", "herd.gif") if (run.path / name).exists()]
    console.print(
        f"look at {run.path} ({', '.join([*pictures, 'metrics.csv'])}), or `remuda watch {run.path} --terminal`, "
        f"or `tensorboard --logdir {run.path}`"
    )


@contextmanager
def _audience() -> Iterator[SearchListener]:
    """A line for each trial, and on a terminal a bar for the one under way."""
    console = Console(stderr=True, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task("", total=None)

        def watch(trial: WorkflowTrial, row: dict[str, Any]) -> None:
            text = f"trial {trial.number}: return {row['env_return']:.1f}, compliance {row['compliance']:.2f}"
            bar.update(shown, description=text, completed=int(row["episodes"]), total=trial.episodes)

        yield SearchListener(lambda text: bar.console.print(text, markup=False, highlight=False), watch)


def _conclude_search(found: Search, as_json: bool) -> None:
    if as_json:
        print(to_json(found.result()))
        return
    table = Table(Column("order", overflow="fold"), "return", "95 %", "compliance", "95 %", "fixes", "trial")
    for own in found.ranking[:10]:
        table.add_row(
            own.workflow, f"{own.env_return:.2f}", _pm(own.env_return_ci95), f"{own.compliance:.3f}",
            f"± {own.compliance_ci95:.3f}", f"{own.fixes:.1f}", str(own.trial),
        )  # fmt: skip
    if found.ranking:
        Console().print(table)
    if found.state.finished:
        print(f"chosen: {found.chosen.workflow}" if found.chosen else "none was chosen, since none passed")
        print(f"look at {found.folder / 'search.html'}")


def _usage_sentence(error: Exception) -> str:
    """What the command line's own parser says, with the name of the flag it says it about."""
    parameter = getattr(error, "param", None)
    flag = f"{parameter.opts[0]}: " if parameter is not None and parameter.opts else ""
    return f"{flag}{getattr(error, 'message', error)}"


def main() -> None:
    """Run the command line: one clear sentence and exit code 2 for bad input."""
    with suppress(OSError):  # somebody may have removed it
        sys.path.append(str(Path.cwd()))  # where a game of one's own may lie
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        code = 130
    except typer.TyperException as error:
        print(f"error: {_usage_sentence(error)}", file=sys.stderr)
        code = 2
    except (UsageError, StorageError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except RemudaError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EPIPE):
            raise
        code = 0  # whoever we were talking to has gone: everything else is done
    sys.exit(code or 0)
