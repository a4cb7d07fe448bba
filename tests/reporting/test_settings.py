"""What a run was told otherwise than by default, who said so, and how runs differ."""

from retrieval_jax.reporting.settings import Setting, base_file, changed_from_base, differing, gin_files
from tests.reporting.run_files import COMMAND, CONFIG


def test_settings_are_named_with_their_default_and_who_set_them():
  found = {setting.name: setting for setting in changed_from_base(CONFIG, COMMAND)}
  assert found["BATCH_SIZE"] == Setting("BATCH_SIZE", "16", "128", "--gin.", True)
  assert found["LEARNING_RATE"] == Setting("LEARNING_RATE", "0.0001", "2e-5", "--gin.", True)
  assert found["LOSS"] == Setting("LOSS", "@in_batch.samtone()", None, "losses/samtone.gin", True)
  assert found["OWN_SETTING"] == Setting("OWN_SETTING", "'mine'", None, "own.gin", True)
  layers = found["MODEL/bert.BertEncoder.num_layers"]
  assert layers == Setting("MODEL/bert.BertEncoder.num_layers", "2", "6", "models/bert_tiny.gin", True)
  assert found["TEMPERATURE"].source == "--gin."
  # What is as in runs/train.gin, a default of the code, what passes a macro on, and the folder itself.
  assert not {"SEED", "MODEL/bert.BertEncoder.dtype", "MODEL_DIR"} & found.keys()
  assert not any(name.endswith("dropout_rate") for name in found)


def test_the_command_comes_first_then_each_file():
  sources = [setting.source for setting in changed_from_base(CONFIG, COMMAND) if setting.named]
  assert list(dict.fromkeys(sources)) == ["--gin.", "models/bert_tiny.gin", "losses/samtone.gin", "own.gin"]


def test_what_an_included_file_sets_is_not_named():
  config = "POOLING = 'mean'\nINITIAL_CHECKPOINT_PATH = None"
  found = {setting.name: setting for setting in changed_from_base(config, COMMAND)}
  assert found["POOLING"].source == "towers/text_tower.gin"
  assert not found["POOLING"].named
  assert found["INITIAL_CHECKPOINT_PATH"].source == "models/bert_tiny.gin"
  assert found["INITIAL_CHECKPOINT_PATH"].named


def test_a_flag_of_a_parameter_and_a_value_that_is_the_default():
  config = "optimizers.adamw.weight_decay = 0.5\nSEED = 0\nBATCH_SIZE = 128"
  command = ["train", "--gin.optimizers.adamw.weight_decay=0.5", "--gin.SEED=0"]
  assert changed_from_base(config, command) == [
    Setting("optimizers.adamw.weight_decay", "0.5", None, "--gin.", True)
  ]


def test_a_run_without_a_command_has_unknown_sources():
  (found,) = changed_from_base("SEED = 1", [])
  assert found == Setting("SEED", "1", "0", "another version of its file", True)
  assert base_file([]) == "runs/train.gin"
  assert base_file(["eval"]) == "runs/eval.gin"
  assert gin_files(["train", "--gin_file", "a.gin", "--gin_file=b.gin"]) == ["a.gin", "b.gin"]


def test_runs_differ_in_values_and_not_in_spelling():
  one = "A = 1\nB = 2e-4\nC = 'x'\nx.y = %A\nMODEL_DIR = 'one'"
  other = "A = 2\nB = 0.0002\nD = @m.f()\nx.y = @z()\nMODEL_DIR = 'other'"
  assert differing({"one": one, "other": other}) == [
    ("A", ["1", "2"]),
    ("C", ["'x'", None]),
    ("D", [None, "@m.f()"]),
  ]
