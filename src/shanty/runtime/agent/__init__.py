"""The agents of a run: `controller` owns its status, `node_agent` is the parent of its processes.

`world` judges what the ranks report, `sweep` ends processes and removes what they left,
`stacks` asks the ranks where they stand.
"""
