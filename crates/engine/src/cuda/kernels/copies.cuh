// Copies to shared memory that go on while a thread does something else.
#pragma once
#include "images.cuh"

// bench/cuda/emu_driver.cpp runs copies at once and has one block at a time.
#ifdef EMULATED
static char* launch_memory = emu::dynamic_shared;
template <u32 BYTES>
static void copy_later(void* to, const void* from) { memcpy(to, from, BYTES); }
static void copy_later_or_clear(void* to, const void* from, bool there) {
    if (there) memcpy(to, from, 16);
    else memset(to, 0, 16);
}
static void await_copies() {}
static void end_group() {}
template <u32 LATER>
static void await_groups() {}
#else
// The shared memory that a launch gives a block.
extern __shared__ __align__(16) char launch_memory[];
// Nothing there may be read before `await_copies`.
template <u32 BYTES>
__device__ inline void copy_later(void* to, const void* from) {
    u32 place = (u32)__cvta_generic_to_shared(to);
    // Sixteen bytes may pass by the nearest cache, where nobody looks for them again.
    if (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from));
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(from), "n"(BYTES));
}
// The same for 16 bytes, or zeros if they are not there.
__device__ inline void copy_later_or_clear(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0));
}
__device__ inline void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// The thread's copies since the last one are a group, which may be none.
__device__ inline void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All groups but the LATER last ones are there.
template <u32 LATER>
__device__ inline void await_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory"); }
#endif

// Begins to bring four channels, of which `left` exist; zeros where there is no pixel. `fours`: all come in fours.
__device__ inline void bring_four(float4* to, const float* from, bool there, int left, bool fours) {
    if (fours)
        copy_later_or_clear(to, from, there && left > 0);
    else
        *to = four_channels(from, there ? left : 0, false);
}
