// Convolutions of 3 x 3 taps by Hopper's warpgroup products (wgmma), f32 accurate, for as many channels out as in: as convolutions.cu, with the
// weights in shared memory for the whole launch.
//
// A block has two teams of two warpgroups. A team takes tile after tile of 256 pixels, which may hang over the image: it brings the tile and its
// halo as they are, turns them into f16 halves in the same place, scaled by a power of two of the tile's own, multiplies, and goes on with the sums
// as convolutions.cu does. The second team begins later, when it has brought the weights: else both would wait for memory at the same time, and then
// for the tensor cores. Halves lie as [16 channels][high, low][8 channels][pixel of the halo][8 channels]: a tap is an offset of 16 bytes for each
// pixel (onchip.cuh). A warpgroup has two of the tile's four squares of 8 x 8 pixels.
//
// Tensor cores truncate as they add: what the low halves add is one sum, the high ones are three, one for each row of taps, added with rounding.
// Nothing depends on other samples: the same bits in any batch.
#include "convolutions.cuh"
#include "dev.cuh"

#define TEAM 256
#define TEAMS 2
// Pixels of a tile, and room for those of its halo: as many that eights of channels begin in different banks.
#define TILE_PIXELS 256
#define HALO_ROOM 345
// Samples of a batch of which those are listed that are worked on.
#define LISTED 1024
// Fours of numbers of 16 channels of a halo that a thread has.
#define SHARE 6

// The threads of a team.
struct Crew {
    // Reading more ahead takes registers that there are not, and the other team works meanwhile.
    static constexpr u32 COUNT = TEAM, AHEAD = 1;
    u32 number;
    // Said anew each time: what depends on it is else kept through all tiles, in registers that there are not.
    __device__ u32 thread() const { return (u32)opaque((int)(threadIdx.x % TEAM)); }
    __device__ void meet() const { asm volatile("bar.sync %0, %1;" ::"r"(1 + number), "n"(TEAM) : "memory"); }
};

// What is known of such a convolution: the compiler leaves out the questions.
template <u32 C>
__device__ inline Convolution known(Convolution shape) {
    shape.inputs = shape.outputs = C;
    shape.planes_in = shape.planes_out = 1;
    return shape;
}

template <u32 C>
struct Warpgroups {
    static constexpr u32 EIGHTS = C / 8, FOURS = C / 4, STEPS = C / 16, TAPS = 9;
    // Bytes of eight channels of a halo, of the halves of 16, of all, and of the high or low halves of the weights.
    static constexpr u32 PLANE = HALO_ROOM * 16, STEP = 4 * PLANE, HALO = STEPS * STEP, WEIGHTS = TAPS * C * C * 2;
    static constexpr u32 BYTES = 2 * WEIGHTS + TEAMS * HALO;
    // Numbers from a pixel to the next of the staged sums, which lie in other banks.
    static constexpr u32 PITCH = C + 4;
    static_assert(HALO_ROOM * 4 <= SHARE * TEAM, "a thread has its share");
    static_assert((TILE_PIXELS + 32) * PITCH * 4 <= HALO, "sums, and a number for each column, have their place");

    const Convolution& shape;
    Crew crew;
    u32 warp, lane;
    unsigned char* room;
    unsigned char* own;
    // What the sums of the tile are to be multiplied by.
    float back;

    __device__ Warpgroups(const Convolution& shape) : shape(shape), back(1.0f) {
        // The same for all lanes, which the compiler must know: it serialises products on a path that might not be taken by all.
        crew.number = warp_uniform((int)(threadIdx.x / TEAM));
        warp = warp_uniform((int)(threadIdx.x % TEAM / 32));
        lane = threadIdx.x % 32;
        room = (unsigned char*)launch_memory;
        own = room + 2 * WEIGHTS + crew.number * HALO;
    }
    __device__ u32 pitch() const { return shape.tile_width + 2; }
    __device__ u32 halo() const { return pitch() * (shape.tile_height + 2); }

