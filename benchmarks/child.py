"""The process in which measurements happen: ``python -m benchmarks.child MODULE``, started by the runner.

It imports the module, if one is named, before it is asked for anything.

Each line of standard input is a request: ``{"measure": "module:function", "arguments": {...}, "side": {...}}``. Each
is answered by a line on standard output: ``{"measurement": {...}}``, or ``{"error": "..."}`` with a traceback. Whatever
else is printed in this process goes to standard error. The process ends with its standard input.
"""

import contextlib
import gc
import importlib
import json
import os
import sys
import traceback

from benchmarks.spec import Side


def main() -> None:
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if sys.argv[1]:
        with contextlib.suppress(Exception):  # the answer to the first request says what is wrong
            importlib.import_module(sys.argv[1])
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        try:
            module, _, function = request["measure"].partition(":")
            measure = getattr(importlib.import_module(module), function)
            answer = {"measurement": measure(Side(**request["side"]), **request["arguments"])}
        except Exception:
            answer = {"error": traceback.format_exc()}
        results.write(json.dumps(answer, default=str) + "\n")
        results.flush()
        # What one measurement leaves to the collector must not be collected at the next one's expense.
        gc.collect()


if __name__ == "__main__":
    main()
