"""The site: scripts/site builds it, and notices links and anchors that lead nowhere.

    tests/site.py
"""

import glob
import os
import shutil
import subprocess
import sys
import tempfile

import cases

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def built(*folder):
    return subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "site"), *folder], capture_output=True, text=True, timeout=900)


def documents(folder, **pages):
    """Makes documents of these pages in a folder."""
    os.makedirs(os.path.join(folder, "docs"))
    shutil.copy(os.path.join(ROOT, "docs", "book.toml"), os.path.join(folder, "docs"))
    with open(os.path.join(folder, "README.md"), "w") as file:
        file.write("# Home\n\n[a](docs/a.md#a-heading), [all](docs)\n")
    with open(os.path.join(folder, "docs", "SUMMARY.md"), "w") as file:
        file.write("# Summary\n\n[Home](../README.md)\n" + "".join(f"- [{name}]({name}.md)\n" for name in pages))
    for name, text in pages.items():
        with open(os.path.join(folder, "docs", f"{name}.md"), "w") as file:
            file.write(text)
    subprocess.run(["git", "init", "--quiet", folder], check=True)


def the_documents_make_a_site_without_a_broken_link():
    done = built()
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout.splitlines()[0])


def a_link_or_an_anchor_that_leads_nowhere_is_named_with_its_line():
    with tempfile.TemporaryDirectory() as folder:
        documents(folder, a="# A heading\n\n[home](../README.md#home)\n\n[a](b.md#no)\n", b="# B\n\n[a](a.md)\n[a](gone.md)\n![a](gone.png)\n")
        done = built(folder)
        expected = ["docs/a.md:5: docs/b.html#no: no such anchor", "docs/b.md:4: docs/gone.html: no such file",
                    "docs/b.md:5: docs/gone.png: no such file"]
        assert (done.returncode, sorted(done.stderr.splitlines())) == (1, expected), done


def a_page_that_the_table_of_contents_does_not_name_is_named():
    with tempfile.TemporaryDirectory() as folder:
        documents(folder, a="# A heading\n")
        with open(os.path.join(folder, "docs", "other.md"), "w") as file:
            file.write("# Other\n")
        done = built(folder)
        assert (done.returncode, done.stderr) == (1, "docs/other.md:1: docs/SUMMARY.md does not name this page\n"), done


def the_search_knows_each_heading():
    with tempfile.TemporaryDirectory() as folder:
        documents(folder, a="# A heading\n\ntext\n\n## Below it\n\nmore\n")
        done = built(folder)
        assert done.returncode == 0, done
        (index,) = glob.glob(f"{folder}/target/site/html/searchindex-*.js")
        with open(index) as file:
            text = file.read()
        assert all(each in text for each in ["index.html#home", "docs/a.html#a-heading", "docs/a.html#below-it"]), text[:2000]


cases.run([
    the_documents_make_a_site_without_a_broken_link,
    a_link_or_an_anchor_that_leads_nowhere_is_named_with_its_line,
    a_page_that_the_table_of_contents_does_not_name_is_named,
    the_search_knows_each_heading,
])
