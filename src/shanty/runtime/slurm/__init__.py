"""Slurm: what is asked of its tools, and what is read from their answers.

It travels, since a login node may not have shanty: the command line uses it there, or by RPC.
`parse` reads text, `reasons` puts Slurm's words into plain ones, `request` makes options of a job,
`checks` holds them against what the cluster has, `tools` calls the programs, `queue` looks after
runs in the queue, `batch` is what Slurm starts on the first node.
"""
