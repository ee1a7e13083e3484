import os, sys, types, time, statistics, tempfile, json
ROOT=os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
for n,p in (("manyhands","src/manyhands"),("manyhands.world","src/manyhands/world")):
    m=types.ModuleType(n); m.__path__=[os.path.join(ROOT,p)]; sys.modules[n]=m
sys.path[:0]=[os.path.join(ROOT,"src"),os.path.join(ROOT,"benchmarks")]
import torch, torch.distributed as dist, torch.multiprocessing as mp
from manyhands.world import shm, shm_collectives, shm_engine
from transport import ddp_step, seconds_per_call, LeNet
from datetime import timedelta
def bench(call, calls, group, rounds=5):
    ts=[]
    for k in range(rounds+1):
        dist.barrier(group); t=time.perf_counter()
        for _ in range(calls): call()
        ts.append((time.perf_counter()-t)/calls)
    return statistics.median(ts[1:])*1e6
def main(r, N, f):
    torch.set_num_threads(1)
    dist.init_process_group(shm.NAME, store=dist.FileStore(f,N), rank=r, world_size=N, timeout=timedelta(seconds=200))
    def out(*a):
        if r==0: print(*a, flush=True)
    sizes=[4,4096,16<<10,64<<10,250000,1<<20,4<<20,16<<20]
    for n in ([2,4,8,16] if N==16 else [N]):
        g={sb: dist.new_group(list(range(n)), pg_options=shm.Options(slot_bytes=sb)) for sb in (256<<10,1<<20,4<<20)}
        gl=dist.new_group(list(range(n)), backend="gloo")
        if r<n:
            for s in sizes:
                t=torch.zeros(max(1,s//4)); calls=max(3,min(200,(2<<20)//s))
                row={}
                for sb,grp in g.items():
                    for mode,lim in (("one",1<<40),("two",0)):
                        if n==2 and mode=="two": continue
                        if s<64<<10 and sb!=1<<20: continue
                        shm_collectives.READ_BYTES=lim
                        row[f"{sb>>10}K/{mode}"]=round(bench(lambda: dist.all_reduce(t,group=grp),calls,grp))
                shm_collectives.READ_BYTES=128<<10
                row["gloo"]=round(bench(lambda: dist.all_reduce(t,group=gl),max(3,calls//4),gl,3))
                out(f"N={n} {s:9d} B", row)
        dist.barrier()
        if r<n and n in (2,8,16):
            grp=g[1<<20]
            for samples in (16,32):
                res={}
                for att in (100e-6, 200e-6, 1e-3, 5e-3):
                    shm.ATTEMPT_SECONDS=att
                    w0=grp.meter.waited_seconds; b0=grp.meter.background_seconds
                    res[f"{att*1e6:.0f}us"]=round(bench(ddp_step(samples,grp),50,grp,5))
                shm.ATTEMPT_SECONDS=200e-6
                res["gloo"]=round(bench(ddp_step(samples,gl),50,gl,3))
                m=LeNet(); o=torch.optim.SGD(m.parameters(),lr=.01); x=torch.randn(samples,1,28,28); y=torch.randint(0,10,(samples,))
                def plain():
                    o.zero_grad(); torch.nn.functional.cross_entropy(m(x),y).backward(); o.step()
                res["no communication"]=round(bench(plain,50,grp,5))
                out(f"DDP N={n} {samples}/rank us/step", res)
        dist.barrier()
    dist.destroy_process_group()
if __name__=='__main__':
    N=int(sys.argv[1]); print(torch.__version__, os.cpu_count(), len(os.sched_getaffinity(0)), N, flush=True)
    mp.spawn(main,(N,tempfile.mktemp()),nprocs=N)
