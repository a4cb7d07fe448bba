"""Dockerfile, .dockerignore and scripts/gke_jobset.yaml: what can be checked without a container engine or a cluster."""

import fnmatch
import json
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
  """Returns (instruction, the rest of its line), continued lines joined and comments left out."""
  lines = [line for line in DOCKERFILE.split("\n") if line.strip() and not line.lstrip().startswith("#")]
  joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
  return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.split("\n"))]


def of(name: str) -> list[str]:
  return [rest for found, rest in instructions() if found == name]


def test_every_instruction_is_one_that_docker_knows():
  known = {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"}
  assert {name for name, _ in instructions()} <= known
  assert instructions()[0][0] == "ARG"
  assert instructions()[1][0] == "FROM"


def test_what_is_copied_is_there_and_not_ignored():
  lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
  ignore = [line for line in lines if line and not line.startswith("#")]
  assert ignore[0] == "*"
  sources = [source for copied in of("COPY") for source in copied.split()[:-1]]
  assert {"setup.py", "constraints.txt", "retrieval_jax", "tasks", "configs", "scripts"} <= set(sources)
  for source in sources:
    assert (ROOT / source).exists(), source
    assert f"!{source.split('/')[0]}" in ignore, f"{source} is ignored"


def test_the_code_is_copied_after_what_is_installed():
  order = [f"{name} {rest}" for name, rest in instructions() if name in ("COPY", "RUN")]
  code = next(i for i, line in enumerate(order) if line == "COPY retrieval_jax retrieval_jax")
  requirements = next(i for i, line in enumerate(order) if "-c constraints.txt" in line)
  assert requirements < code
  # setup.py's package_dir names these folders: without a file in each the first install has nothing to build.
  before = " ".join(order[:requirements])
  assert all(f"{folder}/__init__.py" in before for folder in ("retrieval_jax", "tasks", "configs"))


def test_the_extras_are_those_of_setup_py():
  setup = (ROOT / "setup.py").read_text(encoding="utf-8")
  [install] = [run for run in of("RUN") if "-c constraints.txt" in run]
  [names] = re.findall(r"([a-z|]+)\) extras=", install)[:1]
  assert names == "tpu|gpu"
  for name in names.split("|"):
    assert f'"{name}": [' in setup


@pytest.mark.parametrize(
  "extra, more, expected",
  [
    ("tpu", "", ".[tpu]"),
    ("gpu", ",gcs", ".[gpu,gcs]"),
    ("cpu", ",gcs,bm25", ".[gcs,bm25]"),
    ("cpu", "", ".[]"),
  ],
)
def test_the_shell_of_the_install_makes_one_requirement(extra, more, expected):
  [install] = [run for run in of("RUN") if "-c constraints.txt" in run]
  shell = install.replace("pip install", "printf '%s\\n'")
  environment = {"EXTRA": extra, "MORE_EXTRAS": more, "PATH": "/usr/bin:/bin"}
  done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, env=environment, check=True)
  assert done.stdout.split() == [expected, "-c", "constraints.txt"]
  wrong = subprocess.run(
    ["sh", "-c", shell], capture_output=True, text=True, env={**environment, "EXTRA": "npu"}, check=False
  )
  assert (wrong.returncode, wrong.stderr) == (2, "EXTRA=npu: expected tpu, gpu or cpu\n")


def test_nothing_runs_as_root_nor_beside_the_sources():
  names = [name for name, _ in instructions()]
  assert of("USER") == ["1000"]
  assert names.index("USER") > max(i for i, name in enumerate(names) if name in ("RUN", "COPY"))
  assert (
    of("WORKDIR")[-1] != of("WORKDIR")[0]
  )  # there "retrieval_jax" would be the sources, without tasks and configs


def test_the_entrypoint_is_a_script_that_is_copied():
  entrypoint, command = json.loads(of("ENTRYPOINT")[0]), json.loads(of("CMD")[0])
  script = entrypoint[1].removeprefix(of("WORKDIR")[0] + "/")
  assert (ROOT / script).is_file()
  assert script.split("/")[0] in of("COPY")[-1].split()
  assert [*entrypoint[2:], *command] == ["--", "python", "-m", "retrieval_jax.train", "--help"]


@pytest.fixture(scope="module")
def jobset():
  yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
  return yaml.safe_load((ROOT / "scripts" / "gke_jobset.yaml").read_text(encoding="utf-8"))


def test_the_jobset_s_pods_fill_the_slice(jobset):
  [job] = jobset["spec"]["replicatedJobs"]
  spec = job["template"]["spec"]
  pod = spec["template"]["spec"]
  x, y = map(int, pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x"))
  [container] = pod["containers"]
  assert spec["parallelism"] == spec["completions"]
  assert spec["completions"] * container["resources"]["limits"]["google.com/tpu"] == x * y
  volumes = {volume["name"] for volume in pod["volumes"]}
  assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_a_pod_that_was_stopped_fails_and_one_with_bad_input_ends_the_jobset(jobset, tmp_path):
  job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
  [rule] = job["podFailurePolicy"]["rules"]
  [container] = job["template"]["spec"]["containers"]
  assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [2])
  assert rule["onExitCodes"]["containerName"] == container["name"]
  assert jobset["spec"]["failurePolicy"]["rules"][0]["onJobFailureReasons"] == ["PodFailurePolicy"]
  # The pod's own command, with a training that was stopped, one that was not, and one that fails, in the program's place.
  script = fnmatch.filter(container["command"], "*.sh")[0].removeprefix("/opt/retrieval_jax/")
  options = [argument.replace("/shared/run", str(tmp_path)) for argument in container["args"][:3]]

  def code(shell: str) -> int:
    return subprocess.run(["bash", ROOT / script, *options, "bash", "-c", shell], check=False).returncode

  assert [code("exit 0"), code("exit 2"), code("exit 76")] == [0, 2, 76]
  assert code(f"touch {tmp_path}/STOPPED") == 143


def test_the_jobset_runs_a_training(jobset):
  container = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
  arguments = container["args"]
  assert arguments[3:6] == ["python", "-m", "retrieval_jax.train"]
  model_dir = next(a.partition("=")[2] for a in arguments if a.startswith("--gin.MODEL_DIR="))
  assert f"--stopped_file={model_dir}/STOPPED" in arguments
