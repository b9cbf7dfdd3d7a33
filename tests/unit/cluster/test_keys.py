"""Cache keys of binaries and images: the same content gives the same key, any change that matters another."""

from __future__ import annotations

from pathlib import Path

import pytest
from localcluster import imagespec
from localcluster.gobuild import BINARIES, Binary, build, find_go, key_of, module_folder, parse_go_version
from localcluster.images import Built, Store, pip_configuration, place
from localcluster.imagespec import context_of, task_images, tree_key
from localcluster.settings import ClusterError, Settings, load


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# --- binaries

MODULE = {"go.mod": "module m\n", "main.go": "package main\n"}


@pytest.mark.parametrize(
    ("name", "text", "same"),
    [
        pytest.param("main.go", "package main // more\n", False, id="source"),
        pytest.param("go.sum", "x\n", False, id="locked-dependencies"),
        pytest.param("main_test.go", "package main\n", True, id="tests-are-not-in-the-binary"),
        pytest.param("README.md", "x\n", True, id="prose-is-not-in-the-binary"),
    ],
)
def test_a_binarys_key_follows_what_is_compiled(name: str, text: str, same: bool, tmp_path: Path) -> None:
    binary = Binary("m", "m", ".")
    before = key_of(binary, folder=write(tmp_path, MODULE), go_version=(1, 25))
    after = key_of(binary, folder=write(tmp_path, {name: text}), go_version=(1, 25))
    assert (before == after) is same


def test_another_go_makes_another_binary(tmp_path: Path) -> None:
    binary, folder = Binary("m", "m", "."), write(tmp_path, MODULE)
    assert key_of(binary, folder=folder, go_version=(1, 25, 1)) != key_of(binary, folder=folder, go_version=(1, 25, 2))


@pytest.mark.parametrize(
    ("text", "version"),
    [("go version go1.26.8 linux/amd64", (1, 26, 8)), ("go1.25", (1, 25)), ("gcc 12", ())],
)
def test_go_versions_are_read(text: str, version: tuple[int, ...]) -> None:
    assert parse_go_version(text) == version


def test_every_module_exists_and_is_locked(checkout: Path) -> None:
    for binary in BINARIES.values():
        folder = module_folder(binary, checkout)
        assert (folder / "go.mod").is_file(), binary.name
        without_dependencies = "require" not in (folder / "go.mod").read_text()
        assert without_dependencies or (folder / "go.sum").is_file(), binary.name


def test_an_unknown_binary_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="no binary 'docker'; there are collector, coredns, "):
        build(load({}, checkout=tmp_path), "docker")


def test_a_go_that_is_too_old_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "path" / "go"
    write(tmp_path, {"path/go": "#!/bin/sh\necho go version go1.19.8 linux/amd64\n", "cache/go/1.25.5/bin/go": ""})
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{old.parent}:/usr/bin:/bin")
    settings = Settings(checkout=tmp_path, state_dir=tmp_path, cache_dir=tmp_path / "cache", provider="auto", max_pods=1)
    assert find_go(settings) == str(tmp_path / "cache/go/1.25.5/bin/go")


# --- images


def test_a_trees_key_follows_names_modes_and_content(tmp_path: Path) -> None:
    root = write(tmp_path, {"d/a": "1", "d/b": "2"})
    keys = [tree_key([root / "d"], root=root)]
    (root / "d" / "a").chmod(0o755)
    keys.append(tree_key([root / "d"], root=root))
    (root / "d" / "b").rename(root / "d" / "c")
    keys.append(tree_key([root / "d"], root=root))
    (root / "d" / "c").write_text("3")
    keys.append(tree_key([root / "d"], root=root))
    assert len(set(keys)) == 4


def test_caches_of_tools_change_no_key(tmp_path: Path) -> None:
    root = write(tmp_path, {"d/a.py": "1"})
    before = tree_key([root / "d"], root=root)
    write(root, {"d/__pycache__/a.cpython-311.pyc": "x", "d/.ruff_cache/x": "y"})
    assert tree_key([root / "d"], root=root) == before


def test_a_link_is_content_and_is_not_followed(tmp_path: Path) -> None:
    root = write(tmp_path, {"d/a": "1", "outside/secret": "x"})
    (root / "d" / "link").symlink_to(root / "outside")
    assert [path.name for path in imagespec.files_of([root / "d"])] == ["a", "link"]


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="nowhere: missing"):
        tree_key([tmp_path / "nowhere"], root=tmp_path)


def suite_task(root: Path, task: str, *, image: str, dockerfile: str = "FROM x\n") -> None:
    write(
        root,
        {
            f"examples/suites/s/{task}/task.toml": f'[environment]\ndocker_image = "{image}"\n',
            f"examples/suites/s/{task}/environment/Dockerfile": dockerfile,
        },
    )


def test_tasks_with_a_local_image_and_a_dockerfile_are_built(tmp_path: Path) -> None:
    suite_task(tmp_path, "ours", image="seatrial.local/s/ours:dev")
    suite_task(tmp_path, "public", image="docker.io/library/debian:12")
    write(tmp_path, {"tests/e2e/suites/t/deep/task.toml": '[environment]\ndocker_image = "seatrial.local/t/deep:dev"\n'})
    write(tmp_path, {"tests/e2e/suites/t/deep/environment/Dockerfile": "FROM x\n", "examples/suites/s/broken/task.toml": "= not toml"})
    assert [image.name for image in task_images(tmp_path)] == ["seatrial.local/s/ours:dev", "seatrial.local/t/deep:dev"]


