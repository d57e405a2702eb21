import threading

import torch

from fastload.base.torch_threads import use_one_torch_thread


def test_a_thread_with_one_torch_thread_leaves_all_others_as_they_are():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    found: dict[str, int] = {}

    barrier = threading.Barrier(3)

    def note(name: str, limit: bool) -> None:
        barrier.wait()
        if limit:
            use_one_torch_thread()
        barrier.wait()
        found[name] = torch.get_num_threads()

    try:
        threads = [threading.Thread(target=note, args=(name, name != "new")) for name in ("one", "other", "new")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found["main"] = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    assert found == {"one": 1, "other": 1, "new": 3, "main": 3}
