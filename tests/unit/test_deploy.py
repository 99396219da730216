"""What deploy/ holds agrees with the package: commands, flags, ports, paths, secrets and settings that exist.

No container and no cluster is started here; the script for spark-submit is run by tests/e2e/test_submit.py.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import penstock
from penstock.config.deployment import Deployment
from penstock.config.file import read_deployment
from penstock.config.secrets import Secret
from penstock.ops.http import is_loopback, parse_address
from penstock.ops.http_public import PATHS
from penstock.spark.settings import settings
from tests.unit.command_lines import lines, problem

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
SCRIPT = DEPLOY / "spark-submit.sh"


def kubernetes(kind: str) -> Any:
    """The one object of a kind."""
    (found,) = [one for file in KUBERNETES for one in yaml.safe_load_all(file.read_text()) if one["kind"] == kind]
    return found


@pytest.fixture
def pod() -> Any:
    return kubernetes("StatefulSet")["spec"]["template"]["spec"]


@pytest.fixture
def container(pod: Any) -> Any:
    (found,) = pod["containers"]
    return found


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """The files of the ConfigMap, read as `penstock run` does."""
    for name, text in kubernetes("ConfigMap")["data"].items():
        (tmp_path / name).write_text(text)
    return read_deployment(tmp_path)


def secrets(value: Any) -> Iterator[Secret]:
    """Every secret below a value."""
    if isinstance(value, Secret):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            yield from secrets(getattr(value, one.name))
    elif isinstance(value, Mapping | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from secrets(inner)


def test_every_object_has_a_name_and_is_applied() -> None:
    listed = kubernetes("Kustomization")["resources"]
    assert sorted(listed) == [file.name for file in KUBERNETES if file.name != "kustomization.yaml"]
    for name in listed:
        for one in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()):
            assert one["apiVersion"] and one["kind"], name
            assert one["metadata"]["labels"]["app.kubernetes.io/name"] == one["metadata"]["name"] == "penstock", name


def test_the_pod_runs_a_command_that_exists_on_files_that_are_mounted(pod: Any, container: Any) -> None:
    assert problem(container["args"]) == ""
    assert container["image"].endswith(f"penstock:{penstock.__version__}")
    config = Path(container["args"][container["args"].index("--config") + 1])
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    (files,) = [one["name"] for one in pod["volumes"] if "configMap" in one]
    assert config.parent == mounts[files]
    assert config.name in kubernetes("ConfigMap")["data"]
    claims = {one["metadata"]["name"] for one in kubernetes("StatefulSet")["spec"]["volumeClaimTemplates"]}
    assert mounts.keys() == {one["name"] for one in pod["volumes"]} | claims
    assert Path("/tmp") in mounts.values(), "nothing else of the image can be written to"
    assert container["securityContext"]["readOnlyRootFilesystem"]


def test_state_lies_on_a_volume_that_stays(deployment: Deployment, container: Any) -> None:
    (claim,) = kubernetes("StatefulSet")["spec"]["volumeClaimTemplates"]
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert Path(deployment.state).is_relative_to(mounts[claim["metadata"]["name"]])
    assert kubernetes("StatefulSet")["spec"]["replicas"] == 1, "a slot has one reader"


def test_the_secret_holds_what_the_file_asks_for(deployment: Deployment, container: Any) -> None:
    asked = {one.env for one in secrets(deployment) if one.env}
    assert asked == kubernetes("Secret")["stringData"].keys()
    assert not [one.label for one in secrets(deployment) if one.holds_password and not one.env]
    assert container["envFrom"] == [{"secretRef": {"name": kubernetes("Secret")["metadata"]["name"]}}]


def test_probes_and_service_lead_to_the_public_address(deployment: Deployment, container: Any) -> None:
    (port,) = container["ports"]
    assert parse_address(deployment.server.public_address)[1] == port["containerPort"]
    assert not is_loopback(deployment.server.public_address), "the kubelet comes from outside"
    assert is_loopback(deployment.server.private_address)
    for probe in "livenessProbe", "readinessProbe":
        assert container[probe]["httpGet"]["port"] == port["name"]
        assert container[probe]["httpGet"]["path"] in PATHS
        assert container[probe]["timeoutSeconds"] == 5, "a busy machine does not answer within the second that is usual"
    service = kubernetes("Service")["spec"]
    assert [one["targetPort"] for one in service["ports"]] == [port["name"]]
    spec = kubernetes("StatefulSet")["spec"]
    assert spec["template"]["metadata"]["labels"] == spec["selector"]["matchLabels"] == service["selector"]
    assert spec["serviceName"] == kubernetes("Service")["metadata"]["name"]


def instructions() -> list[tuple[str, str]]:
    """The instructions of the container file, each on one line."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def last(word: str) -> str:
    return [rest for found, rest in instructions() if found == word][-1]


