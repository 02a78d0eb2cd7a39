"""Worker processes: how many there may be, and what ends them."""

import multiprocessing
import os
import threading


def cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def die_with_parent() -> None:
    """End this worker when its parent is gone, even by SIGKILL: nobody would collect its work."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
