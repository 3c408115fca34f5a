"""The places where a run can go, one module a place, behind the one interface of `base`.

A target surveys its hosts, plans a job on them, submits the plan and afterwards only answers
questions: no call waits for a run.
"""
