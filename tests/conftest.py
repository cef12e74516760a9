"""One BLAS thread for all tests: on two busy cores a second one makes small matrices ten times slower."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
