"""What hosts receive before a run: packages, MPI, workspaces, each named by its content."""
