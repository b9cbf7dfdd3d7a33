"""What a Harbor task may ask for, on the real cluster: kinds of images, users, steps, variables, endings.

All tasks run in a few jobs, because a job costs more than a trial; each test reads its own row.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .cases import IMAGE, NAMESPACE, PASS, Finished, case, run_job
from .harness import REPOSITORY, Cluster, evaljob, unique, wait_until

pytestmark = pytest.mark.cluster
NOT_ROOT = "seatrial.local/life/not-root:dev"
# --- images --------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def images(life: Cluster) -> Finished:
    return run_job(life, REPOSITORY / "tests/e2e/suites/life", "images")


@pytest.mark.conforms("H-35")
@pytest.mark.parametrize("task", ["stays-up", "sets-up"])
def test_an_entrypoint_is_kept_whether_it_runs_its_arguments_or_not(images: Finished, task: str) -> None:
    assert images[task] == (1.0, None)


def test_an_entrypoint_that_exits_at_once_is_no_timeout(images: Finished) -> None:
    assert images["exits"] == (None, "EnvironmentExited")
    row = images.rows["exits"]
    assert row["error"]["cause"] == "environment"
    assert "exited with code 3" in row["error"]["message"]


@pytest.mark.conforms("H-47")
def test_root_steps_work_in_an_image_whose_user_is_not_root(images: Finished) -> None:
    assert images["not-root"] == (1.0, None)


@pytest.mark.conforms("H-38")
def test_an_image_without_bash_runs_its_commands_with_sh(images: Finished) -> None:
    assert images["no-bash"] == (1.0, None)


def test_an_image_without_a_shell_is_refused_by_name(images: Finished) -> None:
    assert images["no-shell"] == (None, "CommandNotStarted")
    assert "neither bash nor sh" in images.rows["no-shell"]["error"]["message"]


# --- tasks ---------------------------------------------------------------------------------------------------------------------------


def _steps(folder: Path) -> None:
    first = '[[steps]]\nname = "first"\n[steps.agent]\ntimeout_sec = 60.0\n'
    second = '[[steps]]\nname = "second"\nmin_reward = 0.5\n[steps.agent]\nuser = "nobody"\ntimeout_sec = 60.0\n'
    third = '[[steps]]\nname = "third"\n'
    case(folder, "steps", sections=f'[agent]\ntimeout_sec = 60.0\n{first}{second}{third}', files={
        "steps/first/instruction.md": "first",
        "steps/first/workdir/setup.sh": "id -un > /app/first; echo set > /app/state\n",
        "steps/first/tests/test.sh": '#!/bin/sh\n[ "$(cat /app/first)" = root ] && echo 1 > /logs/verifier/reward.txt\n',
        "steps/second/instruction.md": "second",
        "steps/second/solution/solve.sh": "#!/bin/sh\nid -un; cat /app/state\n",
        "steps/second/tests/test.sh": '#!/bin/sh\n[ "$(cat /logs/agent/oracle.txt)" = "nobody\nset" ] && '
        "echo 0.25 > /logs/verifier/reward.txt\n",
        "steps/third/instruction.md": "third",
    })  # fmt: skip
    many = "".join(f'[[steps]]\nname = "s{number}"\n' for number in range(19))
    steps = {f"steps/s{number}/instruction.md": "x" for number in range(19)}
    tests = {f"steps/s{number}/tests/test.sh": f"#!/bin/sh\necho {number} > /logs/verifier/reward.txt\n" for number in range(19)}
    case(folder, "nineteen", sections=f"[agent]\ntimeout_sec = 60.0\n{many}", files={**steps, **tests})
    text = (folder / "nineteen/task.toml").read_text()
    (folder / "nineteen/task.toml").write_text(text.replace("artifacts = []", 'multi_step_reward_strategy = "final"', 1))
    case(folder, "bad-setup", sections='[agent]\ntimeout_sec = 60.0\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n', files={
        "steps/one/instruction.md": "one",
        "steps/two/instruction.md": "two",
        "steps/two/workdir/setup.sh": "exit 1\n",
    })  # fmt: skip


@pytest.fixture(scope="module")
def cases(life: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("cases")
    _steps(folder)
    case(
        folder,
        "users",
        solve='echo "$(id -u):$HOME" > /app/agent',
        test='[ "$(cat /app/agent)" = "4321:/" ] && [ "$(id -un)" = nobody ] && echo 1 > /logs/verifier/reward.txt',
        files={"environment/.keep": ""},
        sections='[agent]\ntimeout_sec = 60.0\nuser = 4321\n[verifier]\nuser = "nobody"\n[environment.healthcheck]\n'
        'command = "chmod 777 /app && test -d /logs/agent"\n',
    )
    case(
        folder,
        "as-root",
        image=NOT_ROOT,
        solve='test "$(id -u)" = 0 && touch /root-was-here',
        test='[ -e /root-was-here ] && [ "$(id -un)" = dev ] && echo 1 > /logs/verifier/reward.txt',
        sections='[agent]\ntimeout_sec = 60.0\nuser = "root"\n',
    )
    case(
        folder,
        "variables",
        environment='env = { LITERAL = "a $(HOME) b", GIVEN = "${GIVEN}", MAPPED = "${MAPPED}", SECRET = "${TOKEN}", '
        'LATER = "${NONE:-later}" }',
        solve='printf "%s|%s|%s|%s|%s|%s" "$LITERAL" "$GIVEN" "$MAPPED" "$SECRET" "$LATER" "$FOR_SOLUTION" > /app/seen',
        test='printf "%s|%s" "$JUDGE" "$FOR_SOLUTION" > /app/judge\n'
        '[ "$(cat /app/seen)" = "a \\$(HOME) b|plain|mapped|s3cret-value|later|s3cret-value" ] '
        '&& [ "$(cat /app/judge)" = "judge-key-value|" ] && echo 1 > /logs/verifier/reward.txt; cat /app/seen /app/judge',
        sections='[verifier.env]\nJUDGE = "${JUDGE_KEY}"\n[solution.env]\nFOR_SOLUTION = "${TOKEN}"\n',
    )
    case(folder, "missing", environment='env = { KEY = "${OF_NOBODY}" }')
    case(folder, "negative", test="trap 'echo -1 > /logs/verifier/reward.txt' EXIT\nexit 1")
    case(folder, "bad-json", test=f'{PASS}\necho \'{{"reward": "none"}}\' > /logs/verifier/reward.json')
    case(
        folder,
        "tees",
        test=f"{PASS}\necho from the script | tee -a /logs/verifier/test-stdout.txt; echo '{{}}' > /logs/verifier/ctrf.json",
    )
    case(folder, "exits-127", solve="touch /app/done\nno-such-command", test=f"[ -e /app/done ] && {PASS}")
    case(
        folder,
        "server",
        # It keeps the script's output open, which must not hold the agent's end back.
        solve="cd /app && echo served > page && nohup python3 -m http.server 8123 &\nsleep 1",
        test="python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/page').read())\" | grep -q served && " + PASS,
    )
    case(folder, "mktemp", test="f=$(mktemp /logs/verifier/XXXX); echo 1 > $f; chmod 600 $f; mv $f /logs/verifier/reward.txt")
    case(folder, "crlf", files={"solution/solve.sh": "#!/bin/bash\r\ntouch /app/done\r\n"}, test="echo 0 > /logs/verifier/reward.txt")
    case(folder, "planted", solve="echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json", test="true")
    case(
        folder,
        "artifacts",
        artifacts='"/app/out", {source = "/app/x.log", destination = "logs/x"}, "/app/none"',
        solve="mkdir -p /app/out/d; echo a > /app/out/d/a; echo x > /app/x.log; ln -s /etc/shadow /app/out/link; mkfifo /app/out/pipe\n"
        "echo pub > /logs/artifacts/pub",
    )
    case(
        folder,
        "separate",
        artifacts='"/app/out"',
        solve="mkdir -p /app/out; echo 3 > /app/out/answer; echo log > /logs/agent/mine; touch /app/elsewhere",
        test='[ "$(cat /app/out/answer)" = 3 ] && [ ! -e /app/elsewhere ] && [ ! -e /logs/agent/mine ] && [ "$A" = own ] && '
        '[ "$(id -u)" = 0 ] && echo 0.5 > /logs/verifier/reward.txt; find /app /logs',
        sections='[verifier.environment]\nmemory_mb = 64\nenv = { A = "own" }\n',
    )
    case(
        folder,
        "separate-late",
        solve="sleep 100",
        test="echo 0 > /logs/verifier/reward.txt",
        sections='[agent]\ntimeout_sec = 2.0\n[verifier]\nenvironment_mode = "separate"\n',
    )
    case(
        folder,
        "loose-workdir",
        environment='workdir = "/srv"',
        files={"environment/sub/more.txt": "more\n"},
        test='[ "$(cat /srv/note.txt /srv/sub/more.txt)" = "loose\nmore" ] && [ ! -e /app/note.txt ] && ' + PASS,
    )
    case(folder, "loose", test="[ -e /app/note.txt ] && " + PASS)
    case(
        folder,
        "log-folders",
        image=NOT_ROOT,
        test="[ -e /logs/agent/seen ] && " + PASS,
        sections="[environment.healthcheck]\nretries = 1\n"
        "command = 'test $(stat -c %a /logs/agent /logs/verifier /logs/artifacts | sort -u) = 777 && touch /logs/agent/seen'\n",
    )
    case(folder, "image-and-dockerfile", files={"environment/Dockerfile": "FROM seatrial.invalid/no/such/image\n"})
    case(folder, "no-healthy", environment="\n[environment.healthcheck]\ncommand = 'exit 1'\ninterval_sec = 0.1\nretries = 2")
    case(folder, "agent-memory", solve="python3 -c 'x = bytearray(300_000_000)'", test="echo 0 > /logs/verifier/reward.txt")
    case(folder, "verifier-memory", test="python3 -c 'x = bytearray(300_000_000)'")
    case(folder, "late", solve="sleep 100", test=PASS, sections="[agent]\ntimeout_sec = 2.0\n")
    case(folder, "tests-late", test="echo begun; sleep 100", sections="[verifier]\ntimeout_sec = 2.0\n")
    secrets = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "life-keys", "namespace": NAMESPACE},
        "stringData": {"token": "s3cret-value", "judge": "judge-key-value"},
    }
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "life-map", "namespace": NAMESPACE}, "data": {"k": "mapped"}}
    life.apply(secrets, settings)
    return run_job(
        life,
        folder,
        "cases",
        environment={
            "env": {"GIVEN": "plain"},
            "envSecrets": {"TOKEN": {"name": "life-keys", "key": "token"}},
            "envConfigMaps": {"MAPPED": {"name": "life-map", "key": "k"}},
        },
        verifier={"envSecrets": {"JUDGE_KEY": {"name": "life-keys", "key": "judge"}}},
    )


@pytest.mark.conforms("H-73", "H-75", "H-77", "H-91")
def test_steps_run_one_after_the_other_until_a_reward_is_too_low(cases: Finished) -> None:
    steps = [(step["step_name"], step["verifier_result"]["rewards"]) for step in cases.result("steps")["step_results"]]
    assert steps == [("first", {"reward": 1.0}), ("second", {"reward": 0.25})]
    assert cases["steps"] == (0.625, None)
    assert cases.logs("steps")["steps/second/agent/oracle.txt"] == b"nobody\nset\n"


def test_nineteen_steps_with_strategy_final(cases: Finished) -> None:
    assert cases["nineteen"] == (18.0, None)
    assert len(cases.result("nineteen")["step_results"]) == 19


@pytest.mark.conforms("H-74", "H-79")
def test_a_failed_step_setup_keeps_the_earlier_reward(cases: Finished) -> None:
    assert (cases["bad-setup"][0], cases.rows["bad-setup"]["outcome"], cases.result("bad-setup")["reward_valid"]) == (1.0, "scored", True)


@pytest.mark.conforms("H-46", "H-48", "H-50")
def test_users_by_name_and_a_uid_without_an_entry(cases: Finished) -> None:
    assert cases["users"] == (1.0, None)


@pytest.mark.conforms("H-46", "H-47")
def test_the_agent_may_be_root_in_an_image_whose_user_is_not(cases: Finished) -> None:
    assert cases["as-root"] == (1.0, None)


@pytest.mark.conforms("H-41", "H-42", "H-43", "H-45", "H-101")
def test_variables_come_from_literals_secrets_and_config_maps_unchanged(cases: Finished) -> None:
    assert cases["variables"] == (1.0, None)
    kept = b"".join(cases.logs("variables").values()) + json.dumps(cases.result("variables")).encode()
    assert b"s3cret-value" not in kept
    assert b"judge-key-value" not in kept


@pytest.mark.conforms("H-34")
@pytest.mark.parametrize("task", ["loose-workdir", "loose"])
def test_loose_files_beside_a_ready_image_are_put_into_the_working_directory(cases: Finished, task: str) -> None:
    assert cases[task] == (1.0, None)


@pytest.mark.conforms("H-36")
def test_log_folders_are_there_for_everybody_when_the_healthcheck_runs(cases: Finished) -> None:
    assert cases["log-folders"] == (1.0, None)


@pytest.mark.conforms("H-33")
def test_a_ready_image_is_used_although_there_is_a_dockerfile(cases: Finished) -> None:
    assert cases["image-and-dockerfile"] == (1.0, None)


@pytest.mark.conforms("H-44")
def test_a_missing_variable_is_named_before_the_start(cases: Finished) -> None:
    assert cases["missing"] == (None, "ValueError")
    assert "OF_NOBODY" in cases.rows["missing"]["error"]["message"]
    assert not cases.rows["missing"].get("pod")


@pytest.mark.conforms("H-107", "H-108", "H-112", "N-168")
@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("negative", (-1.0, None)),
        ("bad-json", (None, "RewardInvalid")),
        ("tees", (1.0, None)),
        ("exits-127", (1.0, None)),
        ("server", (1.0, None)),
        ("mktemp", (1.0, None)),
        ("crlf", (0.0, None)),
        ("planted", (None, "RewardFileNotFoundError")),
    ],
)
def test_rewards(cases: Finished, task: str, expected: tuple[float | None, str | None]) -> None:
    assert cases[task] == expected


def test_what_is_worth_a_second_look_is_flagged(cases: Finished) -> None:
    assert cases.rows["planted"]["tampered"] is True
    assert cases.rows["server"]["leftoverProcesses"] >= 1
    assert cases.logs("exits-127")["agent/exit-code.txt"] == b"127"
    assert b"bad interpreter" in cases.logs("crlf")["agent/oracle.txt"] or b"not found" in cases.logs("crlf")["agent/oracle.txt"]
    assert b"from the script" in cases.logs("tees")["verifier/test-stdout.txt"]


@pytest.mark.conforms("N-169")
def test_what_the_verifier_writes_beside_the_reward_is_kept(cases: Finished) -> None:
    assert cases.logs("tees")["verifier/ctrf.json"] == b"{}\n"


@pytest.mark.conforms("H-82")
def test_the_moments_of_a_trials_life_can_be_read_from_its_result_and_its_row(cases: Finished) -> None:
    result, row = cases.result("users"), cases.rows["users"]
    spans = [result[name] for name in ("environment_setup", "agent_setup", "agent_execution", "verifier")]
    moments = [time for span in spans for time in (span["started_at"], span["finished_at"])]
    moments = [result["started_at"], *moments, result["finished_at"]]
    assert moments == sorted(moments)
    assert row["startedAt"] < row["endedAt"]
    by_step = [(step["agent_execution"]["finished_at"], step["verifier"]["started_at"]) for step in cases.result("steps")["step_results"]]
    assert all(agent <= verifier for agent, verifier in by_step)
    assert len(by_step) == 2


@pytest.mark.conforms("H-71")
def test_artifacts_are_kept_with_their_manifest(cases: Finished) -> None:
    logs = cases.logs("artifacts")
    rows = [(row["source"], row["destination"], row["type"], row["status"]) for row in json.loads(logs["artifacts/manifest.json"])]
    assert rows == [
        ("/logs/artifacts", "artifacts/logs/artifacts", "directory", "ok"),
        ("/app/out", "artifacts/app/out", "directory", "ok"),
        ("/app/x.log", "artifacts/logs/x", "file", "ok"),
        ("/app/none", "artifacts/app/none", "file", "failed"),
    ]
    kept = {name: data for name, data in logs.items() if name.startswith("artifacts/") and not name.endswith(".json")}
    assert kept == {"artifacts/logs/artifacts/pub": b"pub\n", "artifacts/app/out/d/a": b"a\n", "artifacts/logs/x": b"x\n"}


@pytest.mark.conforms("H-102", "H-105", "H-113")
def test_a_separate_verifier_grades_the_artifacts_in_a_pod_of_its_own(cases: Finished) -> None:
    assert cases["separate"] == (0.5, None)
    row = cases.rows["separate"]
    assert (row["retry"], row["pod"].endswith("-v")) == (1, True)
    assert cases.result("separate")["verifier_environment_mode"] == "separate"
    logs = cases.logs("separate")
    assert (logs["artifacts/app/out/answer"], logs["agent/mine"]) == (b"3\n", b"log\n")
    assert cases["separate-late"] == (0.0, "AgentTimeoutError")


@pytest.mark.conforms("H-49", "H-65", "H-67", "H-115", "H-116", "H-150")
@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("no-healthy", (None, "HealthcheckError")),
        ("late", (1.0, "AgentTimeoutError")),
        ("tests-late", (None, "VerifierTimeoutError")),
        ("agent-memory", (0.0, None)),
        ("verifier-memory", (None, "OOMKilled")),
    ],
)
def test_endings(cases: Finished, task: str, expected: tuple[float | None, str | None]) -> None:
    assert cases[task] == expected


@pytest.fixture(scope="module")
def resources(life: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Tasks whose instruction is the agent's command: what a Pod may use up, and an image that nobody has."""
    folder = tmp_path_factory.mktemp("resources")
    registry = json.loads(life.run("python3", "tests/cluster", "registry", timeout=180).out)["address"]
    instructions = {
        "agent-memory": "python3 -c 'x = bytearray(300_000_000)'",
        "fills": "head -c 900000000 /dev/zero > /logs/agent/big; sleep 1000",
        "no-image": "true",
        "no-registry": "true",
    }
    images = {"no-image": f"{registry}/none:1", "no-registry": "registry.invalid/none:1"}
    for name, instruction in instructions.items():
        limit = "[agent]\ntimeout_sec = 1000.0\n"
        case(folder, name, image=images.get(name, IMAGE), memory=64, sections=limit, files={"instruction.md": instruction})
    return run_job(life, folder, "resources", agent={"command": 'eval "$INSTRUCTION"'}, timeouts={"pending": "20s"})


