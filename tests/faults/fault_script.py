"""A script whose process is forked for each user. See fault_users.py."""

import gc
import json
import os
import signal
import sys

import fault_stories
from large_pages import gather_into_large_pages


def serve():
    """Fork and wait as asked; return, in a child, what it is to do."""
    codes = {}
    for line in sys.stdin:
        question = json.loads(line)
        if "poll" in question:
            pid = question["poll"]
            if pid not in codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[pid] = os.waitstatus_to_exitcode(status)
            answer = codes.get(pid)
        else:
            answer = os.fork()
            if answer == 0:
                return question
        print(json.dumps(answer), flush=True)
    return None


def become(question):
    """Turn this process into the user's: a group, a stderr and a transport of its own."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDWR)
    stderr = os.open(question["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for old, new in ((nothing, 0), (nothing, 1), (stderr, 2)):
        os.dup2(old, new)
    os.close(nothing)
    os.close(stderr)
    os.environ.pop("FASTLOAD_TRANSPORT", None)
    if question["transport"]:
        os.environ["FASTLOAD_TRANSPORT"] = question["transport"]
    return os.open(question["told"], os.O_WRONLY)


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # users share what is imported, also while they collect garbage
    gather_into_large_pages()
    question = serve()
    if question is not None:
        # At the top level, as in a user's script: what a story leaves in a global lives until the interpreter ends.
        told = become(question)
        story = getattr(fault_stories, question["start"])
        kept = story(lambda message: os.write(told, json.dumps(message).encode() + b"\n"), **question["options"])
