"""``python3 tests/cluster COMMAND``: the local cluster of this checkout."""

from localcluster.cli import run

if __name__ == "__main__":
    run()
