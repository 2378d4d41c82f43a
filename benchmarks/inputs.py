"""What the command says to inputs that nobody would give it on purpose: a benchmark.

    python -m benchmarks.inputs --inputs 1000 --seed 7

Makes one installation, and gives the command, as it is installed but in this process, one odd input after the other: arguments,
manifests, settings, files. Each is refused with a rule and a way out, or understood; what it must never be is a traceback, an
error that only the last net has caught, or a wait without an end. A number says which inputs are made: equal seeds make equal
ones. Without Spark: no input launches a run. Exit code 1 if one input is neither refused clearly nor understood.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import signal
import string
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from backfill_assets.cli.command import main
from backfill_assets.products.enforcement import generator
from resources.policies import SHIPPED
from resources.settings import Settings

SECONDS = 20.0
"""The longest that one input may take; a busy machine needs a second or two."""
PLANNED, REJECTED = "planned-run", "rejected-run"
_REFUSED, _FAILED = 2, 1
_ODD = (
    "", " ", ".", "..", "../../etc/passwd", "/", "/dev/null", "/dev/zero", "-", "--", "-1", "0", "00", "1e999", "nan", "-inf",
    "9" * 30, "9" * 5000, "-" + "9" * 25, str(2**63), str(2**31), "a" * 65, "a" * 300, "a" * 5000, "caf\udce9", "a\0b", "\x1b[2J",
    "\u202egnp.exe", "\ufeffrun", "Ünïcödé", "日本語", "😀" * 20, "%s%s%n", "{0}", "${HOME}", "$(id)", "`id`", "'; DROP TABLE runs; --",
    "<script>", "null", "true", "~", "~nosuchuser/x", "2012-02-30", "2012-13", "0000-00-00", "9999-12-31", "2012-01..", "..2012-01",
    "2012-01..2011-01", "a=b", "=", "a=", "=b", "k=v,k=v", "http://[", "https://x:99999", "https://x:http", "file:///etc/passwd",
    "silver.case_sla_daily", "bronze.case_events", "silver.nothing", "a.b.c", "\\", "\\\\server\\share", "x\ny", "x\ty",
    PLANNED.upper(), f"{PLANNED} ", f"{PLANNED}.lock", PLANNED[:-1],
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**400, 0.5, float("nan"), float("inf"), "", [], {}, [[]], [None], {"": None},
    {"a": {"b": {"c": {}}}}, ["a"] * 1000, *_ODD,
)  # fmt: skip
_PLACES = (
    "https://[x", "http://[::1", "//[", "https://", "http:///x", "https://x:99999999", "https://ex ample/", "https://127.0.0.1:1/",
    "git:", "git:-C", "git:x", "git:/no/such/repository", "/no/such/disk", "/dev/null", "x", "~", "", "/" + "x" * 5000,
)  # fmt: skip
_URLS = (
    "sqlite:///{home}/ledger.db?timeout={odd}", "sqlite:///{home}/ledger.db?check_same_thread={odd}",
    "sqlite:///{home}/ledger.db?isolation_level={odd}", "sqlite:///{home}/ledger.db?nothing={odd}", "sqlite:///{home}/catalog.db",
    "sqlite:////dev/null", "sqlite:///{below}", "sqlite:///{home}", "sqlite://", "mysql://x/y", "oracle://x", "postgresql+nosuch://h/d",
    "postgresql+psycopg2://127.0.0.1:1/none", "postgresql+psycopg2://127.0.0.1:{odd}/none", "{odd}://x",
)  # fmt: skip
# {odd} is anything; {known} a run that is there. What would launch a run, or serve without an end, gets no chance to.
_COMMANDS = (
    "{odd}", "status {odd}", "status {odd} --json", "status --{odd}", "plan {odd}", "plan {odd} --preview --json", "approve {odd} --by {odd}",
    "reject {odd} --by {odd} --comment {odd}", "review {odd} --plan-hash {odd}", "accept-change {odd} --gate {odd} --reason {odd}",
    "review {known} --by ada --plan-hash {odd}", "approve {known} --by ada --plan-hash z{odd}", "decisions {odd}", "cancel {odd} --by {odd}",
    "run {odd}", "run {odd} --chunks {odd}", "run {known} --chunks {odd}", "resume {odd}", "stop {odd} --by {odd}", "publish {odd} --by {odd}",
    "publish {known} --break-glass {odd}", "rollback {odd}", "rollback {known} --by {odd}", "reinstate {odd}", "accept {odd}", "diff {odd}",
    "diff {known} --recorded --largest {odd}", "explain {odd} --key {odd}", "explain silver.case_sla_daily --key {odd}", "reproduce {odd}",
    "reconcile {odd}", "reconcile --range {odd} --gate no_such_gate", "reconcile --source-snapshot {odd} --gate no_such_gate",
    "reconcile --run {odd}", "reconcile --manifest {odd}", "exceptions {odd}", "exceptions {known} --gate {odd}", "exceptions {known} --limit {odd}",
    "drift {odd}", "drift --last {odd}", "verify {odd}", "verify {known} --head {odd}", "verify --all --head {odd}", "report {odd}",
    "report {known} --output /dev/full", "report {known} --output /dev/null/{odd}", "head --{odd}", "policy propose {odd} --by {odd}",
    "policy adopt {odd} --by {odd}", "load {odd} {odd}", "load case-events {odd}", "load case-events --cases {odd} --seed {odd} {odd}",
    "load bronze.case_events {odd}", "loads {odd}", "unload {odd} {odd} --by {odd} --reason {odd}", "metrics --days {odd}", "metrics --runs {odd}",
    "metrics --output /dev/null/{odd}", "metrics --listen x:{odd}:y", "runbook {odd}", "runbook {known} --{odd}", "ui --port x{odd}",
    "ui --behind x{odd}", "ui --behind https://x:99999{odd}", "gc --dry-run --delete {odd}", "gc --{odd}", "doctor {odd}", "live {odd}.x --once",
    "live --once --every x{odd}", "config {odd}", "demo --cases x{odd}", "demo --events {odd}.odd",
)  # fmt: skip


class TooLongError(BaseException):
    """An input has taken more than its time."""


@dataclass(frozen=True)
class Odd:
    """One input: a command line, with the variables it runs under."""

    kind: str
    arguments: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What came of an input; `wrong` says why it was neither refused clearly nor understood."""

    odd: Odd
    code: int
    wrong: str = ""


