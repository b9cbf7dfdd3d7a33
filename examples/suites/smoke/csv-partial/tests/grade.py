"""Grade clean.csv: one reward a property, and the share that holds as the primary reward."""

import json
from pathlib import Path


def read(path: str) -> list[list[str]]:
    """Rows of a simple comma-separated file; empty when it is missing."""
    file = Path(path)
    return [line.split(",") for line in file.read_text().splitlines()] if file.is_file() else []


rows = read("/app/clean.csv")
names = [row[0] for row in rows[1:]]
checks = {
    "header": rows[:1] == [["name", "age"]],
    "sorted": len(names) > 1 and names == sorted(names, key=str.lower),
    "complete": len(rows) > 1 and all(len(row) == 2 and row[1] for row in rows),
    "lower_case": len(names) > 0 and names == [name.lower() for name in names],
}
rewards = {"reward": sum(checks.values()) / len(checks)} | {name: int(held) for name, held in checks.items()}
Path("/logs/verifier/reward.json").write_text(json.dumps(rewards))
