"""The transport: a torch.distributed backend over shared memory, registered as `manyhands_shm` on import."""

from . import backend as backend
