"""The command line, made from the requests: a new field of a request needs no line here."""

from __future__ import annotations

import errno
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pkgutil import resolve_name
from types import NoneType
from typing import Annotated, Any, Final, TextIO, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from domino_tune import requests
from domino_tune.base.errors import meaning_of, printable
from domino_tune.base.origin import VERSION
from domino_tune.base.tables import unfolded
from domino_tune.cli import asking, show
from domino_tune.requests import QUESTIONS, outputs, service
from domino_tune.requests.options import GROUPS as OPTION_GROUPS
from domino_tune.requests.options import Request, choices_of, core_of, is_list, option_of
from domino_tune.requests.outputs import Asking
from domino_tune.requests.problems import in_typed_words
from simulator.errors import InputError

# Some versions of typer contain click, others import it; these are the classes in use.
UsageError: Any = typer.BadParameter.__base__
ClickException: Any = UsageError.__base__
INTERRUPTED: Final = meaning_of(KeyboardInterrupt()).exit_code
# System errors when stdout is full or closed. Errors of files name the file.
LOST_OUTPUT: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
SETTINGS: Final = {"help_option_names": ["--help", "-h"], "max_content_width": 100}
GROUPS: Final = {
    "plan": "Show a plan file, or export it to a framework.",
    "profiles": "List, show, check, import and compare machine profiles.",
    "jobs": "List, show, stop and delete your jobs at a server.",
    "tokens": "Make, list and revoke the tokens of a service.",
}


@dataclass(frozen=True)
class Verb:
    """One command: its words, its request, its output options, and the action that takes both."""

    name: str
    request: type[Request]
    outputs: type[outputs.Outputs]
    action: Callable[[Any, Any], None]
    listing: str = ""
    """Name of a function of domino_tune that returns (name, text) pairs for the end of the help."""

    @property
    def parts(self) -> tuple[type[Request], ...]:
        """What its options are fields of."""
        return (self.request, *((Asking,) if self.asks else ()), self.outputs)

    def read(self, values: Mapping[str, Any]) -> tuple[Any, Any, Asking]:
        """Return the request that was typed, where its answer goes, and where it comes from."""
        typed = {name: value for name, value in values.items() if value not in (None, [])}
        request, *more, places = (
            {name: typed[name] for name in part.model_fields if name in typed}
            for part in self.parts
        )
        told = Asking(**(more[0] if more else {}))
        return asking.asked(self.request, request, told), self.outputs(**places), told

    @property
    def asks(self) -> bool:
        """Whether it asks a question that a job file can hold."""
        return self.name in QUESTIONS


def later(place: str) -> Callable[[Any, Any], None]:
    """Return the action at ``place``, ``module:function`` of this package. What it needs is
    imported when it runs, so that ``--help`` stays fast."""
    return lambda request, places: resolve_name(f"domino_tune.cli.{place}")(request, places)


def printed(verb: str, table: str) -> Callable[[Any, outputs.JsonOutputs], None]:
    """Return the action of a verb, ``module:function`` of domino_tune, whose result is only
    printed; ``table``: the function of ``show`` that does so."""

    def action(request: Any, places: outputs.JsonOutputs) -> None:
        answer = resolve_name(f"domino_tune.{verb}")(request)
        show.answer(answer, places.as_json, getattr(show, table))

    return action


