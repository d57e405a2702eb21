import threading

import torch

from fastload.base import compat


def test_a_thread_with_one_torch_thread_leaves_all_others_as_they_are():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    found = {}

    def limited(name: str, ready: threading.Barrier) -> None:
        ready.wait()
        compat.use_one_torch_thread()
        found[name] = torch.get_num_threads()
        ready.wait()
        found[name, "later"] = torch.get_num_threads()

    def note(name: str) -> None:
        found[name] = torch.get_num_threads()

    try:
        ready = threading.Barrier(2)
        both = [threading.Thread(target=limited, args=(name, ready)) for name in ("one", "other")]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        new = threading.Thread(target=note, args=("new",))
        new.start()
        new.join()
        note("main")
    finally:
        torch.set_num_threads(before)
    assert found == {"one": 1, "other": 1, ("one", "later"): 1, ("other", "later"): 1, "new": 3, "main": 3}
