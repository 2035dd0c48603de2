// A CUDA driver without a GPU: libcuda.so for tests of the engine's `Cuda` device on machines that have none (emu_driver.sh).
// Kernels are the engine's own sources, compiled for the host. Every thread of a block is a fiber that runs to its next barrier; blocks
// run one after the other. EMU_REVERSE=1 runs the threads of a block, and the blocks, the other way round: what needs a barrier
// that is not there then gives other numbers. EMU_TRACE=1 tells every call that puts something on the stream, one per line, on stderr:
// kernels with their blocks, allocations and copies with their bytes. EMU_IDLE=1 runs no kernel: what is left is the host's time. New
// memory is NaN, and writes beyond an allocation are found when it is freed.
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
static Dim threadIdx, blockIdx, blockDim, gridDim;
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };

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
const unsigned THREADS_MOST = 512;
const size_t STACK = 1 << 16;
struct Gate;
struct Fiber { void* sp; bool done; Gate* gate; unsigned long seen; };
static Fiber fibers[THREADS_MOST];
static char* stacks = nullptr;
static void* main_sp;
static unsigned now;
// Shared memory that a launch gives its blocks, and what follows it, which must stay as it is.
alignas(16) static char dynamic_shared[1 << 18];
static unsigned dynamic_bytes;
static const unsigned DYNAMIC_GUARD = 1024;
static void (*body)(void**);
static void** params;
static bool any, all, were_any, were_all;
// Barriers: of the block (threads that have returned do not count), and of each warp.
struct Gate { unsigned waiting; unsigned long generation; };
static Gate block_gate, warp_gates[THREADS_MOST / 32];
static unsigned alive;

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
        fibers[t] = {top, false, nullptr, 0};
    }
    alive = threads;
    any = false;
    all = true;
    block_gate.waiting = 0;
    if (dynamic_bytes) {
        memset(dynamic_shared, 0xff, dynamic_bytes);
        memset(dynamic_shared + dynamic_bytes, 0xab, DYNAMIC_GUARD);
    }
    while (alive) {
        bool moved = false;
        for (unsigned k = 0; k < threads; k++) {
            unsigned t = reverse ? threads - 1 - k : k;
            if (fibers[t].done || (fibers[t].gate && fibers[t].gate->generation == fibers[t].seen)) continue;
            moved = true;
            fibers[t].gate = nullptr;
            now = t;
            threadIdx = {t, 0, 0};
            emu_switch(&main_sp, fibers[t].sp);
            alive -= fibers[t].done;
        }
        if (alive && block_gate.waiting == alive) {
            were_any = any;
            were_all = all;
            any = false;
            all = true;
            block_gate.waiting = 0;
            block_gate.generation++;
        } else if (!moved) {
            fprintf(stderr, "emu: threads wait for each other\n");
            abort();
        }
    }
    for (unsigned i = 0; dynamic_bytes && i < DYNAMIC_GUARD; i++)
        if ((unsigned char)dynamic_shared[dynamic_bytes + i] != 0xab) {
            fprintf(stderr, "emu: written beyond %u bytes of shared memory\n", dynamic_bytes);
            abort();
        }
}
static void wait_at(Gate& gate) {
    fibers[now].gate = &gate;
    fibers[now].seen = gate.generation;
    yield_to_main();
}
static void barrier() {
    block_gate.waiting++;
    wait_at(block_gate);
}
// Every lane of a warp brings something; `together` sees what all of them brought. Twice, since a lane may be one call ahead.
template <class T, class F> static auto warp_call(const T& mine, F together) {
    static T brought[2][THREADS_MOST / 32][32];
    static unsigned calls[THREADS_MOST];
    unsigned t = now, warp = t / 32;
    T* all_of_them = brought[calls[t]++ & 1][warp];
    all_of_them[t % 32] = mine;
    Gate& gate = warp_gates[warp];
    if (++gate.waiting == 32) {
        gate.waiting = 0;
        gate.generation++;
    } else {
        wait_at(gate);
    }
    return together(all_of_them, t % 32);
}
static float half_to_float(uint16_t h) { _Float16 x; memcpy(&x, &h, 2); return (float)x; }
static uint16_t float_to_half(float f) { _Float16 x = (_Float16)f; uint16_t h; memcpy(&h, &x, 2); return h; }
static unsigned bits(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static float from_bits(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static uint16_t float_to_bf(float f) { unsigned u = bits(f); return f != f ? 0x7fff : (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16); }
static void load_tiles(unsigned* tiles, const void* row, bool turned) {
    warp_call(row, [&](const void** rows, unsigned lane) {
        for (unsigned m = 0; m < 4; m++) {
            uint16_t pair[2];
            for (unsigned h = 0; h < 2; h++) {
                unsigned r = turned ? lane % 4 * 2 + h : lane / 4, c = turned ? lane / 4 : lane % 4 * 2 + h;
                const char* from = (const char*)rows[m * 8 + r];
                if ((uintptr_t)from % 16) { fprintf(stderr, "emu: a row of a tile is not aligned\n"); abort(); }
                memcpy(&pair[h], from + 2 * c, 2);
            }
            memcpy(&tiles[m], pair, 4);
        }
        return 0;
    });
}
struct Fragments { unsigned a[4], b[2]; };
static float entry_of(unsigned pair, unsigned half, bool bf) {
    return bf ? from_bits(pair >> (16 * half) << 16) : half_to_float((uint16_t)(pair >> (16 * half)));
}
static void multiply(float* sums, const unsigned* a, unsigned b0, unsigned b1, bool bf) {
    Fragments mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    warp_call(mine, [&](Fragments* of, unsigned lane) {
        for (unsigned k = 0; k < 4; k++) {
            unsigned row = lane / 4, column = lane % 4 * 2 + k % 2;
            float sum = 0.0f;
            for (unsigned d = 0; d < 16; d++) {
                const Fragments &x = of[row * 4 + d % 8 / 2], &y = of[column * 4 + d % 8 / 2];
                sum += entry_of(x.a[k / 2 + d / 8 * 2], d % 2, bf) * entry_of(y.b[d / 8], d % 2, bf);
            }
            sums[k] += sum;
        }
        return 0;
    });
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
#define __host__
#define __noinline__
#define __grid_constant__
#define __restrict__
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
static unsigned atomicAdd(unsigned* at, unsigned x) { unsigned old = *at; *at = old + x; return old; }
static unsigned atomicOr(unsigned* at, unsigned x) { unsigned old = *at; *at = old | x; return old; }
static unsigned atomicExch(unsigned* at, unsigned x) { unsigned old = *at; *at = x; return old; }
static void __threadfence() {}
static void __syncwarp() { emu::warp_call(0, [](int*, unsigned) { return 0; }); }
template <class T> static T __shfl_xor_sync(unsigned, T x, unsigned off) {
    return emu::warp_call(x, [&](T* all, unsigned lane) { return all[lane ^ off]; });
}
template <class T> static T __shfl_sync(unsigned, T x, unsigned from) {
    return emu::warp_call(x, [&](T* all, unsigned) { return all[from]; });
}
static unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
static unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static float __uint_as_float(unsigned x) { return emu::from_bits(x); }
static unsigned __float_as_uint(float x) { return emu::bits(x); }
static long long __double_as_longlong(double x) {
    long long bits;
    memcpy(&bits, &x, 8);
    return bits;
}
template <class T> static T __ldg(const T* p) { return *p; }
template <class T> static T __ldcs(const T* p) { return *p; }
template <class T> static T __ldcg(const T* p) { return *p; }
template <class T> static void __stcg(T* p, T x) { *p = x; }
static void sincospi(double x, double* sine, double* cosine) { sincos(M_PI * x, sine, cosine); }
static void sincospif(float x, float* sine, float* cosine) { *sine = (float)sin(M_PI * x), *cosine = (float)cos(M_PI * x); }
static float __fdividef(float x, float y) { return x / y; }
// What kernels/mma.cuh has for the GPU.
#define EMULATED
static void load_tiles(unsigned (&tiles)[4], const void* row) { emu::load_tiles(tiles, row, false); }
static void load_turned_tiles(unsigned (&tiles)[4], const void* row) { emu::load_tiles(tiles, row, true); }
static void multiply_f16(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) { emu::multiply(sums, a, b0, b1, false); }
static void multiply_bf16(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) { emu::multiply(sums, a, b0, b1, true); }
static unsigned pair_f16(float x, float y) { return emu::float_to_half(x) | (unsigned)emu::float_to_half(y) << 16; }
static float2 of_f16(unsigned pair) { return {emu::half_to_float((uint16_t)pair), emu::half_to_float((uint16_t)(pair >> 16))}; }
static unsigned pair_bf16(float x, float y) { return emu::float_to_bf(x) | (unsigned)emu::float_to_bf(y) << 16; }
static unsigned warp_max(unsigned x) {
    return emu::warp_call(x, [](unsigned* all, unsigned) {
        unsigned most = 0;
        for (int i = 0; i < 32; i++) most = max(most, all[i]);
        return most;
    });
}

#include KERNELS

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef void* Handle;
static std::mutex one_at_a_time;
static std::map<CUdeviceptr, size_t> allocations;
static const size_t GUARD = 4096;
static size_t bytes_now = 0, most_bytes = 0;

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

// Kernels by what the program was given for them.
static std::map<void*, std::string> names;

// Bytes of shared memory that launches may give a kernel's blocks: what it was told. (A GPU allows what fits into 48 kB with the kernel's own
// memory without being told, which is not known here.)
static std::map<void*, unsigned> shared_allowed;

// One line of EMU_TRACE.
static void trace(const char* what, size_t x, size_t y = 1, size_t z = 1) {
    static const bool on = getenv("EMU_TRACE") != nullptr;
    if (on) fprintf(stderr, "emu %s %zu %zu %zu\n", what, x, y, z);
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
CUresult cuFuncSetAttribute(Handle function, int which, int value) {
    if (which == 8) // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        shared_allowed[function] = (unsigned)value;
    return 0;
}
CUresult cuStreamDestroy_v2(Handle) { return 0; }
CUresult cuDeviceGetDefaultMemPool(Handle* pool, int) { *pool = (Handle)3; return 0; }
CUresult cuMemPoolGetAttribute(Handle, int, void* value) { *(uint64_t*)value = most_bytes; return 0; }
CUresult cuEventCreate(Handle* event, unsigned) { *event = (Handle)5; return 0; }
CUresult cuEventRecord(Handle, Handle) { return 0; }
CUresult cuEventElapsedTime_v2(float* ms, Handle, Handle) { *ms = 0.0f; return 0; }
CUresult cuEventElapsedTime(float* ms, Handle, Handle) { *ms = 0.0f; return 0; }
CUresult cuEventSynchronize(Handle) { return 0; }
CUresult cuEventDestroy_v2(Handle) { return 0; }
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
    bytes_now += bytes;
    if (bytes_now > most_bytes) most_bytes = bytes_now;
    trace("allocate", bytes);
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
    bytes_now -= it->second;
    trace("free", it->second);
    allocations.erase(it);
    return 0;
}
CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char value, size_t n, Handle) {
    std::lock_guard<std::mutex> lock(one_at_a_time);
    trace("memset", n);
    check_range(p, n, "memset");
    memset((void*)p, value, n);
    return 0;
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t n, Handle) {
    std::lock_guard<std::mutex> lock(one_at_a_time);
    trace("write", n);
    check_range(to, n, "copy");
    memcpy((void*)to, from, n);
    return 0;
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t n, Handle) {
    std::lock_guard<std::mutex> lock(one_at_a_time);
    trace("read", n);
    check_range(from, n, "copy");
    memcpy(to, (void*)from, n);
    return 0;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, Handle) {
    std::lock_guard<std::mutex> lock(one_at_a_time);
    trace("copy", n);
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
    names[*function] = name;
    return 0;
}
CUresult cuLaunchKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, Handle,
                        void** params, void**) {
    std::lock_guard<std::mutex> lock(one_at_a_time);
    if (shared > shared_allowed[function] || shared > 227 << 10 || by * bz != 1 || bx > emu::THREADS_MOST || !gx || !gy || !gz || gy > 65535 || gz > 65535) return 1;
    trace(names[function].c_str(), gx, gy, gz);
    static const bool idle = getenv("EMU_IDLE") != nullptr;
    if (idle) return 0;
    emu::body = (void (*)(void**))function;
    emu::params = params;
    emu::dynamic_bytes = shared;
    gridDim = {gx, gy, gz};
    blockDim = {bx, 1, 1};
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
