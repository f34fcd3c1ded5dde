"""The tools every experiment uses: machine, measurements, records, result tables, figures, scale.

The modules are the interface (`experiments.figures.use()`); the names used most are also here. Torch and
matplotlib are imported by the functions that need them.
"""
