"""The ``fastload`` command.

The exit status is 0; 1 for an error, reported in one line; 2 for a command that is not understood. ``fastload run``
replaces its process by the command it is given, so that status, signals, standard input and output are that command's.

Environment variables, set for the processes it starts:

=========================== ============================================================ ========================
FASTLOAD_INSTALL=1          replaces torch's DataLoader by fastload's                    inject/sitecustomize.py
FASTLOAD_LOADER             other defaults for fastload's loaders                        run/defaults.py
FASTLOAD_REPORT=1           reports at exit what each loader did                         run/exit_report.py
FASTLOAD_RUN                a file for the first process: was a loader iterated?         run/exit_report.py
FASTLOAD_SCRIPT_LOADERS     verify, explain, tune: stop a script at its first batch      run/script_loaders.py
FASTLOAD_PROFILE            records the process                                          profiling/hooks/process.py
=========================== ============================================================ ========================

Importing this module, and printing help, imports neither torch nor anything else that takes time.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from .inject import put_first
from .run.result_file import IN_MEMORY
from .run.targets import UsageError, Verb, program_of, run_target

# A verb gets its own options, and in ``options.command`` what follows them; it returns the exit status.
Handler = Callable[[argparse.Namespace], int]

_PROGRAMS = "-m MODULE or -- PROGRAM"
"""Taken by run and profile, besides a script."""
_RUN_EPILOG = """\
examples:  fastload run train.py --epochs 3
           fastload run --fuse --seed 1 -m package.train
           fastload run --report -- torchrun --nproc-per-node=2 train.py
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line, the words after ``fastload`` (None: of ``sys.argv``); return the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    from .errors import ConfigError

    parser, verbs = _parsers()
    if not arguments:
        parser.exit(2, parser.format_help())
    if arguments[0] == "--version":
        from .base.version import __version__
        from .native import description

        print(f"fastload {__version__}, {description()}")
        return 0
    if arguments[0] not in verbs and not arguments[0].startswith("-"):
        _refuse(parser, "command", arguments[0], list(verbs), 0.7)
    own, command = split_command(arguments, verbs)
    options, unknown = parser.parse_known_args(own)
    if unknown:
        known = re.findall(r"^  (?:-h, )?(--[\w-]+)", verbs[options.verb].format_help(), re.MULTILINE)
        _refuse(verbs[options.verb], "option", unknown[0], known, 0.8)
    options.command = command
    handler: Handler = options.handler
    try:
        status = handler(options)
        print(end="", flush=True)  # standard output may be closed
        return status
    except (UsageError, ConfigError) as error:
        print(f"fastload {options.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"fastload {options.verb}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader has ended, as with "| head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at exit
        return 128 + 13  # as a shell reports SIGPIPE


def split_command(
    arguments: Sequence[str], verbs: Mapping[str, argparse.ArgumentParser]
) -> tuple[list[str], list[str]]:
    """Divide a command line into fastload's own words, for the parsers of the verbs, and the user's command.

    The user's command begins at the first word after the verb that is neither an option nor the value of one, at
    ``-m``, or at ``--``. (argparse's REMAINDER treats ``--`` differently in different versions of Python.)
    """
    from .run.defaults import FLAG_WORDS

    parser = verbs.get(arguments[0]) if arguments else None
    if parser is None or any(not action.option_strings for action in parser._actions):  # its arguments are no command
        return list(arguments), []
    options = {word: action for action in parser._actions for word in action.option_strings}
    before = None
    for place, word in enumerate(arguments[1:], 1):
        is_value = before is not None and (before.nargs is None or (before.nargs == "?" and word in FLAG_WORDS))
        before = None if is_value else options.get(word)
        if not is_value and (word in ("--", "-m") or not word.startswith("-")):
            return list(arguments[:place]), list(arguments[place:])
    return list(arguments), []


def _parsers() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser of the command line, and those of the verbs."""
    from .explain.command import VERB as EXPLAIN
    from .pack import command as of_pack
    from .profiling import command as of_profile
    from .tune.command import VERB as TUNE
    from .verification.command import VERB as VERIFY

    parser = argparse.ArgumentParser(
        prog="fastload", description="PyTorch input pipelines that are fast, deterministic and explainable."
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs: Any = parser.add_subparsers(title="commands", dest="verb", required=True, metavar="COMMAND")

    def add(handler: Handler, summary: str, epilog: str | None = None, takes: str | None = None) -> Any:
        """Add a verb, which has its handler's name and docstring; ``takes``: what follows the options."""
        usage = None if takes is None else f"fastload {handler.__name__} [OPTION ...] {takes} [ARGUMENT ...]"
        added = verbs.add_parser(
            handler.__name__,
            help=summary,
            description=textwrap.dedent(f"    {handler.__doc__}").strip(),
            usage=usage,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        added.set_defaults(handler=handler)
        return added

    def add_target(verb: Verb) -> None:
        def handler(options: argparse.Namespace) -> int:
            _check_default_arguments()
            given = {name: value for name, value in vars(options).items() if name != "handler"}
            return run_target(verb, given)

        handler.__name__, handler.__doc__ = verb.name, verb.description
        verb.add_options(add(handler, verb.summary, verb.epilog(), "(SCRIPT | -m MODULE | MODULE:NAME)"))

    program = "(SCRIPT | -m MODULE | -- PROGRAM)"
    _add_run_options(add(run, "run a script with fastload in place of torch's DataLoader", _RUN_EPILOG, program))
    add_target(VERIFY)
    of_profile.add_options(add(profile, "record a script, and say what its data cost", of_profile.EPILOG, program))
    of_profile.add_report_options(
        add(of_profile.report, "show again what fastload profile found", of_profile.REPORT_EPILOG)
    )
    of_profile.add_compare_options(
        add(of_profile.compare, "say what differs between two recordings", of_profile.COMPARE_EPILOG)
    )
    of_pack.add_options(add(of_pack.pack, "store a folder of images in a few files, smaller if wanted", of_pack.EPILOG))
    of_pack.add_unpack_options(add(of_pack.unpack, "write the files of a pack back into folders"))
    add_target(EXPLAIN)
    add_target(TUNE)
    doctor_parser = add(doctor, "check this machine and the installed packages")
    doctor_parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    doctor_parser.add_argument("-v", "--verbose", action="store_true", help="print what is well, too")
    doctor_parser.add_argument(
        "--overrides", action="store_true", help="list each name of another library that fastload replaces"
    )
    return parser, verbs.choices


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    from .options import OPTIONS
    from .run.defaults import VARIABLE

    group = parser.add_argument_group(
        "arguments of fastload's DataLoader, for all loaders that the script constructs without them",
        f"{VARIABLE}=fuse=true,seed=1 in the environment does the same, for launchers; options come before it.",
    )
    for name, option in OPTIONS.items():
        if option.help is not None:
            optional: dict[str, Any] = {"nargs": "?", "const": "true"} if option.is_flag else {}
            group.add_argument(f"--{name.replace('_', '-')}", metavar="X", help=option.help, **optional)
    parser.add_argument(
        "--report",
        action="store_true",
        help="at the end of each process, print a line for each loader that was iterated (as FASTLOAD_REPORT=1 does)",
    )


def _refuse(parser: argparse.ArgumentParser, kind: str, word: str, known: list[str], alike: float) -> NoReturn:
    """Exit with an error that names an unknown option or command, and the known one that was meant, or all.

    ``alike``: from 0 to 1, how alike two words must be for one to be taken for a slip in writing the other.
    """
    from difflib import get_close_matches

    near = get_close_matches(word.partition("=")[0].lower(), known, n=1, cutoff=alike)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    parser.error(f"no such {kind}: {word}; {hint}")


def run(options: argparse.Namespace) -> int:
    """Run a command as it is, with fastload's loader in place of torch's DataLoader.

    The script needs no change. Its worker processes and other Python processes that it starts get the same treatment
    (unless they ignore PYTHONPATH, as python -I does). If no DataLoader was iterated in any of them, one line says so
    at the end of the script, unless an exception has ended it.
    """
    from .options import OPTIONS
    from .run.defaults import VARIABLE, as_text, read_text, values_of

    environment = {**os.environ, "FASTLOAD_INSTALL": "1"}
    put_first(environment)
    given = {name: word for name in OPTIONS if (word := getattr(options, name, None)) is not None}
    _check_default_arguments()
    if given:
        from .loader import argument_defaults  # takes time: torch; the loader checks its arguments itself

        argument_defaults().check(values_of(given))
        environment[VARIABLE] = as_text({**read_text(environment.get(VARIABLE, "")), **given})
    if options.report:
        environment["FASTLOAD_REPORT"] = "1"
    program = program_of(options.command, "run", _PROGRAMS)
    if hasattr(os, "memfd_create"):  # Linux's: elsewhere a script that iterates no loader is told nothing
        environment["FASTLOAD_RUN"] = f"/proc/{os.getpid()}/fd/{os.memfd_create(IN_MEMORY, 0)}"
    _become(program, environment)


def _check_default_arguments() -> None:
    """Check the arguments in FASTLOAD_LOADER, so that no script is started with wrong ones."""
    from .run.defaults import VARIABLE

    if os.environ.get(VARIABLE):
        from .loader import argument_defaults  # takes time: torch

        argument_defaults().read_environment()


def profile(options: argparse.Namespace) -> int:
    """Run a script, and say what waiting for data costs it, why, and how much a change can gain at most.

    The script needs no change and need not use fastload. Its worker processes, and the ranks that torchrun starts, are
    recorded too. Its output and its exit status stay its own; the status is 2 if nothing was recorded.
    """
    from .profiling.command import record_script

    return record_script(options, program_of(options.command, "profile", _PROGRAMS), options.command)


def doctor(options: argparse.Namespace) -> int:
    """Check the packages, image decoding, devices, cores and memory files; say what is wrong and how to mend it.

    The status is 0 if everything that fastload needs works, 1 if something is broken.
    """
    from .doctor.command import examine_and_print

    if options.command:
        raise UsageError(f"it takes no arguments, got {' '.join(options.command)}")
    return examine_and_print(as_json=options.json, with_ok=options.verbose, only_overrides=options.overrides)


def _become(program: list[str], environment: dict[str, str]) -> NoReturn:
    """Replace this process by ``program``."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores SIGPIPE, and exec keeps that: a shell pipeline would not end as it should.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvpe(program[0], program, environment)


if __name__ == "__main__":
    sys.exit(main())
