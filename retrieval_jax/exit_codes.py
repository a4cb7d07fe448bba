"""How a program ends, for the scripts that start it again: what each exit code says."""

from typing import Final

DONE: Final = 0  # also a training that was asked to stop: MODEL_DIR/STOPPED then says at which step
FAILED: Final = 1  # an error in the program itself, with its traceback
BAD_INPUT: Final = 2  # a UserError: the same command would fail again
HUNG: Final = (
  75  # no step came within STEP_TIMEOUT: this process or one that it waits for hangs; start all again
)
PEER_DIED: Final = 76  # another process of the run is gone; start all again
INTERRUPTED: Final = 130  # Ctrl-C before there was anything to save

STOPPED: Final = "STOPPED"  # the file of MODEL_DIR that says a training was stopped and would go on