VERBS: Final = (
    Verb("tune", QUESTIONS["tune"], outputs.SearchOutputs, later("actions:tune")),
    Verb("layout", QUESTIONS["layout"], outputs.SearchOutputs, later("actions:layout")),
    Verb("scale", QUESTIONS["scale"], outputs.ScaleOutputs, later("actions:scale")),
    Verb("simulate", QUESTIONS["simulate"], outputs.SimulateOutputs, later("actions:simulate")),
    Verb("whatif", QUESTIONS["whatif"], outputs.WhatIfOutputs, later("actions:whatif")),
    Verb("measure", QUESTIONS["measure"], outputs.PlanOutputs, later("actions:measure")),
    Verb("validate", QUESTIONS["validate"], outputs.ValidateOutputs, later("actions:validate")),
    Verb("profile", QUESTIONS["profile"], outputs.TableOutputs, later("actions:profile")),
    Verb("calibrate", QUESTIONS["calibrate"], outputs.ServerOutputs, later("actions:calibrate")),
    Verb("plan show", requests.PlanShowRequest, outputs.TableOutputs,
         printed("verbs.plan:plan_show", "plan")),
    Verb("plan export", requests.PlanExportRequest, outputs.FileOutputs,
         later("actions:plan_export")),
    Verb("models", requests.ModelsRequest, outputs.TableOutputs,
         printed("verbs.models:models", "models")),
    Verb("profiles list", requests.ProfilesListRequest, outputs.TableOutputs,
         printed("verbs.profiles:profiles_list", "profiles")),
    Verb("profiles show", requests.ProfilesShowRequest, outputs.TableOutputs,
         printed("verbs.profiles:profiles_show", "profile")),
    Verb("profiles check", requests.ProfilesCheckRequest, outputs.TableOutputs,
         printed("verbs.profiles:profiles_check", "checked")),
    Verb("profiles import", requests.ProfilesImportRequest, outputs.TableOutputs,
         printed("verbs.profiles:profiles_import", "imported"),
         "measure.importers:descriptions"),
    Verb("profiles diff", requests.ProfilesDiffRequest, outputs.TableOutputs,
         printed("verbs.profiles:profiles_diff", "diff")),
    Verb("serve", service.ServeRequest, outputs.Outputs, later("actions:serve")),
    Verb("send", service.SendRequest, outputs.Outputs, later("at_server:send")),
    Verb("jobs list", service.JobsListRequest, outputs.TableOutputs, later("at_server:jobs_list")),
    Verb("jobs show", service.JobsShowRequest, outputs.TableOutputs, later("at_server:jobs_show")),
    Verb("jobs stop", service.JobsStopRequest, outputs.TableOutputs, later("at_server:jobs_stop")),
    Verb("jobs delete", service.JobsDeleteRequest, outputs.Outputs, later("at_server:jobs_delete")),
    Verb("tokens add", service.TokensAddRequest, outputs.TableOutputs,
         printed("service.token_verbs:tokens_add", "added_token")),
    Verb("tokens list", service.TokensListRequest, outputs.TableOutputs,
         printed("service.token_verbs:tokens_list", "tokens")),
    Verb("tokens revoke", service.TokensRevokeRequest, outputs.Outputs,
         later("actions:tokens_revoke")),
)  # fmt: skip


class _Group(TyperGroup):
    """A group that suggests the nearest command, of this or another group."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command, or raise a UsageError that names the nearest one."""
        unknown = self.get_command(ctx, args[0]) is None or _means_a_group(args)
        if unknown and not ctx.resilient_parsing:  # a shell may ask about half a command
            raise UsageError(_unknown_command(ctx, self, args), ctx=ctx)
        return super().resolve_command(ctx, args)


def _means_a_group(args: Sequence[str]) -> bool:
    """Return whether a verb is typed where a group is meant, as in ``profile list``."""
    near = get_close_matches(" ".join(args[:2]), [verb.name for verb in VERBS], n=1)
    is_verb = any(verb.name == args[0] for verb in VERBS)
    return is_verb and bool(near) and " " in near[0] and args[1] == near[0].split()[1]


def _unknown_command(ctx: Any, group: TyperGroup, args: Sequence[str]) -> str:
    """Return the message: the command typed, the nearest one, and all known commands."""
    before = ctx.command_path.split()[1:]
    typed = " ".join([*before, *(arg for arg in args[:2] if not arg.startswith("-"))])
    paths = [verb.name for verb in VERBS]
    words = " ".join([*before, args[0]])
    near = get_close_matches(typed, paths, n=1) or get_close_matches(words, [*paths, *GROUPS], n=1)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    known = ", ".join(sorted(group.commands))
    return f"Unknown command `{typed if near else words}`.{hint} Known here: {known}."


def build_app() -> typer.Typer:
    """Return the whole command line as a typer application."""
    help_text = "Find the best plan of Domino-style tensor parallelism, and predict its speedup."
    app = _group(help_text, add_completion=True)
    app.callback(help=help_text)(_root)
    groups: dict[str, typer.Typer] = {"": app}
    for name, help_text in GROUPS.items():
        groups[name] = _group(help_text)
        app.add_typer(groups[name], name=name)
    for verb in VERBS:
        help_text = inspect.getdoc(verb.request) or ""
        *group, word = verb.name.split()
        register = groups["".join(group)].command(
            word, cls=_command(verb), help=help_text, context_settings=SETTINGS
        )
        register(_function(verb))
    return app


def _command(verb: Verb) -> type[TyperCommand]:
    """Return the class of a verb's command; its help ends with the verb's listing."""

    told = {name: option_of(part, name) for part in verb.parts for name in part.model_fields}

    class Command(TyperCommand):
        def format_options(self, ctx: Any, formatter: Any) -> None:
            if not verb.asks:
                super().format_options(ctx, formatter)
                return
            records: dict[str, list[tuple[str, str]]] = {group: [] for group in OPTION_GROUPS}
            for item in self.get_params(ctx):
                group = told[item.name].group if item.name in told else OPTION_GROUPS[-1]
                if record := item.get_help_record(ctx):
                    records[group].append(record)
            for group, lines in records.items():
                if lines:
                    with formatter.section(group):
                        formatter.write_dl(lines)
            if rare := _rare(verb.request):
                with formatter.section("For --set and job files"):
                    formatter.write_dl(rare)

        def format_epilog(self, ctx: Any, formatter: Any) -> None:
            if verb.listing:
                with formatter.section("Formats"):
                    formatter.write_dl(resolve_name(f"domino_tune.{verb.listing}")())

    return Command