def test_the_container_file_has_instructions_only() -> None:
    words = {
        "ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK",
        "ENTRYPOINT", "CMD",
    }  # fmt: skip
    assert {word for word, _ in instructions()} == words
    assert not [rest for word, rest in instructions() if word == "FROM" and ":" not in rest], "a base has a version"


def test_the_image_is_built_from_what_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = (ROOT / ".dockerignore").read_text()
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from="):
            for name in rest.split()[:-1]:
                assert (ROOT / name).exists() and f"!{name}\n" in allowed, name
        if word == "RUN" and (found := re.search(r"\.\[(.*?)\]", rest)):
            assert set(found[1].split(",")) <= project["optional-dependencies"].keys()
    (python,) = [rest.partition("=")[2] for word, rest in instructions() if word == "ARG"]
    assert f"Programming Language :: Python :: {python}" in project["classifiers"]


def test_the_image_runs_a_command_that_exists_as_nobody_special(pod: Any) -> None:
    entry, command = json.loads(last("ENTRYPOINT")), json.loads(last("CMD"))
    assert entry == ["penstock"], "signals reach it: there is no shell between"
    assert problem(command) == ""
    assert int(last("USER")) == pod["securityContext"]["runAsUser"] > 0
    (made,) = [rest for word, rest in instructions() if word == "RUN" and "useradd" in rest]
    assert f"--uid {last('USER')} " in made
    assert last("VOLUME") in made
    modules = [
        module for word, rest in instructions() if word == "RUN" for module in re.findall(r"-m (penstock\S+)", rest)
    ]
    assert modules and all(importlib.util.find_spec(module) for module in modules)
    assert last("STOPSIGNAL") == "SIGTERM"
    port = last("EXPOSE")
    (probed,) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", last("HEALTHCHECK"))
    assert probed == (port, "/healthz")
    assert probed[1] in PATHS
    compile(json.loads(last("HEALTHCHECK").partition("CMD ")[2])[2], "HEALTHCHECK", "exec")


def submit(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a spark-submit that only prints its words."""
    program = folder / "bin" / "spark-submit"
    program.parent.mkdir(exist_ok=True)
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o700)
    given = {"PATH": os.environ["PATH"], "SPARK_HOME": str(folder), **variables}
    return subprocess.run([SCRIPT, *arguments], env=given, capture_output=True, text=True, check=False)


def test_the_script_hands_its_words_to_spark_submit_and_a_valid_command_to_penstock(tmp_path: Path) -> None:
    master = "spark://master:7077"
    done = submit(tmp_path, "my shop.toml", "--executor-memory", "2g", PENSTOCK_MASTER=master)
    words = done.stdout.splitlines()
    at = words.index(str(DEPLOY / "submit.py"))
    assert words[at - 2 : at] == ["--executor-memory", "2g"], "the user's words come last, and win"
    assert words[at + 1 :] == ["run", "--config", "my shop.toml"]
    assert problem(words[at + 1 :]) == ""
    assert words[words.index("--master") + 1] == master
    ours = settings(master, 4)
    conf = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--conf")
    assert conf == {name: ours[name] for name in conf}, "what a session of our own would have"
    assert len(conf) == 4


@pytest.mark.parametrize(("arguments", "variables"), [([], {"PENSTOCK_MASTER": "local"}), (["penstock.toml"], {})])
def test_the_script_says_what_it_lacks(tmp_path: Path, arguments: list[str], variables: dict[str, str]) -> None:
    done = submit(tmp_path, *arguments, **variables)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "set it to the master" in done.stderr if arguments else "name the deployment's file" in done.stderr


def test_commands_are_told_apart_from_what_only_looks_like_one() -> None:
    text = "    penstock slots drop it --yes | cat  # gone\n    kubectl exec p-0 -- penstock status\n$ penstock nop\n"
    found = list(lines(text))
    assert found == [["slots", "drop", "it", "--yes"], ["status"], ["nop"]]
    assert [bool(problem(words)) for words in found] == [False, False, True]
    assert problem(shlex.split("run --sread")) and problem(["slots"]) and problem(["lookup", "orders"])