def test_a_memory_kill_in_the_agent_is_the_agents_error_and_graded(resources: Finished) -> None:
    assert resources["agent-memory"] == (1.0, "NonZeroAgentExitCodeError")
    assert "killed for memory" in resources.rows["agent-memory"]["error"]["message"]


def test_a_memory_kill_of_the_environment_is_named_at_once(images: Finished) -> None:
    assert images["eats"] == (None, "OOMKilled")
    assert "container environment was killed for memory" in images.rows["eats"]["error"]["message"]


def test_a_volume_that_fills_up_ends_the_agent_and_keeps_what_there_is(resources: Finished) -> None:
    assert resources["fills"] == (None, "StorageLimitExceeded")
    row = resources.rows["fills"]
    assert (row["error"]["cause"], row["stored"], "/logs/agent" in row["error"]["message"]) == ("agent", True, True)


@pytest.mark.parametrize(("task", "reason"), [("no-image", "ImageNotFound"), ("no-registry", "RegistryUnavailable")])
def test_an_image_that_cannot_be_pulled_fails_with_its_name(resources: Finished, task: str, reason: str) -> None:
    assert resources[task] == (None, reason)
    assert "none:1" in resources.rows[task]["error"]["message"]


def test_the_output_of_tests_that_timed_out_is_kept(cases: Finished) -> None:
    assert cases.logs("tests-late")["verifier/test-stdout.txt"] == b"begun\n"


