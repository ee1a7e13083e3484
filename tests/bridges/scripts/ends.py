"""Trains for ten steps and ends as the first argument says: well, exit, raise, kill, hang, never, sleep, abort."""

import atexit
import os
import signal
import sys
import time

how = sys.argv[1]
if how == "never":
    print("no training here")
    sys.exit(int(sys.argv[2]))

import torch  # noqa: E402
from sibling import make_model  # noqa: E402 (beside this file)

rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
culprit = ranks - 1  # the last rank
assert __name__ == "__main__"
assert os.path.isabs(__file__)
if how == "exit":  # elsewhere: the record must find its folder all the same
    os.chdir("/")
if ranks > 1:
    torch.distributed.init_process_group("gloo")
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 11):
    loss = model(torch.ones(4, 8)).sum()
    optimizer.zero_grad()
    loss.backward()
    if ranks > 1:
        torch.distributed.all_reduce(model.weight.grad)
    if step == 7 and rank == culprit:
        if how == "raise":
            raise ValueError("seven is enough")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    if how == "sleep" and step == 7:
        print("asleep", flush=True)
        time.sleep(60)
    optimizer.step()
if how == "hang":
    if rank == culprit:
        raise SystemExit("the last rank gives up")
    time.sleep(60)
if how == "abort":
    atexit.register(os.kill, os.getpid(), signal.SIGABRT)
if how == "exit":
    sys.exit(int(sys.argv[2]))
