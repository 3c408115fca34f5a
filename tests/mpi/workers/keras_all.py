"""All checks of Keras in one process: loading a backend takes longer than most of them."""

import sys
from importlib import import_module

from keras_harness import checks_of, run

run([each for name in sys.argv[1:] for each in checks_of(vars(import_module(f"keras_{name}")))])
