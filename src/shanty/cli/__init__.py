"""The command line: modules of one verb or a few, which parse words and print what came of them.

Nothing is decided here, and nothing heavy is imported before it is needed, so that `--help`
and the start of a run stay quick.
"""

import shanty.client  # noqa: F401  before click: it says on what systems shanty runs