# --- the user's own agent ------------------------------------------------------------------------------------------------------------

AGENT = """
set -e
cp "$SEATRIAL_INSTRUCTION_FILE" /tmp/instruction
test "$SEATRIAL_MODEL" = mine/model
test "$API_KEY" = s3cret-value
"$SEATRIAL_ENV" exec -c 'test -z "$API_KEY" && pwd && echo Hello > /app/made'
"$SEATRIAL_ENV" put /tmp/instruction /app/instruction
"$SEATRIAL_ENV" get /app/made /tmp/back
cat /tmp/back
echo '{"n_input_tokens": 12, "cost_usd": 0.5}' > "$SEATRIAL_RESULT_FILE"
echo "$API_KEY" > "$SEATRIAL_LOGS/leak.txt"
"""


def test_an_agent_image_works_through_its_client_and_its_exit_code_counts(life: Cluster, tmp_path: Path) -> None:
    life.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "agent-key", "namespace": NAMESPACE},
            "stringData": {"k": "s3cret-value"},
        }
    )
    case(tmp_path, "imaged", test='[ "$(cat /app/made /app/instruction)" = "Hello\nCase imaged." ] && echo 1 > /logs/verifier/reward.txt')
    agent = {
        "image": "seatrial.local/smoke/hello-pass:dev",
        "args": ["sh", "-c", f"{AGENT}\nexit 4"],
        "model": "mine/model",
        "envSecrets": {"API_KEY": {"name": "agent-key", "key": "k"}},
    }
    finished = run_job(life, tmp_path, "imaged", agent=agent)
    assert finished["imaged"] == (1.0, "NonZeroAgentExitCodeError")
    result = finished.result("imaged")
    assert (result["agent_result"]["n_input_tokens"], result["agent_result"]["cost_usd"]) == (12, 0.5)
    assert finished.logs("imaged")["agent/leak.txt"] == b"[REDACTED]\n"


