"""All input and output: files, git, processes, the scheduler, the experience store, the model server."""
