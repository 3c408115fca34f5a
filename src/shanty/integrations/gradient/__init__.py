"""The command line of Gradient: `shanty experiments`."""
