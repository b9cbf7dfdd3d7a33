"""The entries of one package as a tree: finds duplicates, missing parents and links that leave it. Standard library only.

Why not a set of path strings: 100,000 entries at the path limit would take 400 MiB. Here each name is kept once.
Why links are judged in memory and not by the file system: the answer cannot change between check and use, a chain of a
thousand links cannot exhaust the stack, and the same judge serves source folders and archives. Source: nemo.md 5.3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from seatrial.taskpkg.limits import DEFAULT

# The kernel's own bound (ELOOP); a longer chain cannot be opened anyway.
MAX_LINK_HOPS: Final = 40
# All links together. 100,000 ordinary links take 600,000 steps; targets made of "./" would take hours without a bound.
MAX_LINK_STEPS: Final = 5_000_000


class TreeError(ValueError):
    """An entry that cannot stand where it is; ``path`` starts with the root's name."""

    def __init__(self, message: str, path: str, *, is_duplicate: bool = False) -> None:
        super().__init__(message)
        self.path = path
        self.is_duplicate = is_duplicate


class Directory:
    """A real directory. ``children`` maps the case-folded name to a ``Directory``, a ``Link``, or a file's exact name."""

    __slots__ = ("children", "mode", "name", "parent")

    def __init__(self, name: str, parent: Directory | None, mode: int) -> None:
        self.name = name
        self.parent = parent
        self.mode = mode
        self.children: dict[str, Directory | Link | str] = {}

    def path(self) -> str:
        return "/".join(reversed([directory.name for directory in _ancestors(self)]))


class Link:
    """A symbolic link. Its target is not kept, it may be 4096 bytes long; ``resolved`` is what the link finally names."""

    __slots__ = ("name", "parent", "resolved")

    def __init__(self, name: str, parent: Directory) -> None:
        self.name = name
        self.parent = parent
        self.resolved: Directory | str | None = None

    def path(self) -> str:
        return f"{self.parent.path()}/{self.name}"


class Tree:
    """Grows entry by entry; parents come before their children."""

    def __init__(self, root_name: str, mode: int) -> None:
        self.root = Directory(root_name, None, mode)
        self.links: list[Link] = []
        self.directories: list[Directory] = [self.root]
        self.count = 1
        self._last_path = root_name
        self._last = self.root
        self._steps = 0

    def add_directory(self, path: str, mode: int) -> None:
        """Raises ``TreeError`` for a duplicate (ignoring case) or a parent that is not a known real directory."""
        parent, name = self._place(path)
        child = Directory(name, parent, mode)
        self._insert(parent, name, child, path)
        self.directories.append(child)

    def add_file(self, path: str) -> None:
        parent, name = self._place(path)
        self._insert(parent, name, name, path)

    def add_link(self, path: str) -> None:
        parent, name = self._place(path)
        link = Link(name, parent)
        self._insert(parent, name, link, path)
        self.links.append(link)

    def check_links(self, read_target: Callable[[str], str]) -> None:
        """Judge every link; call it when the tree is complete, because a later link can make an earlier one escape.

        ``read_target`` gives the target text of the link at a path of this tree. Kept: a relative target of at most 4096
        bytes that stays inside lexically and step by step, names something that exists, and is not a directory above the link.
        Raises ``TreeError`` with ``Symlink escapes task root``.
        """
        for path in self.bad_links(read_target):
            raise TreeError(f"Symlink escapes task root: {path}", path)

    def bad_links(self, read_target: Callable[[str], str]) -> Iterator[str]:
        """The paths of all links that ``check_links`` would refuse."""
        for link in self.links:
            if not self._stays_inside(link, read_target):
                yield link.path()

    def _stays_inside(self, link: Link, read_target: Callable[[str], str]) -> bool:
        target = read_target(link.path())
        depth = sum(1 for _ in _ancestors(link.parent)) - 1
        if not _is_contained_text(target, depth=depth):
            return False
        found = self._resolve(link, read_target)
        if found is None:
            return False
        return not (isinstance(found, Directory) and any(found is above for above in _ancestors(link.parent)))

    def _resolve(self, link: Link, read_target: Callable[[str], str]) -> Directory | str | None:
        """What ``link`` names in the end, or None if it dangles, loops or leaves the root on the way."""
        if link.resolved is not None:
            return link.resolved
        here: Directory = link.parent
        rest = deque(read_target(link.path()).split("/"))
        if self._steps > MAX_LINK_STEPS:
            raise TreeError("Links take too long to resolve", link.path())
        hops = 1
        found: Directory | str = here
        while rest:
            part = rest.popleft()
            self._steps += 1
            if isinstance(found, str):
                return None  # a file used as a directory, also by a trailing slash
            if part in ("", "."):
                continue
            if part == "..":
                if here.parent is None:
                    return None
                found = here = here.parent
                continue
            child = here.children.get(part.casefold())
            if child is None or _name(child) != part:
                return None
            if isinstance(child, Link):
                if child.resolved is not None:
                    found = child.resolved
                    if isinstance(found, Directory):
                        here = found
                    continue
                hops += 1
                text = read_target(child.path())
                if hops > MAX_LINK_HOPS or text.startswith("/"):
                    return None
                rest.extendleft(reversed(text.split("/")))
                continue
            found = child
            if isinstance(child, Directory):
                here = child
        link.resolved = found
        return found

    def _place(self, path: str) -> tuple[Directory, str]:
        parent_path, _, name = path.rpartition("/")
        if parent_path == self._last_path:  # entries come sorted, so this is the usual case
            return self._last, name
        parts = parent_path.split("/")
        node: Directory | None = self.root if parts[0] == self.root.name else None
        for part in parts[1:]:
            child = node.children.get(part.casefold()) if node is not None else None
            node = child if isinstance(child, Directory) and child.name == part else None
        if node is None or not name:
            raise TreeError("Missing parent or multiple archive roots", path)
        self._last_path, self._last = parent_path, node
        return node, name

    def _insert(self, parent: Directory, name: str, child: Directory | Link | str, path: str) -> None:
        key = name.casefold()
        if key in parent.children:
            raise TreeError("Duplicate or excessive archive entries", path, is_duplicate=True)
        # One string where both are equal, as they mostly are: it halves the memory of a large tree.
        parent.children[name if key == name else key] = child
        self.count += 1


def _name(child: Directory | Link | str) -> str:
    return child if isinstance(child, str) else child.name


def _ancestors(directory: Directory) -> Iterator[Directory]:
    node: Directory | None = directory
    while node is not None:
        yield node
        node = node.parent


def _is_contained_text(target: str, *, depth: int) -> bool:
    """True if ``target``, read from a directory ``depth`` levels below the root, never climbs above the root."""
    try:
        size = len(target.encode())
    except UnicodeEncodeError:
        return False
    if not target or size > DEFAULT.path_bytes or target.startswith("/") or "\0" in target:
        return False
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            return False
    return True
