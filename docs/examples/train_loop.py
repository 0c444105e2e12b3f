"""A plain PyTorch loop with `rca.hook`, on CPUs: two ranks that average their gradients over gloo.

    torchrun --nproc-per-node 2 docs/examples/train_loop.py --steps 50

Rank N serves its metrics on port 9650 + N (RCA_HOOK_LISTEN says where else), and with RCA_HOOK_LOGS=DIR it writes JSON
lines to DIR/rank-N.jsonl. `--slow-loader SECONDS` and `--slow-work SECONDS` make the last rank ill, to see what becomes
of it; `--hold SECONDS` keeps the ranks there after the last step, to look at.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rca.hook import Hook, Layout

SAMPLES, TOKENS, WIDTH, WORDS = 8, 32, 64, 500


def loader(rank: int, seconds: float) -> Iterator[torch.Tensor]:
    """Yield batches of made-up tokens; take `seconds` for each."""
    made = torch.Generator().manual_seed(rank)
    while True:
        time.sleep(seconds)
        yield torch.randint(0, WORDS, (SAMPLES, TOKENS), generator=made)


def spin(seconds: float) -> None:
    """Work for some seconds."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def main() -> None:
    """Train a small model."""
    parser = argparse.ArgumentParser(description="A plain PyTorch loop with rca.hook")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--slow-loader", type=float, default=0.0)
    parser.add_argument("--slow-work", type=float, default=0.0)
    parser.add_argument("--hold", type=float, default=0.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    ill = rank == world - 1

    hook = Hook(layout=Layout(), labels={"model": "bag-of-words", "seq_len": TOKENS})  # 1. one hook a rank
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(WORDS, WIDTH), torch.nn.Linear(WIDTH, WORDS))
    trained = DistributedDataParallel(model)
    hook.split_backward(trained)  # 2. what backward waits for others is no work
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)

    batches = hook.batches(loader(rank, given.slow_loader if ill else 0.001))  # 3. waits for input are timed
    for number, tokens in zip(range(1, given.steps + 1), batches, strict=False):
        with hook.step(number):  # 4. and so are steps and their phases
            with hook.phase("forward_compute"):
                spin(given.slow_work if ill else 0.0)
                loss = torch.nn.functional.cross_entropy(trained(tokens[:, :-1]), tokens[:, -1])
            with hook.phase("backward_compute"):
                loss.backward()
            with hook.phase("optimizer"):
                norm = torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        hook.log(loss, norm, optimizer.param_groups[0]["lr"], tokens=tokens.numel(), samples=len(tokens))  # 5.

    with tempfile.TemporaryDirectory() as folder, hook.checkpoint("save") as saved:  # 6.
        path = Path(folder) / f"rank-{rank}.pt"
        torch.save(model.state_dict(), path)
        saved.step, saved.bytes = given.steps, path.stat().st_size
    time.sleep(given.hold)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
