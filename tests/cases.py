"""Runs the cases of a script of tests one after the other, says how each ended and counts them in the last line."""

import sys


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
