"""Runs the cases of a test script in order, reports each result, and the counts in the last line."""

import os
import sys
import time

# A wait for what has to happen: no test judges by the clock, but each wait has an end.
PATIENCE = 180


class Skipped(Exception):
    """Skips a case that cannot run here, with the reason."""


def skip(why):
    """Reports that nothing can be tested here, and why; `scripts/test` repeats it in its summary."""
    print("0 passed, 0 failed")
    tell_skipped(why)


def tell_skipped(why):
    """Reports what was not tested."""
    print(f"skipped: {why}")
    if "STDIO_BUS_SKIPPED" in os.environ:
        with open(os.environ["STDIO_BUS_SKIPPED"], "a") as file:
            file.write(why.replace("\n", " ") + "\n")


def waits_for(happened, what):
    """Waits until it has happened. `what` says what did not, or makes that text."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.2)


def run(tests, *arguments):
    failed = 0
    for test in tests:
        try:
            test(*arguments)
            print(f"test {test.__name__} ... ok")
        except Exception as error:  # Any failure is reported, and the next test runs.
            failed += 1
            print(f"test {test.__name__} ... FAILED\n{type(error).__name__}: {error}")
    print(f"{len(tests) - failed} passed, {failed} failed")
    sys.exit(failed != 0)
