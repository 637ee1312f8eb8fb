"""MCP over Streamable HTTP with other projects' programs: the conformance suite, the official clients and servers, the
inspector, HAProxy; and with attacks and chaos.

run.py [PART]: only the cases with PART in their name; `run.py --reference PART` runs those that can against the SDK's own
HTTP instead of the daemon. STDIO_BUS names the daemon's program, STDIO_BUS_MCP_NODE a Node.js that the suite runs on, and
STDIO_BUS_MCP_VENVS the directory of the virtual environments `1` and `2` with both lines of Python's `mcp`.
"""

import asyncio
import os
import resource
import sys
import time
import traceback

from mcp_site import Reference, Site, everything

import attacks
import cases
import chaos
import clients
import crowds
import front
import late
import restarts
import suite
from wire import Cut


def of_everything(settings=None):
    # Sixteen clients at once, and what others leave behind for a moment.
    own = everything("own", "dedicated", instances=2, max_instances=40)
    return Site([own, everything("shared", "client")], limits={"drain_timeout_sec": 5, **(settings or {})})


GROUPS = [
    # The target, whether the reference can be one, and the cases.
    (of_everything, True, lambda: suite.cases(["own", "shared"])),
    (of_everything, True, clients.cases),
    (None, False, clients.servers),
    (None, False, front.cases),
    (attacks.site, False, attacks.cases),
    (None, False, crowds.cases),
    (None, False, chaos.cases),
    (None, False, late.cases),
    (None, False, restarts.cases),
]


async def within_site(site, case):
    await site.ready()
    return await case(site)


def perform(name, case, *arguments):
    begun = time.monotonic()
    try:
        told = asyncio.run(case(*arguments))
        verdict = "ok"
    except cases.Skipped as why:
        told, verdict = None, "skipped"
        cases.tell_skipped(f"{name}: {why}")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if isinstance(error, (AssertionError, Cut)):
            place = traceback.extract_tb(error.__traceback__)[-1]
            print(f"{os.path.basename(place.filename)}:{place.lineno}: {error or place.line}")
        else:
            traceback.print_exc(file=sys.stdout)
        told, verdict = None, "FAILED"
    print(f"test {name} ... {verdict} ({time.monotonic() - begun:.1f} s)" + (f": {told}" if told else ""), flush=True)
    return verdict


def perform_on(make, wanted):
    """Runs these cases in order. After a failure there is a new site, since the old one may be affected."""
    verdicts, left = [], list(wanted)
    while left:
        try:
            with make() as site:
                while left:
                    name, case = left.pop(0)
                    verdicts.append(perform(name, lambda s, c=case: within_site(s, c), site))
                    if verdicts[-1] == "FAILED":
                        break
        except Exception:
            # It did not start, or did not exit properly.
            traceback.print_exc(file=sys.stdout)
            verdicts.append("FAILED")
            if not verdicts[:-1]:
                break
    return verdicts


def main():
    arguments = sys.argv[1:]
    is_reference = arguments[:1] == ["--reference"]
    part = arguments[-1] if len(arguments) > is_reference else ""
    # The tests open thousands of connections.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    verdicts = []
    for make, will_do, listed in GROUPS:
        wanted = [(name, case) for name, case in listed() if part in name]
        if not wanted or (is_reference and not will_do):
            continue
        if make is None:
            verdicts += [perform(name, case) for name, case in wanted]
            continue
        verdicts += perform_on(Reference if is_reference else make, wanted)
    failed = verdicts.count("FAILED")
    print(f"{len(verdicts) - failed - verdicts.count('skipped')} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
