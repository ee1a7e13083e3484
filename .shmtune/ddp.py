import os, sys; sys.argv.append("x")
exec(open(os.path.join(os.path.dirname(os.path.abspath(__file__)),"tune.py")).read().split("def main(")[0])
def main(r,N,f):
    torch.set_num_threads(1)
    dist.init_process_group(shm.NAME, store=dist.FileStore(f,N), rank=r, world_size=N, timeout=timedelta(seconds=200))
    W=dist.group.WORLD; gl=dist.new_group(backend="gloo")
    for samples in (16,32):
        m=LeNet(); o=torch.optim.SGD(m.parameters(),lr=.01); x=torch.randn(samples,1,28,28); y=torch.randint(0,10,(samples,))
        def plain():
            o.zero_grad(); torch.nn.functional.cross_entropy(m(x),y).backward(); o.step()
        cases={"plain":(plain,0,W),"gloo":(ddp_step(samples,gl),0,gl)}
        for att in (0,200e-6,1e-3,5e-3): cases[f"shm{att*1e6:.0f}"]=(ddp_step(samples,W),att,W)
        times={k:[] for k in cases}; extra={}
        for rnd in range(9):
            for k,(fn,att,g) in cases.items():
                shm.ATTEMPT_SECONDS=att
                b0=W.meter.background_seconds; w0=W.meter.waited_seconds
                dist.barrier(g); t=time.perf_counter()
                for _ in range(25): fn()
                times[k].append((time.perf_counter()-t)/25*1e3)
                extra.setdefault(k,[]).append(((W.meter.waited_seconds-w0)/25*1e3,(W.meter.background_seconds-b0)/25*1e3))
        if r==0:
            for k in cases: print(samples, f"{k:8s} median {statistics.median(times[k]):.2f} ms min {min(times[k]):.2f}  waited/bg {statistics.median(a for a,_ in extra[k]):.2f} {statistics.median(b for _,b in extra[k]):.2f}", flush=True)
    dist.destroy_process_group()
if __name__=='__main__':
    mp.spawn(main,(2,tempfile.mktemp()),nprocs=2)