def test_an_agent_image_that_ends_at_once_is_graded_and_its_exit_code_named(life: Cluster, tmp_path: Path) -> None:
    case(tmp_path, "at-once", test="[ ! -e /app/made ] && echo 0.5 > /logs/verifier/reward.txt")
    finished = run_job(life, tmp_path, "at-once", agent={"image": IMAGE, "args": ["false"]})
    assert finished["at-once"] == (0.5, "NonZeroAgentExitCodeError")
    assert "exit code 1" in finished.rows["at-once"]["error"]["message"]


def test_what_a_running_agent_prints_can_be_followed_and_is_capped_and_free_of_secrets(life: Cluster, tmp_path: Path) -> None:
    name, secret = unique("heard"), {"name": "heard-key", "namespace": NAMESPACE}
    life.apply({"apiVersion": "v1", "kind": "Secret", "metadata": secret, "stringData": {"k": "s3cret-value"}})
    case(
        tmp_path,
        "heard",
        environment='env = { SECRET = "${TOKEN}" }',
        # Long lines, and time after them: the log goes with the Pod, which goes when the trial is graded.
        solve='for second in 1 2 3 4 5 6; do echo "heard $SECRET"; sleep 1; done; '
        "head -c 3000000 /dev/zero | tr '\\0' x | fold -w 10000; sleep 10",
    )
    life.seatrial("publish", str(tmp_path), "--taskset", name, "--namespace", NAMESPACE)
    environment = {"envSecrets": {"TOKEN": {"name": "heard-key", "key": "k"}}}
    life.apply(evaljob(name, NAMESPACE, taskset=name, environment=environment))
    wait_until(
        lambda: [one for pod in life.trial_pods(NAMESPACE, name) for one in pod["status"].get("containerStatuses", ())],
        lambda containers: any(one["name"] == "agent" and "running" in one["state"] for one in containers),
        timeout=90,
        what="running agent",
        every=0.1,
    )
    shown = life.seatrial("logs", name, "heard", "--follow", "--namespace", NAMESPACE).out
    assert shown.count("heard ************\n") == 6
    assert "s3cret-value" not in shown
    assert len(shown) < 1_100_000
    assert "cut here" in shown
    assert life.finished(name, NAMESPACE)["status"]["mean"] == "1.000"


def test_at_the_limit_of_cost_no_further_agent_starts_and_what_ran_counts(life: Cluster, tmp_path: Path) -> None:
    name = unique("dear")
    case(tmp_path, "dear", test="echo 0.5 > /logs/verifier/reward.txt")
    life.seatrial("publish", str(tmp_path), "--taskset", name, "--namespace", NAMESPACE)
    agent = {"command": "echo '{\"cost_usd\": 0.6}' > /logs/agent/result.json"}
    life.apply(evaljob(name, NAMESPACE, taskset=name, agent=agent, attempts=5, concurrency=1, limits={"maxCostUsd": 1}))
    status = life.finished(name, NAMESPACE)["status"]
    counts = {key: status["trials"][key] for key in ("scored", "cancelled", "errored", "retried")}
    end = next(item for item in status["conditions"] if item["type"] == "Finished")
    assert (status["phase"], end["reason"], status["mean"]) == ("Failed", "CostLimitReached", "0.500")
    assert counts == {"scored": 2, "cancelled": 3, "errored": 0, "retried": 0}
    assert "cost 1.20 US dollars, and spec.limits.maxCostUsd is 1" in end["message"]
