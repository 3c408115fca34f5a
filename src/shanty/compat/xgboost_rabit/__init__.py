"""What an XGBoost script of the years of rabit finds missing today, over shanty.xgboost.

`rabit.py` becomes the module `xgboost.rabit` of a rank whose XGBoost has none. Its `init` puts the
rest in place: `parameters` knows what training parameters are called today, `calls` what the
arguments of functions are, `files` what `xgb.DMatrix(path)` was. A script that never calls
`rabit.init` finds XGBoost as it is.
"""
