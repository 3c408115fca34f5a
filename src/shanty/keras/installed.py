"""The Keras that is installed under the name `keras`."""

from __future__ import annotations

import keras as keras
