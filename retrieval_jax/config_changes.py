"""What differs between the settings of two runs, by the text that gin writes of them (config.gin)."""

from collections.abc import Sequence

# What may well differ when a training goes on.
FREE = (
  "TRAIN_STEPS",
  "LOG_PERIOD",
  "CHECKPOINT_PERIOD",
  "KEEP_CHECKPOINTS",
  "EVAL_PERIOD",
  "GRAMIAN_PERIOD",
  "MODEL_DIR",
)


def changed_settings(before: str, after: str) -> Sequence[str]:
  """Returns a line for each setting that is another one, "NAME: was A, is B", in the order of their names.

  Settings that only one of the texts has are not counted: programs and versions of this package use different ones.

  Example: `changed_settings("A = 1\\nB = 2", "A = 3")` is `["A: was 1, is 3"]`.
  """
  old, new = _settings(before), _settings(after)
  return [
    f"{name}: was {old[name]}, is {new[name]}"
    for name in sorted(old.keys() & new.keys())
    if old[name] != new[name] and name.rsplit("/", 1)[-1] not in FREE
  ]


def other_settings(first: str, own: str) -> Sequence[str]:
  """Returns a line for each setting that two processes of a run do not have alike, "NAME: here A, on process 0 B".

  Where files lie (*_PATH, *_DIR) may differ between machines: what is in them is compared elsewhere.

  Example: `other_settings("A = 1", "A = 3\nB = 2")` is `["A: here 3, on process 0 1", "B: here 2, on process 0 not set"]`.
  """
  theirs, ours = _settings(first), _settings(own)
  return [
    f"{name}: here {ours.get(name, 'not set')}, on process 0 {theirs.get(name, 'not set')}"
    for name in sorted(theirs.keys() | ours.keys())
    if theirs.get(name) != ours.get(name) and not name.endswith(("_PATH", "_DIR"))
  ]


def _settings(text: str) -> dict[str, str]:
  """Returns the value of each setting as it is written, on one line."""
  found: dict[str, str] = {}
  name = ""
  for line in text.splitlines():
    if not line.strip() or line.startswith(("#", "import ", "from ")):
      name = ""
    elif line[0].isspace() and name:
      found[name] = f"{found[name]} {line.strip()}".strip()
    elif " = " in line or line.endswith(" ="):
      name, _, value = line.partition(" =")
      found[name] = value.strip()
    else:
      name = ""
    if name and found[name].endswith("\\"):
      found[name] = found[name][:-1].strip()
  return found
