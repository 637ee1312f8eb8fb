"""MCP's conformance suite, @modelcontextprotocol/conformance, against an MCP listener: every scored scenario of a
revision, without expected failures, except what a shared server of the older era inherently lacks.
"""

import asyncio
import os
import re
import subprocess
import tempfile

from mcp_site import HERE, NODE
from wire import PATIENCE, Client

REVISIONS = ["2025-11-25", "2026-07-28"]
PROGRAM = os.path.join(HERE, "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js")
DOCUMENT = os.path.join(os.path.dirname(os.path.dirname(HERE)), "docs", "mcp.md")


def lacking():
    """The scenarios of the older era that a shared server fails according to docs/mcp.md."""
    with open(DOCUMENT) as file:
        text = file.read()
    section = re.search(r"^## What a shared legacy server lacks$(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert section, "docs/mcp.md has no section on what a shared legacy server lacks"
    # The second cell of each row.
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|", section[1], re.M)
    return {name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row)}


def run(url, revision):
    """Whether each scenario passed, according to the suite. Unscored ones are omitted."""
    with tempfile.TemporaryDirectory() as folder:
        command = [NODE, PROGRAM, "server", "--url", url, "--requirements", revision, "-o", folder]
        try:
            done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=2.5 * PATIENCE)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"the suite hung:\n{(late.stdout or b'').decode()[-2000:]}") from None
        found = dict(re.findall(r"^[✓✗] ([a-z0-9-]+): \d+ passed, (\d+) failed", done.stdout, re.M))
        assert found, f"the suite says nothing:\n{done.stdout[-1000:]}{done.stderr[-1000:]}"
        unscored = set(re.findall(r"^  [✓✗] ([a-z0-9-]+) \(", done.stdout, re.M))
        return {name: failed == "0" for name, failed in found.items() if name not in unscored}


def explain(url, revision, scenario):
    """The messages of a scenario's failing checks."""
    with tempfile.TemporaryDirectory() as folder:
        command = [NODE, PROGRAM, "server", "--url", url, "--scenario", scenario, "--spec-version", revision]
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=2 * PATIENCE)
        said = re.sub(r"\x1b\[\d+m", "", done.stdout)
        return "\n".join(line for line in said.splitlines() if "FAILURE" in line or "Error" in line)[:2000]


async def passes(site, pool, revision, missing=frozenset()):
    """Every scored scenario passes except these, and these fail."""
    url = site.url(pool)
    verdicts = await asyncio.to_thread(run, url, revision)
    wrong = {name for name, passed in verdicts.items() if passed == (name in missing)}
    unknown = missing - set(verdicts)
    assert not unknown, f"there are no such scenarios: {sorted(unknown)}"
    told = [f"{name} {'passes' if name in missing else 'fails: ' + await asyncio.to_thread(explain, url, revision, name)}"
            for name in sorted(wrong)]
    assert not wrong, "\n".join(told)
    return f"{len(verdicts)} scenarios, {len(missing)} of them fail as documented"


def cases(pools):
    for pool in pools:
        for revision in REVISIONS:
            async def case(site, pool=pool, revision=revision):
                if pool != "shared" or revision != REVISIONS[0] or not site.shares:
                    return await passes(site, pool, revision)
                # With a server of its own a client lacks nothing: another client has to be there.
                other = await Client(site.url(pool), name="the other one").begin()
                try:
                    return await passes(site, pool, revision, frozenset(lacking()))
                finally:
                    await other.end()
            yield f"the_conformance_suite_of_{revision}_passes_in_a_{pool}_pool", case
