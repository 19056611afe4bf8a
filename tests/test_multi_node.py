"""recipes/multi_node: the scripts with a scheduler and an ssh that only pretend, and the manifest.

What they start is real: a process for each machine, which is told what torchrun would be told.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from ftrecipes.config.parse import parse_words

FOLDER = Path(__file__).parents[1] / "recipes" / "multi_node"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
# What sshd does with a command: one text for the shell of the user there.
SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
shift
exec sh -c "$*"
"""
SCONTROL = "#!/bin/sh\necho node7\necho node8\n"
SRUN = """#!/bin/sh
while [ "$1" != torchrun ]; do echo "srun $1"; shift; done
exec "$@"
"""
# It says what it was told, waits, and leaves with a code; TERM makes it leave in order.
TORCHRUN = f"""#!{sys.executable}
import json, os, signal, sys, time
def say(what):  # in one piece, as others write to the same place
    sys.stdout.write(json.dumps(what) + chr(10))
    sys.stdout.flush()
def stop(number, frame):
    say({{"stopped": host}})
    time.sleep(0.5)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
words = sys.argv[1:]
host = words[words.index("--local_addr") + 1] if "--local_addr" in words else ""
told = {{"words": words, "host": host, "folder": os.getcwd(), "value": os.environ.get("VALUE")}}
say(told)
seconds, code = os.environ.get(f"FATE_{{host}}", "0 0").split()
time.sleep(float(seconds))
sys.exit(int(code))
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of pretended tools, first on the PATH."""
    texts = {"ssh": SSH, "scontrol": SCONTROL, "srun": SRUN, "torchrun": TORCHRUN}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def start_ssh(tools: Path, *words: str, **variables: str) -> subprocess.Popen:
    command = ["bash", FOLDER / "ssh.sh", "--torchrun", str(tools / "torchrun"), *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=os.environ | variables, text=True, **pipes)


