"""The ``fastload`` command.

In: the command line. Out: an exit status: 0; 1 for an error of fastload's own, told in one line; 2 for a command that
is not understood. ``fastload run`` becomes the command it is given, so that status, signals, standard input and
output are that command's.

Environment variables, which ``fastload run`` sets for the processes it starts: ``FASTLOAD_INSTALL=1`` puts fastload's
loader in place of torch's (read by ``inject/sitecustomize.py``); ``FASTLOAD_LOADER`` gives its loaders other defaults
(read by ``defaults.py``); ``FASTLOAD_REPORT=1`` has each process tell at its end what its loaders did (read by
``exit_report.py``). ``fastload verify``, ``fastload explain`` and ``fastload tune`` set ``FASTLOAD_VERIFY``,
``FASTLOAD_EXPLAIN`` and ``FASTLOAD_TUNE`` beside the first, for the script they start (read there too);
``fastload profile`` sets ``FASTLOAD_PROFILE`` alone.

Importing this module, and printing help, imports neither torch nor anything else that takes time.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NoReturn

# A verb reads its own options, then the command that comes after them, and returns the exit status.
Handler = Callable[[argparse.Namespace, list[str]], int]

# Verbs that no command of the user's comes after.
_WITHOUT_COMMAND = ("pack", "report", "compare", "whatif")


class UsageError(Exception):
    """The command line cannot be carried out as it stands; the message is one line for the user."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line.

    Args:
        arguments: what follows ``fastload``; ``sys.argv`` if None.

    Returns:
        The exit status.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    from .targets import TargetError

    parser = _parser()
    if not arguments:
        parser.exit(2, parser.format_help())
    own, command = split_command(arguments)
    options, unknown = parser.parse_known_args(own)
    if unknown:
        _refuse(options.parser, unknown[0])
    handler: Handler = options.handler
    try:
        status = handler(options, command)
        print(end="", flush=True)  # which may be closed
        return status
    except (UsageError, TargetError) as error:
        print(f"fastload {options.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"fastload {options.verb}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # as with "| head": whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the end
        return 128 + 13  # as a shell has it of SIGPIPE


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide a command line into what fastload reads and what belongs to the user's command.

    The user's command begins at the first word after the verb that is no option (nor the value of one), at ``-m``, or
    at ``--``. (argparse could do this with REMAINDER, but treats ``--`` differently in different versions of Python.)

    Returns:
        The words up to the command, and the command: ``["train.py", ...]``, ``["-m", "module", ...]`` or
        ``["--", "program", ...]``.
    """
    from . import defaults
    from .profiling.command import VALUED as OF_PROFILE
    from .tune.command import VALUED as OF_TUNE
    from .verification.command import VALUED as OF_VERIFY

    of_run = tuple(_option(name) for name in defaults.OPTIONS if name not in defaults.FLAGS)
    flags = tuple(_option(name) for name in defaults.FLAGS)
    of_verb = {"run": of_run, "verify": OF_VERIFY, "profile": OF_PROFILE, "tune": OF_TUNE}
    valued = of_verb.get(arguments[0], ()) if arguments else ()
    if arguments and arguments[0] in _WITHOUT_COMMAND:
        return list(arguments), []
    for place, word in enumerate(arguments):
        if place > 1 and arguments[place - 1] in valued:
            continue
        if arguments[place - 1] in flags and arguments[0] == "run" and word in defaults.FLAG_WORDS:
            continue
        if place > 0 and (word in ("--", "-m") or not word.startswith("-")):
            return list(arguments[:place]), list(arguments[place:])
    return list(arguments), []


def _parser() -> argparse.ArgumentParser:
    from . import explain_command
    from .pack import command as pack_command
    from .profiling import command as profile_command
    from .profiling import whatif_command
    from .tune import command as tune_command
    from .verification.command import EPILOG, add_options

    parser = argparse.ArgumentParser(
        prog="fastload", description="PyTorch input pipelines that are fast, deterministic and explainable."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(title="commands", dest="verb", required=True, metavar="COMMAND")
    run_parser = _add_verb(
        verbs,
        run,
        "run a script with fastload in place of torch's DataLoader",
        usage="fastload run [OPTION ...] (SCRIPT | -m MODULE | -- PROGRAM) [ARGUMENT ...]",
        epilog=(
            "examples:  fastload run train.py --epochs 3\n"
            "           fastload run --fuse --seed 1 -m package.train\n"
            "           fastload run --report -- torchrun --nproc-per-node=2 train.py"
        ),
    )
    _add_loader_options(run_parser)
    run_parser.add_argument(
        "--report",
        action="store_true",
        help="at the end of each process, print a line for each loader that was iterated (as FASTLOAD_REPORT=1 does)",
    )
    verify_parser = _add_verb(
        verbs,
        verify,
        "check that a loader gives the same bits however it is run",
        usage="fastload verify [OPTION ...] (SCRIPT | -m MODULE | MODULE:NAME) [ARGUMENT ...]",
        epilog=EPILOG,
    )
    add_options(verify_parser)
    profile_parser = _add_verb(
        verbs,
        profile,
        "record a script, and say what its data cost",
        usage="fastload profile [OPTION ...] (SCRIPT | -m MODULE | -- PROGRAM) [ARGUMENT ...]",
        epilog=profile_command.EPILOG,
    )
    profile_command.add_options(profile_parser)
    whatif_command.add_options(
        _add_verb(verbs, whatif, "predict what a change would bring to a recorded script", whatif_command.EPILOG)
    )
    profile_command.add_report_options(
        _add_verb(verbs, report, "show again what fastload profile found", profile_command.REPORT_EPILOG)
    )
    profile_command.add_compare_options(
        _add_verb(verbs, compare, "say what differs between two recordings", profile_command.COMPARE_EPILOG)
    )
    pack_command.add_options(
        _add_verb(verbs, pack, "store a folder of images in a few files, smaller if wanted", pack_command.EPILOG)
    )
    explain_parser = _add_verb(
        verbs,
        explain,
        "print how the loaders of a script work, and what can be fused",
        usage="fastload explain [OPTION ...] (SCRIPT | -m MODULE | MODULE:NAME) [ARGUMENT ...]",
        epilog=explain_command.EPILOG,
    )
    explain_command.add_options(explain_parser)
    tune_parser = _add_verb(
        verbs,
        tune,
        "try what can be chosen about a loader, and recommend the fastest settings",
        usage="fastload tune [OPTION ...] (SCRIPT | -m MODULE | MODULE:NAME) [ARGUMENT ...]",
        epilog=tune_command.EPILOG,
    )
    tune_command.add_options(tune_parser)
    doctor_parser = _add_verb(verbs, doctor, "say what is there, what is missing, and what that costs")
    doctor_parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    return parser


def _add_loader_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser an option for each default that a loader can be given."""
    from .defaults import FLAGS, OPTIONS, VARIABLE

    group = parser.add_argument_group(
        "arguments of fastload's DataLoader, for all loaders that the script makes without them",
        f"{VARIABLE}=fuse=true,seed=1 in the environment does the same, for launchers; options come before it.",
    )
    for name, words in OPTIONS.items():
        optional: dict[str, Any] = {"nargs": "?", "const": "true"} if name in FLAGS else {}
        group.add_argument(_option(name), metavar="X", help=words, **optional)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _add_verb(
    verbs: Any, handler: Handler, help_line: str, epilog: str | None = None, usage: str | None = None
) -> argparse.ArgumentParser:
    """Add a verb, which has the name of its handler and is described by its docstring."""
    added: argparse.ArgumentParser = verbs.add_parser(
        handler.__name__,
        help=help_line,
        description=textwrap.dedent(f"    {handler.__doc__}").strip(),
        usage=usage,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    added.set_defaults(handler=handler, parser=added)
    return added


def _refuse(parser: argparse.ArgumentParser, word: str) -> NoReturn:
    """End with an error that names an option which there is not, and those that there are."""
    known = re.findall(r"^  (?:-h, )?(--[\w-]+)", parser.format_help(), re.MULTILINE)
    parser.error(f"no such option: {word}; there are {', '.join(known)}")


class _Version(argparse.Action):
    """Print the version: argparse's own action would have it read for every command."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"fastload {version('fastload')}")
        parser.exit()


def run(options: argparse.Namespace, command: list[str]) -> int:
    """Run a command as it is, with fastload's loader in place of torch's DataLoader.

    The script needs no change. Its worker processes and whatever other Python processes it starts get the same
    treatment (except where one of them ignores PYTHONPATH, as with python -I).
    """
    environment = dict(os.environ)
    injected_environment(environment)
    _give_defaults(options, environment)
    if options.report:
        environment["FASTLOAD_REPORT"] = "1"
    _become(_program(command), environment)


def _give_defaults(options: argparse.Namespace, environment: MutableMapping[str, str]) -> None:
    """Put the defaults of loaders that the command line gives beside those of an environment, and check them.

    Raises:
        UsageError: there is no such argument, or no loader can have such a value.
    """
    from .defaults import OPTIONS, VARIABLE, as_text, read_text, values_of
    from .errors import ConfigError

    given = {name: word for name in OPTIONS if (word := getattr(options, name)) is not None}
    before = environment.get(VARIABLE, "")
    if not given and not before:
        return
    try:
        from .loader import DEFAULTS  # takes time: torch; the loader checks its arguments itself

        DEFAULTS.check(values_of(given))
        environment[VARIABLE] = as_text({**read_text(before), **given})
    except ConfigError as error:
        raise UsageError(str(error)) from error


def verify(options: argparse.Namespace, command: list[str]) -> int:
    """Check that a loader gives the same bits however it is run; if not, name the first stage that differs.

    It is run with several numbers and kinds of workers, sizes of chunks, prefetching, ranks, and a resume in the
    middle, and compared with the loader without workers, and with torch's. A script is run up to the loader that it
    iterates first.
    """
    from .verification.command import verify_target

    return verify_target(options, command, _starter())


def profile(options: argparse.Namespace, command: list[str]) -> int:
    """Run a script, and say what waiting for data costs it, why, and what a change would bring.

    The script needs no change and need not use fastload. Its worker processes, and the ranks that torchrun starts, are
    recorded too. Its output and its exit status stay its own; the status is 2 if nothing was recorded.
    """
    from .inject import put_first
    from .profiling.command import FolderError, record_script

    try:
        return record_script(options, _program(command, "profile"), command, put_first)
    except FolderError as error:
        raise UsageError(str(error)) from error


def whatif(options: argparse.Namespace, command: list[str]) -> int:
    """Predict how fast a recorded script would be with other settings, without running it; or name what helps most.

    The recorded run is played again, from what its samples took, first as it was: if that does not come out alike,
    nothing is predicted. With --rerun the script runs again with the change, unedited, and both numbers are printed.
    """
    from .errors import ConfigError
    from .inject import put_first
    from .profiling.command import FolderError
    from .profiling.whatif_command import Launcher, what_if

    try:
        return what_if(options, Launcher(lambda words: _program(words, "profile"), put_first, injected_environment))
    except (ConfigError, FolderError) as error:
        raise UsageError(str(error)) from error


def report(options: argparse.Namespace, command: list[str]) -> int:
    """Show again what a recording came to: as a card, a page, a trace for Perfetto, JSON, or TensorBoard's scalars."""
    from .profiling.command import report as show

    return show(options)


def compare(options: argparse.Namespace, command: list[str]) -> int:
    """Compare two recordings: the time of a step, its stall and what it was charged to, and the verdicts."""
    from .profiling.command import compare as compare_recordings

    return compare_recordings(options)


def pack(options: argparse.Namespace, command: list[str]) -> int:
    """Store the images of an ImageFolder tree in a few Arrow files, for slow disks and small CPUs.

    The files' bytes are stored as they are, or images are shrunk and encoded again, or their pixels are stored.
    """
    from .errors import ConfigError
    from .pack.command import pack_folder

    try:
        return pack_folder(options)
    except ConfigError as error:
        raise UsageError(str(error)) from error


def explain(options: argparse.Namespace, command: list[str]) -> int:
    """Print how the loaders of a script work, and what of their datasets is fused, or would be with fuse=True.

    A script runs unmodified up to the first batch that it asks for, and ends there: nothing is trained. At the end
    stands what would make the samples of that loader cheaper, measured on 64 of them here.
    """
    from .explain_command import explain_target

    return explain_target(options, command, _starter())


def tune(options: argparse.Namespace, command: list[str]) -> int:
    """Try what can be chosen about a loader on this machine, and say what is fastest with the same batches.

    Processes or threads, how many, fuse, seeding, chunk_size, resident and prefetch_factor are tried in turns. A script
    runs unmodified up to the first batch that it asks for, and ends there: nothing is trained.
    """
    from .tune.command import tune_target

    return tune_target(options, command, _starter())


def doctor(options: argparse.Namespace, command: list[str]) -> int:
    """Say what is there, what is missing, what that costs, and what to do about it.

    The status is 0 if everything works that is needed, 1 if something is broken.
    """
    from .doctor.command import examine_and_print

    if command:
        raise UsageError(f"it takes no arguments, got {' '.join(command)}")
    return examine_and_print(as_json=options.json)


def _starter() -> Any:
    """Return what starts the scripts of verify, explain and tune."""
    from .targets import Starter

    return Starter(_script, injected_environment)


def _program(command: list[str], verb: str = "run") -> list[str]:
    """Return the words to execute for what stands after ``fastload run`` (or another verb that takes programs).

    Raises:
        UsageError: nothing stands there, or no such script or program exists.
    """
    if not command or command in (["--"], ["-m"]):
        raise UsageError(f"a script, -m MODULE or -- PROGRAM is missing; see fastload {verb} --help")
    if command[0] == "--":
        if shutil.which(command[1]) is None:
            raise UsageError(f"no such program: {command[1]}")
        return command[1:]
    return _script(command, f"to {verb} a program write: fastload {verb} -- {{}}")


def _script(command: list[str], remedy: str = "name the script that this program starts") -> list[str]:
    """Return the words to execute for a script or a module.

    Args:
        command: ``["train.py", ...]`` or ``["-m", "module", ...]``.
        remedy: what to do where it names a program.

    Raises:
        UsageError: there is no such script.
    """
    if command[0] != "-m" and not os.path.exists(command[0]):
        words = f"; {remedy.format(command[0])}" if shutil.which(command[0]) else ""
        raise UsageError(f"no such script: {command[0]}{words}")
    return [sys.executable, *command]


def injected_environment(environment: MutableMapping[str, str]) -> None:
    """Change an environment so that the Python processes started in it use fastload in place of torch's DataLoader.

    Args:
        environment: ``FASTLOAD_INSTALL`` is set, and the folder of fastload's sitecustomize put first in
            ``PYTHONPATH``, unless it is there already.
    """
    from .inject import put_first

    put_first(environment)
    environment["FASTLOAD_INSTALL"] = "1"


def _become(program: list[str], environment: dict[str, str]) -> NoReturn:
    """Replace this process by ``program``; on Windows, which cannot, wait for it and take over its exit status."""
    sys.stdout.flush()
    sys.stderr.flush()
    if sys.platform == "win32":
        import subprocess

        sys.exit(subprocess.call(program, env=environment))
    # Python ignores SIGPIPE, and what is ignored stays so across exec: a shell pipeline would not end as it should.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvpe(program[0], program, environment)


if __name__ == "__main__":
    sys.exit(main())
