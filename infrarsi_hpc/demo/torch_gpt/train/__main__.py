"""`python -m train`: start the ranks and wait for them, be one of them, or evaluate saved weights."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

from train.config import Config, configure

EVALUATION_SEQUENCES = 32


def main() -> int:
    config, given = configure()
    if given.evaluate is not None:
        return evaluate(given.evaluate, config)
    if config.ranks > 1 and "WORLD_SIZE" not in os.environ:
        return start_ranks(config)
    from train import loop

    loop.train(config)
    return 0


def start_ranks(config: Config) -> int:
    """One process a rank on this machine; when one fails the others are ended, and its code is ours."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(config.ranks):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(config.ranks)}
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        # Ranks share the cores: a thread that waits must not spin on one.
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, **place, **meet}
        ranks.append(subprocess.Popen([sys.executable, "-m", "train", *sys.argv[1:]], env=environment))
    try:
        while any(process.poll() is None for process in ranks):
            if any(process.returncode for process in ranks):
                break
            time.sleep(0.02)
    finally:
        for process in ranks:
            if process.poll() is None:
                process.terminate()
        codes = [process.wait() for process in ranks]
    failed = [code for code in codes if code > 0] or [1 for code in codes if code]
    return failed[0] if failed else 0


def evaluate(weights: str, config: Config) -> int:
    """Print the mean loss of saved weights on held-out sequences; launch settings play no part in it."""
    import torch

    from train import data, loss, model

    torch.set_num_threads(1)
    plain = Config(seed=config.seed)
    network = model.build(plain)
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    network.eval()
    tokens, targets = data.held_out(plain, EVALUATION_SEQUENCES)
    parts = zip(tokens.split(8), targets.split(8), strict=True)
    with torch.no_grad():
        losses = [loss.loss(network(some), following).item() for some, following in parts]
    print(json.dumps({"loss": sum(losses) / len(losses)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
