"""The agents of a run: `lead` owns its status, `warden` is the parent of what runs on a host.

`world` judges what the ranks report, `sweep` ends processes and removes what they left,
`stacks` asks the ranks where they stand.
"""