    // Begins to bring the weights, by one team for both.
    __device__ void bring_weights(const uint4* weights) const {
        for (u32 i = crew.thread(); i < 2 * WEIGHTS / 16; i += TEAM) copy_later<16>(room + 16 * i, weights + i);
    }
    // Begins to bring a tile of a sample's image, and its halo: [16 channels][pixel][channel].
    __device__ void bring(const float* image, u32 top, u32 left) const {
        Divisor by_pitch(pitch());
        u32 first = crew.thread();
#pragma unroll
        for (u32 i = 0; i < SHARE; i++) {
            u32 item = i * TEAM + first, pixel = item / 4, row = by_pitch.of(pixel);
            int r = (int)(top + row) - 1, c = (int)(left + pixel - row * pitch()) - 1, height = shape.height, width = shape.width;
            if (pixel >= halo()) break;
            bool there = true;
            if (shape.circular) {
                r += r < 0 ? height : r >= height ? -height : 0;
                c += c < 0 ? width : c >= width ? -width : 0;
            } else {
                there = r >= 0 && r < height && c >= 0 && c < width;
            }
            const float* from = image + (there ? (u32)(r * width + c) * C + item % 4 * 4 : 0);
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) copy_later_or_clear(own + step * STEP + 16 * item, from + 16 * step, there);
        }
    }
    // A thread's share of 16 channels, as it was brought.
    __device__ void get(u32 step, float4 (&x)[SHARE]) const {
        u32 first = crew.thread();
#pragma unroll
        for (u32 i = 0; i < SHARE; i++) {
            u32 item = i * TEAM + first;
            x[i] = item / 4 < halo() ? ((const float4*)(own + step * STEP))[item] : float4{0.0f, 0.0f, 0.0f, 0.0f};
        }
    }
    // Turns what was brought into halves.
    __device__ void halve() {
        __shared__ u32 sizes[TEAMS][TEAM / 32];
        float4 x[SHARE];
        u32 size = 0;
#pragma unroll 1
        for (u32 step = 0; step < STEPS; step++) {
            get(step, x);
#pragma unroll
            for (u32 i = 0; i < SHARE; i++) size = max(size, max(max(size_bits(x[i].x), size_bits(x[i].y)), max(size_bits(x[i].z), size_bits(x[i].w))));
        }
        size = warp_max(size);
        if (lane == 0) sizes[crew.number][warp] = size;
        crew.meet();
        for (u32 k = 0; k < TEAM / 32; k++) size = max(size, sizes[crew.number][k]);
        Scale scale = scale_of(size);
        back = scale.back;
#pragma unroll 1
        for (u32 step = 0; step < STEPS; step++) {
            get(step, x);
            // All have theirs.
            crew.meet();
            u32 first = crew.thread();
#pragma unroll
            for (u32 i = 0; i < SHARE; i++) {
                u32 item = i * TEAM + first, pixel = item / 4, four = item % 4;
                if (pixel >= halo()) continue;
                Halves a = halves_f16(x[i].x * scale.to, x[i].y * scale.to), b = halves_f16(x[i].z * scale.to, x[i].w * scale.to);
                unsigned char* to = own + step * STEP + four / 2 * PLANE + pixel * 16 + four % 2 * 8;
                *(uint2*)to = {a.high, b.high};
                *(uint2*)(to + 2 * PLANE) = {a.low, b.low};
            }
        }
    }
    // Square m of the tile: its first pixel's row and column.
    __device__ u32 square_row(u32 m) const { return m / (shape.tile_width / 8) * 8; }
    __device__ u32 square_column(u32 m) const { return m % (shape.tile_width / 8) * 8; }
    // The sums of two squares, as warps have them. The weights are there, and the halves.
    __device__ void multiply(float (&total)[2][EIGHTS][4]) const {
        u64 weights = wgmma_factor(smem_addr(room), C * 16, 128);
        constexpr u32 ROW = 3 * EIGHTS * C;
#pragma unroll
        for (u32 square = 0; square < 2; square++) {
            u32 m = warp / 4 * 2 + square, origin = square_row(m) * pitch() + square_column(m);
            u64 pixels = wgmma_factor(smem_addr(own) + origin * 16, PLANE, pitch() * 16);
            float some[EIGHTS][4];
            wgmma_ready(total[square]);
            wgmma_fence();
#pragma unroll 1
            for (u32 down = 0; down < 3; down++) {
                wgmma_taps<STEP>(total[square], pixels + 2 * PLANE / 16 + down * pitch(), weights + down * ROW, down);
                wgmma_taps<STEP>(total[square], pixels + down * pitch(), weights + WEIGHTS / 16 + down * ROW, 1);
            }
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_ready(total[square]);
#pragma unroll 1
            for (u32 down = 0; down < 3; down++) {
                wgmma_ready(some);
                wgmma_fence();
                wgmma_taps<STEP>(some, pixels + down * pitch(), weights + down * ROW, 0);
                wgmma_commit();
                wgmma_wait<0>();
                wgmma_ready(some);
#pragma unroll
                for (u32 n = 0; n < EIGHTS; n++)
#pragma unroll
                    for (u32 k = 0; k < 4; k++) total[square][n][k] += some[n][k];
            }
        }
    }
    // The sums as [pixel][channel], in the place of the halves, which nobody reads any more.
    __device__ void stage(const float (&total)[2][EIGHTS][4]) const {
        u32 first = (u32)opaque((int)(warp % 4 * 16 + lane / 4));
#pragma unroll
        for (u32 square = 0; square < 2; square++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                u32 m = warp / 4 * 2 + square, number = first + 8 * half;
                u32 pixel = (square_row(m) + number / 8) * shape.tile_width + square_column(m) + number % 8;
                float* to = (float*)own + pixel * PITCH + lane % 4 * 2;
#pragma unroll
                for (u32 n = 0; n < EIGHTS; n++) *(float2*)(to + 8 * n) = {total[square][n][2 * half], total[square][n][2 * half + 1]};
            }
    }
    // What is done with the staged sums. Distances are not measured.
    template <class Finish>
    __device__ void finish_tile(const Convolution& shape, const TileShare& share, const Finish& finish, const float* scales) const {
        float* staged = (float*)own;
        bool columns = finish.has_columns();
        Gap gap = {0.0, 0.0};
#pragma unroll 1
        for (u32 item = crew.thread(); item < TILE_PIXELS * FOURS; item += TEAM) {
            Place place;
            Given given;
            if (!share.find(shape, item / FOURS, item % FOURS, place)) continue;
            // Known, so that nothing asks for it.
            place.whole = true, place.count = 4;
            finish.read(shape, place, given);
            float* at = staged + item / FOURS * PITCH + item % FOURS * 4;
            float4 sums = *(const float4*)at, scale = __ldg((const float4*)scales + item % FOURS);
            // One after the other: both together may be too small a number.
            float values[2][4] = {{sums.x * back * scale.x, sums.y * back * scale.y, sums.z * back * scale.z, sums.w * back * scale.w}, {}};
            finish.four(shape, place, values, given, gap, columns ? at : 0);
        }
        if (columns) {
            crew.meet();
            finish_columns<PITCH>(shape, share, finish, crew, staged, staged + TILE_PIXELS * PITCH);
        }
    }
};

