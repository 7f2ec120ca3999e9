"""How much memory some work needs, for the tests that bound it."""

import gc
import pathlib
import threading
import time

STATUS, COUNTERS = pathlib.Path("/proc/self/status"), pathlib.Path("/proc/self/io")


def anonymous():
    """MiB of memory that no file stands behind."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


def peak(work):
    """The most that `work()` needs on top, sampled."""
    gc.collect()
    before, highest, done = anonymous(), 0.0, threading.Event()

    def watch():
        nonlocal highest
        while not done.is_set():
            highest = max(highest, anonymous())
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return highest - before


def bytes_read():
    """Bytes that this process has read from files so far."""
    (line,) = (line for line in COUNTERS.read_text().splitlines() if line.startswith("rchar"))
    return int(line.split()[1])
