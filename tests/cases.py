"""Runs the cases of a script of tests one after the other, says how each ended and counts them in the last line."""

import os
import sys


class Skipped(Exception):
    """One case cannot run here, and why."""


def skip(why):
    """Says that nothing can be tested here, and why; `scripts/test` repeats it where everybody sees it."""
    print("0 passed, 0 failed")
    tell_skipped(why)


def tell_skipped(why):
    """Says what was not tested."""
    print(f"skipped: {why}")
    if "STDIO_BUS_SKIPPED" in os.environ:
        with open(os.environ["STDIO_BUS_SKIPPED"], "a") as file:
            file.write(why.replace("\n", " ") + "\n")


def run(tests, *arguments):
    failed = 0
    for test in tests:
        try:
            test(*arguments)
            print(f"test {test.__name__} ... ok")
        except Exception as error:  # Every kind of failure is told, and the next test runs.
            failed += 1
            print(f"test {test.__name__} ... FAILED\n{type(error).__name__}: {error}")
    print(f"{len(tests) - failed} passed, {failed} failed")
    sys.exit(failed != 0)
