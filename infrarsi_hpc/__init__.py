"""InfraRSI-HPC: verified speedups of distributed training, found overnight on a Slurm cluster."""

__version__ = "0.1.0"