// The samples that are worked on, in their order, and how many they are. For the whole block.
__device__ inline u32 list_active(const u32* active, u32 batch, u32* listed) {
    __shared__ u32 counts[TEAMS * TEAM / 32];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, total = 0;
    for (u32 first = 0; first < batch; first += TEAMS * TEAM) {
        u32 sample = first + threadIdx.x;
        bool there = sample < batch && active[sample];
        u32 votes = __ballot_sync(~0u, there), at = total;
        if (lane == 0) counts[warp] = __popc(votes);
        __syncthreads();
        for (u32 other = 0; other < TEAMS * TEAM / 32; other++) {
            if (other < warp) at += counts[other];
            total += counts[other];
        }
        if (there) listed[at + __popc(votes & ((1u << lane) - 1))] = sample;
        __syncthreads();
    }
    return total;
}

// The packed weights: [half][tap][eight inputs][output][input], then what each output's sums are to be multiplied by.
template <u32 C, class Finish>
__device__ void convolve_by_warpgroups(const Convolution& any, u32 batch, const float* images, const float* packed, const Finish& finish, const u32* active) {
    const Convolution shape = known<C>(any);
    Warpgroups<C> groups(shape);
    // Known to all after the first barrier of the block.
    finish.begin();
    // The team that begins later.
    bool second = groups.crew.number > 0;
    if (second) groups.bring_weights((const uint4*)packed);
    const float* scales = packed + 2 * Warpgroups<C>::WEIGHTS / sizeof(float);
    // Of samples that are worked on, so that blocks have as many as others to the end of a solve. Larger batches: of all.
    __shared__ u32 listed[LISTED];
    bool by_list = active && batch <= LISTED;
    u32 tiles = (by_list ? list_active(active, batch, listed) : batch) * shape.tiles;
    auto sample_of = [&](u32 tile) { return by_list ? listed[tile / shape.tiles] : tile / shape.tiles; };
    auto share_of = [&](u32 tile) {
        u32 number = tile % shape.tiles, top = number / shape.across * shape.tile_height, left = number % shape.across * shape.tile_width;
        return TileShare{sample_of(tile), top, left, TILE_PIXELS, 0, C / 4, Divisor(shape.tile_width), Divisor(C / 4)};
    };
    bool first = true;
    for (u32 tile = blockIdx.x + gridDim.x * groups.crew.number;; tile += gridDim.x * TEAMS) {
        // Both teams come to the first barrier, whether there is a tile for them or not.
        if (tile >= tiles && !first) break;
        bool there = warp_uniform((int)(tile < tiles && (!active || by_list || active[tile / shape.tiles])));
        if (first && second) {
            await_copies();
            async_fence_own();
            __syncthreads();
        }
        if (there) {
            TileShare share = share_of(tile);
            groups.bring(images + (u64)share.sample * shape.area() * C, share.top, share.left);
            // A thread has a pixel with all of its channels.
            Place own;
            if (share.find(shape, groups.crew.thread(), 0, own)) finish.expect(shape, own);
            // Each turns what it brought itself.
            await_copies();
            groups.halve();
        }
        async_fence_own();
        // The first team waits for the weights.
        if (first && !second) __syncthreads();
        else groups.crew.meet();
        first = false;
        if (!there) continue;
        float total[2][Warpgroups<C>::EIGHTS][4];
        groups.multiply(total);
        groups.crew.meet();
        groups.stage(total);
        groups.crew.meet();
        // As above, and nothing of it kept meanwhile.
        Convolution anew = shape;
        anew.height = (u32)opaque((int)shape.height), anew.width = (u32)opaque((int)shape.width), anew.tile_width = (u32)opaque((int)shape.tile_width);
        groups.finish_tile(anew, share_of((u32)opaque((int)tile)), finish, scales);
        // Nobody reads the sums any more.
        groups.crew.meet();
    }
}