def test_tasks_may_share_an_image_of_the_same_content(tmp_path: Path) -> None:
    suite_task(tmp_path, "one", image="seatrial.local/s/shared:dev")
    suite_task(tmp_path, "two", image="seatrial.local/s/shared:dev")
    assert [image.name for image in task_images(tmp_path)] == ["seatrial.local/s/shared:dev"]


def test_one_name_for_two_contents_is_refused(tmp_path: Path) -> None:
    suite_task(tmp_path, "one", image="seatrial.local/s/shared:dev")
    suite_task(tmp_path, "two", image="seatrial.local/s/shared:dev", dockerfile="FROM y\n")
    with pytest.raises(ClusterError, match=r"seatrial\.local/s/shared:dev is also that of .*/one, with other content"):
        task_images(tmp_path)


def test_an_unknown_image_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    suite_task(tmp_path, "one", image="seatrial.local/s/one:dev")
    with pytest.raises(ClusterError, match="no image two; there are operator, runner, s/one"):
        imagespec.select(tmp_path, ["two"])


def test_images_are_found_by_short_and_full_name(tmp_path: Path) -> None:
    names = [image.name for image in imagespec.select(tmp_path, ["operator", "seatrial.local/runner:dev"])]
    assert names == ["seatrial.local/operator:dev", "seatrial.local/runner:dev"]


def test_a_new_base_makes_every_image_anew(tmp_path: Path) -> None:
    suite_task(tmp_path, "one", image="seatrial.local/s/one:dev")
    (image,) = task_images(tmp_path)
    keys = {context_of(image, checkout=tmp_path, base_key=base, binaries={}).key for base in ("b1", "b2", "b1")}
    assert len(keys) == 2


def test_a_context_holds_the_sources_and_binaries_and_nothing_else(tmp_path: Path) -> None:
    root = write(
        tmp_path / "repo",
        {
            "runner-image/Dockerfile": "FROM x\n",
            "runner-image/src/p/a.py": "1",
            "operator/src/q/b.py": "2",
            "requirements/operator.txt": "",
            "secret": "x",
        },
    )
    envd = write(tmp_path / "bin", {"key/envd": "binary"}) / "key" / "envd"
    (runner,) = imagespec.select(root, ["runner"])
    place(context_of(runner, checkout=root, base_key="b", binaries={"envd": envd}), tmp_path / "context")
    placed = sorted(str(path.relative_to(tmp_path / "context")) for path in (tmp_path / "context").rglob("*") if path.is_file())
    assert placed == [
        "build/envd",
        "operator/src/q/b.py",
        "requirements/operator.txt",
        "runner-image/Dockerfile",
        "runner-image/src/p/a.py",
    ]


def test_builds_reach_the_package_index_as_the_machine_does(tmp_path: Path) -> None:
    files = write(tmp_path, {"pip.conf": "[global]\nindex-url = https://index.example/simple\ncert = /own/ca.crt\nfind-links = /wheels\n"})
    text = pip_configuration({"PIP_TIMEOUT": "90"}, files=[files / "pip.conf", files / "missing"])
    assert text == "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\nindex-url = https://index.example/simple\ntimeout = 90\n"


# --- the store of built images


def add(store: Store, name: str, key: str, *, layer: str) -> Built:
    """An image of one layer in the layout."""
    blobs = store.layout / "blobs" / "sha256"
    write(blobs, {f"config-{key}": "{}", layer: "layer"})
    digest = f"sha256:manifest-{key}"
    manifest = f'{{"config": {{"digest": "sha256:config-{key}"}}, "layers": [{{"digest": "sha256:{layer}"}}]}}'
    write(blobs, {f"manifest-{key}": manifest})
    built = Built(name=name, key=key, digest=digest)
    store.add(built)
    return built


def test_a_store_finds_an_image_by_name_and_key(tmp_path: Path) -> None:
    store = Store(tmp_path)
    built = add(store, "a:dev", "k1", layer="l1")
    assert (store.find("a:dev", "k1"), store.find("a:dev", "k2"), store.find("b:dev", "k1")) == (built, None, None)


def test_a_store_forgets_the_oldest_builds_and_their_blobs_but_not_shared_ones(tmp_path: Path) -> None:
    store = Store(tmp_path)
    add(store, "base:12", "base", layer="shared")
    for number in range(4):
        add(store, "a:dev", f"k{number}", layer="shared" if number % 2 else f"own{number}")
    kept = {path.name for path in (store.layout / "blobs" / "sha256").iterdir()}
    assert store.find("a:dev", "k0") is None
    assert [key for key in ("k1", "k2", "k3") if store.find("a:dev", key)] == ["k1", "k2", "k3"]
    assert kept == {"shared", "own2", *(f"{part}-{key}" for part in ("config", "manifest") for key in ("base", "k1", "k2", "k3"))}


def test_an_export_leaves_out_what_the_node_has(tmp_path: Path) -> None:
    import tarfile

    store = Store(tmp_path / "store")
    built = add(store, "a:dev", "k1", layer="l1")
    store.export([built], tmp_path / "all.tar", without=set())
    store.export([built], tmp_path / "some.tar", without={"sha256:l1"})
    with tarfile.open(tmp_path / "all.tar") as whole, tarfile.open(tmp_path / "some.tar") as part:
        assert set(whole.getnames()) - set(part.getnames()) == {"blobs/sha256/l1"}
