"""XGBoost's own program, `xgboost train.conf key=value`, which is gone since XGBoost 3.2.

`python -m shanty.compat.xgboost_program` does its work over the ranks of a run. `configuration`
reads the configuration file and knows its names, `tasks` trains, predicts and dumps.
It follows XGBoost 0.4 to 2.1: src/cli_main.cc, src/common/config.h.
"""
