"""What all other packages build on: errors, options, plan, randomness, kernels, and Game, Policy, Fragment, Learner.

Importing this package loads neither torch nor numba. Only `rng`, `kernels` and what uses them (`policy`, `learner`)
load numba; torch is loaded by the functions that call it.
"""
