"""The process in which measurements happen: ``python -m benchmarks.child``, started by the runner.

In: lines of JSON on standard input, ``{"measure": "module:function", "arguments": {...}, "sides": [...]}`` each, until
its end. Out: for each entry of ``sides``, in order, one line of JSON on standard output: ``{"measurement": {...}}``, or
``{"error": "..."}`` with a traceback. Whatever else is printed in this process goes to standard error.
"""

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
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        try:
            module, _, function = request["measure"].partition(":")
            measure = getattr(importlib.import_module(module), function)
        except Exception:
            measure, failure = None, traceback.format_exc()
        for side in request["sides"]:
            if measure is not None:
                try:
                    answer = {"measurement": measure(Side(**side), **request["arguments"])}
                except Exception:
                    answer = {"error": traceback.format_exc()}
            else:
                answer = {"error": failure}
            results.write(json.dumps(answer, default=str) + "\n")
            results.flush()
            # What one side leaves to the collector must not be collected at the other's expense.
            gc.collect()


if __name__ == "__main__":
    main()
