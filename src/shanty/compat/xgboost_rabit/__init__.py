"""Gives XGBoost scripts of the years of rabit what is missing today, over shanty.xgboost.

`rabit.py` becomes the module `xgboost.rabit` of a rank whose XGBoost has none. Its `init` has
`replace` put the rest in place: `parameters` translates training parameters, `calls` the arguments
of functions, `files` makes `xgb.DMatrix(path)` what it was. A script that never calls
`rabit.init` finds XGBoost as it is.
"""
