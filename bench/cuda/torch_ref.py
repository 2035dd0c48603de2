#!/usr/bin/env python3
"""The same iterations in PyTorch, tuned, for the ratio in the same sitting. One JSON object per line.

Convolution: channels_last, cuDNN benchmark, {tf32, bf16, f16} operands, pointwise part compiled away into in-place operations;
timed as a CUDA graph of 12 iterations (no launch gaps). Weight gradient: cuDNN's. Dense: a graph of 20 iterations.
Peaceman-Rachford in the frequency domain: batched rfft2 / complex matmul / irfft2, graph of 5 iterations.
"""
import json, sys, time
import torch, torch.nn.functional as F
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
torch.backends.cudnn.benchmark = True
dev = "cuda"
began = time.time()


def median_us(f, repeats=30):
    for _ in range(3):
        f()
    torch.cuda.synchronize()
    t = []
    for _ in range(repeats):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); f(); b.record(); b.synchronize()
        t.append(a.elapsed_time(b) * 1e3)
    return sorted(t)[len(t) // 2]


def graphed(f):
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3):
            f()
    torch.cuda.current_stream().wait_stream(s)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        f()
    return g.replay


def say(**k):
    print(json.dumps(dict(part="torch", torch=k.pop("what"), **k)), flush=True)


@torch.no_grad()
def conv(c, h, n, dtype):
    torch.cuda.reset_peak_memory_stats()
    w = torch.empty(c, c, 3, 3, device=dev).uniform_(-1, 1).mul_((9 * c) ** -0.5).to(dtype).to(memory_format=torch.channels_last)
    y = torch.randn(n, c, h, h, device=dev).mul_(0.5).relu_().add_(1.2).to(dtype).to(memory_format=torch.channels_last)
    z = torch.ones_like(y, memory_format=torch.channels_last)
    slope = torch.rand_like(y)
    flop = 2 * 9 * c * c * h * h * n

    def forward():
        x = z
        for _ in range(12):
            new = F.conv2d(x, w, padding=1).tanh_().add_(y)
            r = torch.linalg.vector_norm((new - x).flatten(1), dim=1)
            x = new
        return x, r

    def plain():  # without residuals
        x = z
        for _ in range(12):
            x = F.conv2d(x, w, padding=1).tanh_().add_(y)
        return x

    def adjoint():
        q = y
        for _ in range(12):
            q = F.conv_transpose2d(q, w, padding=1).add_(y).mul_(slope)
        return q

    def wgrad():
        return torch.ops.aten.convolution_backward(y, z, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False])

    for name, f, count in (("conv iteration", forward, 12), ("conv iteration without residual", plain, 12), ("conv adjoint iteration", adjoint, 12), ("conv wgrad", wgrad, 1)):
        us = median_us(graphed(f)) / count
        say(what=name, shape=f"{c}x{h}x{h}", batch=n, dtype=str(dtype)[6:], us=round(us, 2), tflops=round(flop / us * 1e-6, 1), peak_mib=round(torch.cuda.max_memory_allocated() / 2**20))


@torch.no_grad()
def dense(n):
    w = torch.empty(87, 87, device=dev).uniform_(-1, 1).mul_(87**-0.5)
    y = torch.randn(n, 87, device=dev).relu_().add_(1.2)

    def forward():
        x = torch.ones_like(y)
        for _ in range(20):
            new = (x @ w.T).tanh_().add_(y)
            r = torch.linalg.vector_norm(new - x, dim=1)
            x = new
        return x, r

    say(what="dense iteration", batch=n, us=round(median_us(graphed(forward)) / 20, 2))


@torch.no_grad()
def fourier(c, h, n):
    m = torch.randn(h, h // 2 + 1, c, c, device=dev, dtype=torch.complex64) / c
    k = torch.randn(n, c, h, h, device=dev)
    g = torch.randn(n, c, h, h, device=dev)

    def step():
        x = g
        for _ in range(5):
            u = 2 * F.relu(x) - x
            s = torch.fft.rfft2(u).permute(2, 3, 1, 0).contiguous()
            s = m @ s
            new = torch.fft.irfft2(s.permute(3, 2, 0, 1).contiguous(), s=(h, h)) + k
            r = torch.linalg.vector_norm((new - x).flatten(1), dim=1)
            x = new
        return x, r

    try:
        f = graphed(step)
    except Exception:  # cuFFT plans may refuse to be captured
        f = step
    say(what="Peaceman-Rachford iteration", shape=f"{c}x{h}x{h}", batch=n, us=round(median_us(f) / 5, 1))


def part(f, *a):
    if time.time() - began > 85:
        return say(what="skipped", name=str(f), args=str(a))
    try:
        f(*a)
    except Exception as e:
        say(what="failed", error=repr(e)[:300])


a = torch.randn(8192, 8192, device=dev, dtype=torch.bfloat16)
b = torch.randn(8192, 8192, device=dev, dtype=torch.bfloat16)
us = median_us(lambda: a @ b, 10)
say(what="bf16 matmul ceiling", tflops=round(2 * 8192**3 / us * 1e-6))
del a, b
for shape in ((48, 32, 128), (32, 28, 128), (64, 64, 64)):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        part(conv, *shape, dtype)
part(dense, 128)
part(dense, 256)
part(fourier, 48, 32, 128)
