"""Slurm: what is asked of its tools, and what is read from their answers.

It travels, since a login node may not have shanty: the command line uses it there, or by RPC.
`parse` reads text, `reasons` explains Slurm's reasons, `sbatch_options` makes the options of a job,
`checks` compares them with what the cluster has, `tools` calls the programs, `submit` queues a run,
`queue` looks after runs in the queue, `first_node` is what Slurm starts on the first node,
`ending_reason` finds out why Slurm ends a job.
"""
