"""The documentation holds together: generated pages, links, navigation, and no command that the cluster tests do not run."""

from __future__ import annotations

import re

import yaml
from reference import __main__ as generator
from reference.troubleshooting import IN_THE_POD, REMEDIES
from tests import docpages, transcripts

from seatrial.api.reasons import Reason

from .conftest import REPOSITORY

GENERATED_ELSEWHERE = {"conformance", "benchmarks"}
INSIDE_A_POD = {"agent-images"}
"""Pages whose commands run in an agent's container, not in the reader's shell: the tests of that container run them."""


def test_generated_pages_are_those_of_the_code() -> None:
    assert {path.name: path.read_text() for path in generator.wanted()} == {path.name: text for path, text in generator.wanted().items()}


def test_every_reason_has_an_entry() -> None:
    assert [reason for reason in Reason if not REMEDIES.get(reason, "").endswith(".")] == []


def test_every_reason_of_the_runner_has_an_entry() -> None:
    sources = (REPOSITORY / "runner-image" / "src" / "seatrial_runner").glob("*.py")
    given = {reason for source in sources for reason in re.findall(r'reason="(\w+)"', source.read_text())}
    assert len(given) > 10
    assert given - set(Reason) == set(IN_THE_POD)


def test_links_lead_to_pages_that_exist() -> None:
    pages = docpages.pages()
    local = [
        (name, target.partition("#")[0])
        for name, text in pages.items()
        for target in docpages.links(text)
        if "://" not in target and not target.startswith("#")
    ]
    assert len(local) > 40
    missing = [
        (name, target)
        for name, target in local
        if not (docpages.DOCS / name).parent.joinpath(target).exists() and target.removesuffix(".md") not in GENERATED_ELSEWHERE
    ]
    assert missing == []


def test_every_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())

    def leaves(item: object) -> list[str]:
        if isinstance(item, dict):
            return [leaf for value in item.values() for leaf in leaves(value)]
        if isinstance(item, list):
            return [leaf for value in item for leaf in leaves(value)]
        return [str(item)]

    shown = {leaf.removesuffix(".md") for leaf in leaves(config["nav"])}
    assert {name for name in docpages.pages() if "/" not in name} | GENERATED_ELSEWHERE == shown


def test_the_transcript_shows_the_commands_of_its_pages() -> None:
    pages = docpages.pages()
    wanted = [command for page in transcripts.TUTORIAL for command in docpages.commands("\n".join(docpages.blocks(pages[page], "bash")))]
    shown = [command for text in docpages.blocks(pages["transcript"], "text") for command in transcripts.commands(text)]
    assert len(wanted) > 20
    assert shown == wanted


def test_the_page_of_licences_has_every_package_of_the_lock() -> None:
    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    locked = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (REPOSITORY / "requirements" / "operator.txt").read_text(), re.MULTILINE)
    shown = re.findall(r"^\| (\S+) \| (\S+) \|", docpages.pages()["licences"], re.MULTILINE)
    assert {(plain(name), version) for name, version in locked} == {
        (plain(name), version) for name, version in shown if name not in ("component", "std")
    }


def test_every_command_is_on_a_page_that_is_executed() -> None:
    pages = docpages.pages()
    with_commands = {name for name, text in pages.items() if docpages.blocks(text, "bash")}
    assert with_commands - GENERATED_ELSEWHERE - INSIDE_A_POD == set(docpages.WALK)
    # Other shells' fences would hide commands from that rule.
    hidden = {name for name, text in pages.items() for language in ("sh", "console", "shell") if docpages.blocks(text, language)}
    assert hidden - GENERATED_ELSEWHERE == set()
