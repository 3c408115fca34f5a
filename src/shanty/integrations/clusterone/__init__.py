"""The command line of Clusterone: `shanty create job`, and `start`, `stop`, `rm`, `get`."""