def _rare(kind: type[Request]) -> list[tuple[str, str]]:
    """Return the fields without an option, each with its help and choices."""
    found = []
    for name, item in kind.model_fields.items():
        told, choices = option_of(kind, name), choices_of(item.annotation)
        if told.rare:
            found.append((name, told.help + f" [{'|'.join(choices)}]" * bool(choices)))
    return found


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True,
            callback=lambda asked: _print_version() if asked else None,
        ),
    ] = False,
) -> None:  # fmt: skip
    """Hold the options of the program itself."""


def _print_version() -> None:
    print(f"domino_tune {VERSION}")
    raise typer.Exit


def _group(help_text: str, *, add_completion: bool = False) -> typer.Typer:
    return typer.Typer(
        cls=_Group, help=help_text, add_completion=add_completion,
        rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=SETTINGS,
    )  # fmt: skip


def _function(verb: Verb) -> Callable[..., None]:
    """Return a function with the verb's fields as parameters, for typer to read."""

    def run(**values: Any) -> None:
        request, places, asked = verb.read(values)
        asking.check_places(asked)
        if asked.save_job:  # before the answer, whose reader may close the pipe
            from domino_tune.store.formats.job_file import write_job

            write_job(asked.save_job, verb.name, request)
        with unfolded(isinstance(places, outputs.TableOutputs) and places.wide):
            verb.action(request, places)

    parameters = [*chain.from_iterable(_parameters(part, verb.asks) for part in verb.parts)]
    run.__name__ = verb.name.replace(" ", "_")
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _parameters(kind: type[Request], asks: bool) -> Iterator[inspect.Parameter]:
    """Yield what typer reads; nothing is required that a job file may give."""
    for name, item in kind.model_fields.items():
        if option_of(kind, name).rare:
            continue
        core, needed = core_of(item.annotation), item.is_required() and not asks
        several = is_list(item.annotation) and core is str
        hint: Any = list[str] if several else str if is_list(item.annotation) else core
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if needed else None,
            annotation=Annotated[hint if needed else hint | None, _typer_info(kind, name)],
        )  # fmt: skip


def _typer_info(kind: type[Request], name: str) -> Any:
    told, annotation = option_of(kind, name), kind.model_fields[name].annotation
    choices, core = choices_of(annotation), core_of(annotation)
    complete = asking.completer(name, choices)
    metavar = told.metavar or (
        f"[{'|'.join(choices)}]" if choices else "N" if core is int else None
    )
    if told.argument:
        return typer.Argument(
            help=told.help, metavar=metavar, show_default=False, autocompletion=complete
        )
    flag = told.flag_of(name)
    if core is bool and NoneType in get_args(annotation):  # on, off, or not given
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    return typer.Option(
        flag, help=told.help, metavar=None if core is bool else metavar, show_default=False,
        autocompletion=complete,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; print a user's error without traceback."""
    if asking.is_asked():
        return asking.answer(build_app())
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        result = build_app()(arguments, prog_name=asking.PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except ClickException as error:
        _complain(_otherwise(error) or error.format_message())
        return 2
    except (typer.Abort, KeyboardInterrupt):
        _complain("interrupted.")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):  # the reader, such as `head`, has closed the pipe
        _silence(sys.stdout)
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in LOST_OUTPUT:
            _silence(sys.stdout)
            _complain(f"Cannot write the output: {error.strerror}; write it to another place.")
            return meaning_of(InputError()).exit_code
        meaning = meaning_of(error)
        if meaning.exit_code == 1:
            raise
        _complain(in_typed_words(str(error)))
        return meaning.exit_code
    if result == INTERRUPTED:  # typer returns it, as `standalone_mode` is off
        _complain("interrupted.")
    return result if isinstance(result, int) else 0


def _otherwise(error: Any) -> str:
    """Return how to say what an unknown option would say; nothing where it is another error."""
    words = error.ctx.command_path.split()[1:] if getattr(error, "ctx", None) else []
    verb = next((one for one in VERBS if one.name.split() == words), None)
    flag = getattr(error, "option_name", "")
    return asking.instead(verb.name, verb.request, flag) if verb and flag else ""


def _complain(message: str) -> None:
    try:
        print(f"error: {printable(message)}", file=sys.stderr, flush=True)
    except OSError:  # stderr is closed: only the exit code is left
        _silence(sys.stderr)


def _silence(stream: TextIO) -> None:
    """Drop the text that the stream still buffers, so that Python does not fail again at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
