// A CUDA driver without a GPU: libcuda.so for tests of the engine's `Cuda` device on machines that have none (emu_driver.sh).
// Kernels are the engine's own sources, compiled for the host. Every thread of a block is a fiber that runs to its next barrier; blocks
// run one after the other. EMU_REVERSE=1 runs the threads of a block, and the blocks, the other way round: what needs a barrier
// that is not there then gives other numbers. New memory is NaN, and writes beyond an allocation are found when it is freed.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <map>
#include <mutex>
#include <string>
#include <utility>

struct Dim { unsigned x, y, z; };
static Dim threadIdx, blockIdx, gridDim;
struct alignas(16) float4 { float x, y, z, w; };

extern "C" void emu_switch(void** save, void* to);
asm(R"(
.globl emu_switch
emu_switch:
  push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx
  ret
)");

namespace emu {
const unsigned THREADS_MOST = 256;
const size_t STACK = 1 << 16;
struct Fiber { void* sp; bool done; };
static Fiber fibers[THREADS_MOST];
static char* stacks = nullptr;
static void* main_sp;
static unsigned now;
static void (*body)(void**);
static void** params;
static bool any, all, were_any, were_all;

static void yield_to_main() {
    unsigned me = now;
    emu_switch(&fibers[me].sp, main_sp);
}
static void entry() {
    body(params);
    fibers[now].done = true;
    yield_to_main();
    abort();
}
static void run_block(unsigned threads) {
    static const bool reverse = getenv("EMU_REVERSE") != nullptr;
    if (!stacks) stacks = (char*)aligned_alloc(4096, STACK * THREADS_MOST);
    for (unsigned t = 0; t < threads; t++) {
        void** top = (void**)(stacks + STACK * (t + 1));
        *--top = nullptr;          // alignment: entry begins as after a call
        *--top = (void*)entry;     // where emu_switch returns to
        for (int i = 0; i < 6; i++) *--top = nullptr;
        fibers[t] = {top, false};
    }
    for (bool left = true; left;) {
        left = false;
        any = false;
        all = true;
        for (unsigned k = 0; k < threads; k++) {
            unsigned t = reverse ? threads - 1 - k : k;
            if (fibers[t].done) continue;
            now = t;
            threadIdx = {t, 0, 0};
            emu_switch(&main_sp, fibers[t].sp);
            left |= !fibers[t].done;
        }
        were_any = any;
        were_all = all;
    }
}
static void barrier() {
    unsigned t = now;
    yield_to_main();
    (void)t;
}
template <class... P, size_t... I>
void call_with(void (*f)(P...), void** params, std::index_sequence<I...>) { f(*(P*)params[I]...); }
template <class... P>
void call(void (*f)(P...), void** params) { call_with(f, params, std::index_sequence_for<P...>{}); }
}  // namespace emu

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
static void __syncthreads() { emu::barrier(); }
static int __syncthreads_or(int p) { emu::any |= p != 0; emu::barrier(); return emu::were_any; }
static int __syncthreads_and(int p) { emu::all &= p != 0; emu::barrier(); return emu::were_all; }
// Every thread of the block must come here, as in all kernels that use it. Two sets of slots: a fast thread is at most one exchange ahead.
template <class T> static T __shfl_xor_sync(unsigned, T x, int mask) {
    static T slots[2][emu::THREADS_MOST];
    static unsigned turns[emu::THREADS_MOST];
    unsigned me = emu::now, turn = turns[me]++ % 2;
    slots[turn][me] = x;
    emu::barrier();
    return slots[turn][me ^ mask];
}
static unsigned atomicSub(unsigned* at, unsigned x) { unsigned old = *at; *at = old - x; return old; }
static unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }

#include KERNELS

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef void* Handle;
static std::mutex one_at_a_time;
static std::map<CUdeviceptr, size_t> allocations;
static const size_t GUARD = 4096;

static std::map<std::string, void (*)(void**)>& kernels() {
    static std::map<std::string, void (*)(void**)> table = {
#define KERNEL(name) {#name, [](void** params) { emu::call(name, params); }},
#include LIST
    };
    return table;
}

// Whether [p, p + bytes) lies within one allocation.
static void check_range(CUdeviceptr p, size_t bytes, const char* what) {
    auto it = allocations.upper_bound(p);
    if (it != allocations.begin() && (--it)->first + it->second >= p + bytes) return;
    fprintf(stderr, "emu: %s of %zu bytes at %lx is outside of every allocation\n", what, bytes, (unsigned long)p);
    abort();
}