#define WARPGROUPS(C, name, Finish)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(TEAMS * TEAM, 1)                                                                            \
    warpgroup_##name##_##C(Convolution shape, u32 batch, const float* images, const float* packed, const __grid_constant__ Finish finish,    \
                           const u32* active) {                                                                                              \
        convolve_by_warpgroups<C>(shape, batch, images, packed, finish, active);                                                             \
    }
#define ALL_WARPGROUPS(C)               \
    WARPGROUPS(C, convolve, Keep)       \
    WARPGROUPS(C, apply, Apply)         \
    WARPGROUPS(C, linearise, Linearise) \
    WARPGROUPS(C, pull, Pull)
ALL_WARPGROUPS(48)
ALL_WARPGROUPS(32)

// Packs the weights [out][in][tap], a warp for each column. Transposed: the columns are the inputs, the taps mirrored.
extern "C" __global__ void __launch_bounds__(THREADS) pack_for_warpgroups(u32 channels, const float* weights, u32 transposed, float* packed) {
    u32 out = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32, count = 9 * channels, size = 0;
    if (out >= channels) return;
    auto weight = [&](u32 tap, u32 in) { return transposed ? weights[(in * channels + out) * 9 + (8 - tap)] : weights[(out * channels + in) * 9 + tap]; };
    for (u32 i = lane; i < count; i += 32) size = max(size, size_bits(weight(i / channels, i % channels)));
    Scale scale = scale_of(warp_max(size));
    u32* high = (u32*)packed;
    u32* low = high + count * channels / 2;
    for (u32 i = lane; i < count / 2; i += 32) {
        u32 tap = 2 * i / channels, in = 2 * i % channels, at = (((tap * channels + in) / 8) * channels + out) * 4 + in % 8 / 2;
        Halves both = halves_f16(weight(tap, in) * scale.to, weight(tap, in + 1) * scale.to);
        high[at] = both.high;
        low[at] = both.low;
    }
    if (lane == 0) packed[count * channels + out] = scale.back;
}