class World:
    """A small installation with a planned and a rejected run, and a folder for odd files."""

    def __init__(self, folder: Path) -> None:
        self.home, self.files = folder / "home", folder / "files"
        self.files.mkdir(parents=True)
        self.manifest: dict[str, Any] = {
            "runId": PLANNED,
            "kind": "RESTATEMENT",
            "requestedBy": "ada",
            "reason": "days were counted in the wrong time zone",
            "source": {"table": "bronze.case_events"},
            "transform": {"name": "case_sla_daily", "version": "3.1.0"},
            "target": {
                "table": "silver.case_sla_daily",
                "publishRange": {"start": "2011-01-01", "end": "2011-03-31"},
            },
            "validation": {"tolerances": {"row_change_percent": 5}},
            "referenceData": [{"name": "reference.sla_rules"}],
            "safety": {"maxRowsExpected": 100_000},
            "development": True,
        }
        self.log = pl.concat(generator.generate(5, 1))
        for line in (("init",), ("load", "case-events", "--cases", "300")):
            assert self.give(Odd("", line)).code == 0
        for run_id in (PLANNED, REJECTED):
            file = self.files / f"{run_id}.json"
            file.write_text(json.dumps(self.manifest | {"runId": run_id}), encoding="utf-8")
            assert self.give(Odd("", ("plan", str(file)))).code == 0
        assert self.give(Odd("", ("reject", REJECTED, "--by", "grace"))).code == 0

    def give(self, odd: Odd) -> Answer:
        """Give the command an input, as a shell would, and judge what came of it."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        code, wrong = 0, ""
        with _environment(self.home, odd.variables), _argv(odd.arguments), redirect_stdout(out), redirect_stderr(err):
            try:
                with _limited(SECONDS):
                    main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except TooLongError:
                wrong = f"took more than {SECONDS:.0f} s"
            except BaseException as error:  # noqa: BLE001 - the very thing that is looked for
                wrong = f"a traceback: {type(error).__name__}: {str(error)[:200]}"
        said, told = (stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err))
        return Answer(odd, code, wrong or _wrong(code, said, told, as_json="--json" in odd.arguments))


def _wrong(code: int, said: str, told: str, *, as_json: bool) -> str:
    """Return what is wrong with an answer; nothing if it is a clear refusal, or what was asked for."""
    if "Traceback" in said + told or "nothing was prepared for" in told:
        return f"a fault: {told.strip()[-300:]}"
    if code == _REFUSED:
        clear = ("rule" in told and "what to do" in told) or "Usage" in told
        return "" if clear and not said.strip() else f"refused without a rule: {said[-200:]}{told[-200:]}"
    if code not in {0, _FAILED}:
        return f"exit code {code}"
    if as_json and code == 0:
        try:
            json.loads(said)
        except ValueError:
            return f"is no JSON: {said[:200]}"
    return ""


# --- what is odd ------------------------------------------------------------------------------------------------------


def arguments(world: World, dice: random.Random, number: int) -> Odd:  # noqa: ARG001 - makers are called alike
    """Return a command line with something odd where something else belongs."""
    line = dice.choice(_COMMANDS).split(" ")
    known = dice.choice((PLANNED, REJECTED))
    return Odd("arguments", tuple(part.replace("{known}", known).replace("{odd}", _word(dice)) for part in line))


def manifests(world: World, dice: random.Random, number: int) -> Odd:
    """Return a manifest with odd values, missing and unknown fields, or damaged text."""
    changed = json.loads(json.dumps(world.manifest | {"runId": f"odd-run-{number}"}))
    for _ in range(dice.randint(0, 2)):
        _change(changed, dice)
    try:
        text = yaml.safe_dump(changed) if dice.random() < 0.6 else json.dumps(changed)
    except ValueError:  # more digits than Python writes
        text = yaml.safe_dump(world.manifest)
    raw = text.encode("utf-8", "surrogatepass")
    if dice.random() < 0.5:
        raw = damaged(raw, dice) if dice.random() < 0.7 else _with_an_odd_scalar(raw, dice)
    return Odd("manifests", ("plan", str(_file(world, dice, f"{number}.yaml", raw)), "--preview", "--json"))


def settings(world: World, dice: random.Random, number: int) -> Odd:
    """Return a setting with an odd value, in the environment or in a file."""
    if dice.random() < 0.25:
        return _place(world, dice, number)
    # any odd word would make new homes and files of odd names of those that say where things live
    names = [name for name in Settings.model_fields if name not in {"log_file", "head_places", "catalog", "ledger_url"}]
    name = dice.choice(names)
    command = dice.choice((("config", "--json"), ("status", "--json"), ("gc", "--json"), ("policy", "--json")))
    if dice.random() < 0.5:
        value = _word(dice)
        unusable = "\0" in value  # no operating system hands it on
        shown = dice.choice((value, json.dumps(value), f'{{"a": {json.dumps(value)}}}'))
        return Odd("settings", command, {f"BACKFILL_{name.upper()}": "x" if unusable else shown.replace("\0", "")})
    value = dice.choice(
        (json.dumps(_word(dice)), "[" * dice.choice((1, 20_000)), str(dice.choice(_VALUES[:12])), "{a={b=1}}")
    )
    raw = f"{name} = {value}\n".encode("utf-8", "surrogatepass")
    file = _file(world, dice, f"{number}.toml", damaged(raw, dice) if dice.random() < 0.4 else raw)
    return Odd("settings", command, {"BACKFILL_CONFIG": str(file)})


def _place(world: World, dice: random.Random, number: int) -> Odd:
    """Return a setting that says where something lives, with a place that is none, or an odd one."""
    name, below = dice.choice(("head_places", "log_file", "ledger_url")), world.files / f"{number}-place"
    commands: tuple[tuple[str, ...], ...]
    if name == "head_places":
        value = json.dumps([dice.choice((*_PLACES, _word(dice), f"git:{_word(dice)}", str(below)))])
        commands = (("head", "--json"), ("head", "--publish"), ("config", "--json"), ("verify", "--all"))
    elif name == "log_file":
        os.mkfifo(below)
        value = dice.choice(
            (str(below), str(world.files), "/dev/full", "/dev/null/x", "~nosuchuser/x", f"/{'x' * 300}", "")
        )
        commands = (("status", "--json"), ("config", "--json"))
    else:
        value = dice.choice(_URLS).format(home=world.home, below=below, odd=dice.choice(("abc", "-1", "", "1e999")))
        commands = (("status", "--json"), ("gc", "--json"), ("policy", "--json"))
    return Odd("settings", dice.choice(commands), {f"BACKFILL_{name.upper()}": value.replace("\0", "")})


def files(world: World, dice: random.Random, number: int) -> Odd:
    """Return a delivered file, or a policy, that is damaged."""
    which = dice.random()
    if which < 0.2:
        raw = SHIPPED.read_bytes()
        raw = damaged(raw, dice) if dice.random() < 0.7 else _with_an_odd_scalar(raw, dice)
        return Odd("files", ("policy", "propose", str(_file(world, dice, f"{number}-policy.yaml", raw)), "--by", "ada"))
    kind = "csv" if which < 0.6 else "parquet"
    log, content = world.log, io.BytesIO()
    if dice.random() < 0.4:
        log = log.with_columns(pl.lit(_word(dice).encode("utf-8", "replace").decode()).alias(dice.choice(log.columns)))
    if dice.random() < 0.2:
        log = log.rename({dice.choice(log.columns): _word(dice).encode("utf-8", "replace").decode()})
    if kind == "csv":
        log.write_csv(content)
    else:
        log.write_parquet(content)
    raw = content.getvalue()
    if dice.random() < 0.7:
        raw = damaged(raw, dice)
    file = _file(world, dice, f"{number}.{kind}", raw)
    table = dice.choice(("case-events", "case-events", "reference.sla_rules"))
    return Odd("files", ("load", table, str(file), "--json"))


MAKERS: tuple[Callable[[World, random.Random, int], Odd], ...] = (arguments, manifests, settings, files)


def damaged(raw: bytes, dice: random.Random) -> bytes:
    """Return bytes with some turned over, cut out, put in, doubled or cut off."""
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(raw) + 1)
        to = min(len(raw), at + dice.choice((1, 2, 8, 64)))
        match dice.randrange(6):
            case 0:
                raw = raw[:at] + bytes(byte ^ (1 << dice.randrange(8)) for byte in raw[at:to]) + raw[to:]
            case 1:
                raw = raw[:at] + raw[to:]
            case 2:
                raw = raw[:at] + dice.randbytes(to - at) + raw[at:]
            case 3:
                raw = raw[:at] + raw[at:to] * dice.choice((2, 50)) + raw[to:]
            case 4:
                raw = raw[:at] + dice.choice(string.punctuation + "\n\t ").encode() + raw[at:]
            case _:
                raw = raw if dice.random() < 0.7 else raw[:at]
    return raw


def _with_an_odd_scalar(raw: bytes, dice: random.Random) -> bytes:
    """Return YAML with something else for the value of one of its lines: tags, escapes, and what else YAML alone knows."""
    lines = raw.decode("utf-8", "surrogatepass").splitlines(keepends=True)
    number = dice.choice([number for number, line in enumerate(lines) if ":" in line])
    kind = dice.choice(
        ("bool", "int", "float", "null", "timestamp", "binary", "str", "map", "seq", "omap", "set", "nobody")
    )
    text = dice.choice(
        ("x", "''", "1", "-", "0x", "=", ".inf", "[a: 1]", "{a: 1}", "99999-99-99", "1:99", '"\\UFFFFFFFF"')
    )
    escape = f'"\\{dice.choice("xuUzN")}{dice.choice(("", "0", "D800", "FFFFFFFF", "00110000", "g"))}"'
    odd = dice.choice(
        (f"!!{kind} {text}", f"! {text}", text, escape, "? [a]", "<<: [1]", "|9", ">-0", "%YAML", "@", "`")
    )
    lines[number] = f"{lines[number].partition(':')[0]}: {odd}\n"
    return "".join(lines).encode("utf-8", "surrogatepass")


def _change(data: dict[str, Any], dice: random.Random) -> None:
    """Change one field, somewhere in nested data."""
    place: Any = data
    while True:
        key = dice.choice(list(place))
        inner = place[key]
        if isinstance(inner, dict) and inner and dice.random() < 0.7:
            place = inner
            continue
        break
    match dice.randrange(4):
        case 0:
            del place[key]
            if not place:
                place["odd"] = 1
        case 1:
            place[dice.choice(_ODD)] = inner
        case _:
            place[key] = dice.choice(_VALUES)


def _word(dice: random.Random) -> str:
    if dice.random() < 0.85:
        return dice.choice(_ODD)
    return "".join(
        chr(dice.choice((dice.randrange(1, 0x250), dice.randrange(1, 0x110000)))) for _ in range(dice.randint(1, 12))
    )


def _file(world: World, dice: random.Random, name: str, raw: bytes) -> Path:
    file = world.files / name
    if dice.random() < 0.03:
        os.mkfifo(file)
    else:
        file.write_bytes(raw)
    return file


# --- around the command -----------------------------------------------------------------------------------------------


@contextmanager
def _environment(home: Path, variables: dict[str, str]) -> Iterator[None]:
    kept = dict(os.environ)
    for name in [name for name in kept if name.startswith("BACKFILL_")]:
        del os.environ[name]
    os.environ.update({"BACKFILL_HOME": str(home)} | variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


@contextmanager
def _argv(arguments: Sequence[str]) -> Iterator[None]:
    kept, sys.argv = sys.argv, ["backfill", *arguments]
    try:
        yield
    finally:
        sys.argv = kept


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def end(_number: int, _frame: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def trial(world: World, inputs: int, seed: int) -> Iterator[Answer]:
    """Give so many inputs, a quarter of each kind, and yield what came of each."""
    for number in range(inputs):
        dice = random.Random(f"{seed}-{number}")
        yield world.give(MAKERS[number % len(MAKERS)](world, dice, number))


def run() -> int:
    """Make the inputs and print what came of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    started, made, wrong = time.monotonic(), Counter[tuple[str, int]](), list[Answer]()
    with tempfile.TemporaryDirectory(prefix="backfill-inputs-") as folder:
        world = World(Path(folder))
        for answer in trial(world, asked.inputs, asked.seed):
            made[answer.odd.kind, answer.code] += 1
            if answer.wrong:
                wrong.append(answer)
                print(
                    f"WRONG {answer.odd.kind} {ascii(answer.odd.arguments)[:400]} {ascii(answer.odd.variables)[:300]}"
                )
                print(f"      {answer.wrong}", flush=True)
    for kind in (maker.__name__ for maker in MAKERS):
        done, failed, refused = (made[kind, code] for code in (0, _FAILED, _REFUSED))
        print(
            f"{kind:10} {done + failed + refused:5} inputs: {refused:4} refused, {done:4} done, {failed:3} done with findings"
        )
    hangs = sum("took more than" in one.wrong for one in wrong)
    print(
        f"{asked.inputs:,} inputs (seed {asked.seed}) in {time.monotonic() - started:.0f} s: {len(wrong)} neither refused clearly "
        f"nor understood, of these {hangs} without an end"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(run())