extern "C" {
CUresult cuInit(unsigned) { return 0; }
CUresult cuDriverGetVersion(int* version) { *version = 13000; return 0; }
CUresult cuDeviceGet(int* device, int) { *device = 0; return 0; }
CUresult cuDeviceGetCount(int* count) { *count = 1; return 0; }
CUresult cuDeviceGetName(char* name, int len, int) { snprintf(name, len, "emulated GPU"); return 0; }
CUresult cuDeviceGetAttribute(int* value, int which, int) { *value = which == 75 ? 8 : 0; return 0; }  // compute capability 8.0: no clusters
CUresult cuDeviceTotalMem_v2(size_t* bytes, int) { *bytes = 8ull << 30; return 0; }
CUresult cuDevicePrimaryCtxRetain(Handle* context, int) { *context = (Handle)1; return 0; }
CUresult cuDevicePrimaryCtxRelease_v2(int) { return 0; }
CUresult cuCtxSetCurrent(Handle) { return 0; }
CUresult cuStreamCreate(Handle* stream, unsigned) { *stream = (Handle)2; return 0; }
CUresult cuStreamSynchronize(Handle) { return 0; }
CUresult cuStreamDestroy_v2(Handle) { return 0; }
CUresult cuDeviceGetDefaultMemPool(Handle* pool, int) { *pool = (Handle)3; return 0; }
CUresult cuMemPoolSetAttribute(Handle, int, void*) { return 0; }
CUresult cuMemAllocAsync(CUdeviceptr* p, size_t bytes, Handle) {
    std::lock_guard<std::mutex> lock(one_at_a_time);
    char* memory = (char*)malloc(bytes + 2 * GUARD);
    if (!memory) return 2;
    memset(memory, 0xab, GUARD);
    memset(memory + GUARD, 0xff, bytes);
    memset(memory + GUARD + bytes, 0xab, GUARD);
    *p = (CUdeviceptr)(memory + GUARD);
    allocations[*p] = bytes;
    return 0;
}
CUresult cuMemFreeAsync(CUdeviceptr p, Handle) {
    std::lock_guard<std::mutex> lock(one_at_a_time);
    auto it = allocations.find(p);
    if (it == allocations.end()) { fprintf(stderr, "emu: freed what was not allocated\n"); abort(); }
    for (size_t i = 0; i < GUARD; i++)
        if (((unsigned char*)p)[-1 - (long)i] != 0xab || ((unsigned char*)p)[it->second + i] != 0xab) {
            fprintf(stderr, "emu: written beyond an allocation of %zu bytes\n", it->second);
            abort();
        }
    free((char*)p - GUARD);
    allocations.erase(it);
    return 0;
}
CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char value, size_t n, Handle) {
    std::lock_guard<std::mutex> lock(one_at_a_time);
    check_range(p, n, "memset");
    memset((void*)p, value, n);
    return 0;
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t n, Handle) {
    std::lock_guard<std::mutex> lock(one_at_a_time);
    check_range(to, n, "copy");
    memcpy((void*)to, from, n);
    return 0;
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t n, Handle) {
    std::lock_guard<std::mutex> lock(one_at_a_time);
    check_range(from, n, "copy");
    memcpy(to, (void*)from, n);
    return 0;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, Handle) {
    std::lock_guard<std::mutex> lock(one_at_a_time);
    check_range(from, n, "copy");
    check_range(to, n, "copy");
    memcpy((void*)to, (void*)from, n);
    return 0;
}
CUresult cuModuleLoadData(Handle* module, const void*) { *module = (Handle)4; return 0; }
CUresult cuModuleGetFunction(Handle* function, Handle, const char* name) {
    auto it = kernels().find(name);
    if (it == kernels().end()) return 500;
    *function = (Handle)it->second;
    return 0;
}
CUresult cuLaunchKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned, Handle,
                        void** params, void**) {
    std::lock_guard<std::mutex> lock(one_at_a_time);
    if (by * bz != 1 || bx > emu::THREADS_MOST || !gx || !gy || !gz || gy > 65535 || gz > 65535) return 1;
    emu::body = (void (*)(void**))function;
    emu::params = params;
    gridDim = {gx, gy, gz};
    static const bool reverse = getenv("EMU_REVERSE") != nullptr;
    size_t count = (size_t)gx * gy * gz;
    for (size_t k = 0; k < count; k++) {
        size_t b = reverse ? count - 1 - k : k;
        blockIdx = {(unsigned)(b % gx), (unsigned)(b / gx % gy), (unsigned)(b / gx / gy)};
        emu::run_block(bx);
    }
    return 0;
}
CUresult cuGetErrorName(CUresult error, const char** text) { *text = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_EMULATED"; return 0; }
CUresult cuGetErrorString(CUresult, const char** text) { *text = "an error of the emulator"; return 0; }
}