def told(output: str) -> list[dict]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound(script):
    assert script.read_text().startswith("#!/usr/bin/env bash\n")
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    beside = Path(sys.executable).with_name("shellcheck")
    checker = str(beside) if beside.exists() else shutil.which("shellcheck")
    if checker is not None:
        done = subprocess.run([checker, script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")


def test_there_is_one_script_a_way():
    assert [path.name for path in SCRIPTS] == ["slurm.sh", "ssh.sh"]


def test_slurm_starts_one_launcher_a_node(tools, monkeypatch):
    project = tools / "project"  # one without a .venv
    (project / "recipes" / "multi_node").mkdir(parents=True)
    variables = {
        "SUBMIT_DIR": str(project),
        "JOB_NODELIST": "node[7-8]",
        "JOB_ID": "123456",
    }
    for name, value in (variables | {"NNODES": "2", "CPUS_PER_TASK": "16"}).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    words = ["--model_name", "m", "--prompt", 'it\'s "a" $b']
    done = subprocess.run(
        ["bash", FOLDER / "slurm.sh", *words], capture_output=True, text=True, cwd=tools, check=True
    )
    assert "srun --cpus-per-task=16" in done.stdout.splitlines()
    (run,) = told(done.stdout)
    options, _, rest = " ".join(run["words"]).partition(" recipes/finetuning.py ")
    assert run["words"][-5:] == ["--enable_fsdp", *words]
    assert options == (
        "--nnodes 2 --nproc_per_node gpu --rdzv_id 123456 --rdzv_backend c10d "
        "--rdzv_endpoint node7:23456 --shutdown_timeout 540"
    )
    assert rest.startswith("--enable_fsdp")
    assert run["folder"] == str(project)


def test_slurm_says_where_to_submit(tools, monkeypatch):
    monkeypatch.setenv("SLURM_SUBMIT_DIR", str(tools))
    done = subprocess.run(
        ["bash", FOLDER / "slurm.sh"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"{tools} is not the project's folder" in done.stderr


def test_ssh_tells_every_machine_the_same_run_word_for_word(tools):
    words = ["--prompt", 'it\'s "a" $b `c` \\ * !', "", "--lora.r", "4"]
    run = start_ssh(
        *(tools, "--hosts", "me@a,b,c", "--port", "29600", "--nproc_per_node", "8"),
        *("--folder", str(tools), "--env", "VALUE=two 'words' $x", "--", *words),
    )
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 0
    machines = {machine["host"]: machine for machine in told(output)}
    assert sorted(machines) == ["a", "b", "c"]
    for name, machine in machines.items():
        assert machine["words"][-7:] == ["recipes/finetuning.py", "--enable_fsdp", *words]
        assert machine["folder"] == str(tools)
        assert machine["value"] == "two 'words' $x"
        options = " ".join(machine["words"])
        assert "--nnodes 3 --nproc_per_node 8 " in options
        assert f"--rdzv_endpoint a:29600 --rdzv_conf is_host={int(name == 'a')} " in options
    assert len({machine["words"][5] for machine in machines.values()}) == 1  # the run's id


def test_ssh_reads_hosts_from_a_file(tools):
    file = tools / "hosts"
    file.write_text("# two machines\n\na slots=8\nme@b#the second")
    run = start_ssh(tools, "--hostfile", str(file), "--", "--x")
    output, _ = run.communicate(timeout=60)
    assert sorted(machine["host"] for machine in told(output)) == ["a", "b"]


def test_ssh_ends_all_machines_when_one_has_ended(tools):
    fates = {"FATE_a": "60 0", "FATE_b": "0 3", "GRACE_SECONDS": "1"}
    run = start_ssh(tools, "--hosts", "a,b", "--", "--x", **fates)
    output, errors = run.communicate(timeout=30)
    assert run.returncode == 143  # that of the first in the list
    assert {"stopped": "a"} in told(output)
    assert "a machine has ended; stopping the others" in errors
    assert "b ended with exit code 3" in errors


def test_ssh_leaves_a_machine_time_to_end_by_itself(tools):
    run = start_ssh(tools, "--hosts", "a,b", "--", "--x", FATE_a="2 0", FATE_b="0 7")
    output, errors = run.communicate(timeout=30)
    assert run.returncode == 7
    assert {"stopped": "a"} not in told(output)
    assert "stopping" not in errors


def test_ssh_hands_a_stop_on_and_waits_for_what_is_saved(tools):
    run = start_ssh(tools, "--hosts", "a,b", "--", "--x", FATE_a="60 0", FATE_b="60 0")
    lines = [run.stdout.readline() for _ in range(2)]
    assert all(told(line) for line in lines)
    time.sleep(0.5)
    run.send_signal(signal.SIGINT)
    output, errors = run.communicate(timeout=30)
    assert run.returncode == 143
    assert sorted(line["stopped"] for line in told(output)) == ["a", "b"]
    assert "stopping on all machines; what was trained is saved" in errors


def test_a_machine_stops_when_the_one_that_started_it_is_gone(tools):
    run = start_ssh(tools, "--hosts", "a", "--", "--x", FATE_a="60 0")
    assert told(run.stdout.readline())
    run.kill()
    # Its output ends when the last process that writes it has ended.
    assert told(run.stdout.read()) == [{"stopped": "a"}]
    run.communicate(timeout=30)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--hosts", "a"], "write -- before them"),
        (["--", "--x"], "name the machines: --hosts a,b or --hostfile FILE"),
        (["--hosts"], "--hosts: a value is missing"),
        (["--hostfile", "none", "--", "--x"], "--hostfile none: there is no such file"),
        (["--lr", "1", "--", "--x"], "--lr: no such option; flags of the run follow a --"),
    ],
)
def test_ssh_says_what_is_wrong(words, expected, tools):
    run = start_ssh(tools, *words)
    output, errors = run.communicate(timeout=30)
    assert (run.returncode, output) == (2, "")
    assert expected in errors


def test_the_manifest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shared").mkdir()
    Path("shared/train.jsonl").write_text("{}\n")
    spec = yaml.safe_load((FOLDER / "pytorchjob.yaml").read_text())["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    assert sorted(replicas) == ["Master", "Worker"]
    assert replicas["Master"]["replicas"] == 1
    for replica in replicas.values():
        assert replica["restartPolicy"] == "Never"
        pod = replica["template"]["spec"]
        (container,) = pod["containers"]
        assert container["name"] == "pytorch"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == int(spec["nprocPerNode"])
        names = {volume["name"] for volume in pod["volumes"]}
        places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert names == set(places)
        assert places["memory"] == "/dev/shm"
        assert places["shared"] == f"{container['workingDir']}/shared"
        args = container["args"]
        launch, flags = args[: args.index("recipes/finetuning.py")], args[len(args) - 10 :]
        assert launch == ["--shutdown_timeout", "540"]
        assert int(launch[1]) < pod["terminationGracePeriodSeconds"]
        config = parse_words(args[len(launch) + 1 :]).config
        assert config.train.enable_fsdp
        assert config.train.output_dir == "shared/out" == flags[-1]
