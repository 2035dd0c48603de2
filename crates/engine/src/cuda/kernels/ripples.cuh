// An iteration of samples whose changes come back and which send changes: as `plane_step`, with all transforms on tensor cores.
// Changes are f16, so products of f16 with sums in f32 lose little that is not lost already (CHANGE_ROUNDING counts it). The turns are f16.
//
// A complex number is two real ones, (re, im) one after the other, which is how a lane has two neighbours of a sum. Columns: the rows of a
// product's tile are re of eight rows of the image and then im of these, so that a lane gets both of a number; its columns are the channels.
// Rows: the columns of a row spectrum, 0 and N / 2 as one, are what is summed over, and a lane gets pixels `line`, 8 + line, .. of two channels.
// What is sent goes the same way back; in between tiles are turned round within a warp.
//
// A block has 16 channels of a sample, so that 64 neighbouring bytes of everything go at once, which an L2 cache has more of than of 32. They are
// two tiles, and tile h has channels 4 i + 2 h and the next one, i < 4: a lane has four neighbours of a pixel.
#pragma once
#include "fourier.cuh"

__device__ inline u32 swapped(u32 pair) { return pair >> 16 | pair << 16; }
// Pairs (re, im) of f16: i x; x with the other sign of im.
__device__ inline u32 times_i(u32 pair) { return swapped(pair) ^ 0x8000u; }
__device__ inline u32 conjugate(u32 pair) { return pair ^ 0x80000000u; }

// The transpose of an 8 x 8 tile of f16, of which a lane has two neighbours of row lane / 4.
__device__ inline u32 turned_tile(u32 pair) {
#ifdef EMULATED
    return emu::warp_call(pair, [](const u32* of, u32 lane) {
        u32 turned = 0;
        for (u32 h = 0; h < 2; h++) {
            u32 row = lane % 4 * 2 + h, column = lane / 4;
            turned |= (of[row * 4 + column / 2] >> column % 2 * 16 & 0xffffu) << 16 * h;
        }
        return turned;
    });
#else
    u32 turned;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
    return turned;
#endif
}

#define RIPPLE_THREADS 256

template <u32 N, u32 KIND>
struct Ripples {
    static constexpr u32 CHANNELS = 16, TILES = 2, TILE = CHANNELS / TILES, WARPS = RIPPLE_THREADS / 32;
    static constexpr u32 HALF = N / 2, STEPS = (N + 7) / 8;
    // From a column to the next in shared memory: a little more than its numbers, so that neighbours lie in other banks; from a tile to the next.
    static constexpr u32 COLUMN = N * TILE + 8, SPECTRUM = (HALF + 1) * COLUMN;
    // Columns of a warp when they are sent, and rows of it; eights of a row's pixels.
    static constexpr u32 COLUMNS = (HALF + WARPS - 1) / WARPS, ROWS = 4, EIGHTS = 4;
    static_assert(N % 4 == 0, "a step of a sum has four or eight numbers");
    static_assert(N <= WARPS * ROWS && N <= 8 * EIGHTS && HALF <= 16, "all rows, pixels and columns have their place");

    const Plane& plane;
    u32 sample, first, groups;
    // [tile][column][row][channel]: the HALF + 1 columns that come, and in their place the HALF that go, of which the first has columns 0 and
    // HALF in it.
    u32* waves;
    // (cos, sin) of j / N of a turn.
    const u32* turns;
    u32 lane, warp, place, line;

    __device__ Ripples(const Plane& plane, const u32* turns) : plane(plane), turns(turns) {
        groups = plane.channels / CHANNELS;
        sample = blockIdx.x / groups;
        first = blockIdx.x % groups * CHANNELS;
        waves = (u32*)launch_memory;
        lane = threadIdx.x % 32;
        warp = threadIdx.x / 32;
        place = lane % 4;
        line = lane / 4;
    }
    // From a frequency to the next.
    __device__ u64 stride() const { return (u64)plane.batch * plane.padded; }
    __device__ u64 wave(u32 column, u32 row) const { return plane.spectrum_at(column, row, sample) + first; }

    // What a thread brings of the changes: four channels of some waves.
    static constexpr u32 PASS = RIPPLE_THREADS / 4, WAVES = (HALF + 1) * N;
    struct Share {
        uint4 fours[(WAVES + PASS - 1) / PASS];
    };
    __device__ bool has_wave(u32 pass) const { return (pass + 1) * PASS <= WAVES || pass * PASS + threadIdx.x / 4 < WAVES; }
    __device__ void fetch(const u32* changes, Share& share) const {
        const u32* from = changes + wave(0, 0) + threadIdx.x / 4 * stride() + 4 * place;
#pragma unroll
        for (u32 i = 0; i * PASS < WAVES; i++)
            if (has_wave(i)) share.fours[i] = __ldcg((const uint4*)(from + i * PASS * stride()));
    }
    __device__ void put(const Share& share) const {
#pragma unroll
        for (u32 i = 0; i * PASS < WAVES; i++) {
            u32 at = i * PASS + threadIdx.x / 4;
            u32* to = waves + at / N * COLUMN + at % N * TILE + 2 * place;
            if (!has_wave(i)) continue;
            *(uint2*)to = {share.fours[i].x, share.fours[i].y};
            *(uint2*)(to + SPECTRUM) = {share.fours[i].z, share.fours[i].w};
        }
    }

    // The row of `columns_in` that a lane has, and its share of that transform's matrix.
    struct ColumnsBack {
        u32 y, a[STEPS][4];
    };
    __device__ ColumnsBack columns_back() const {
        ColumnsBack back;
        back.y = warp % 4 * 8 + line;
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            u32 near = turns[(8 * step + place) * back.y % N], far = turns[(8 * step + 4 + place) * back.y % N];
            back.a[step][0] = conjugate(near), back.a[step][1] = swapped(near), back.a[step][2] = conjugate(far), back.a[step][3] = swapped(far);
        }
        return back;
    }
    // Columns back, of eight rows of a tile: all threads of the block come here, and find the rows in `waves` afterwards.
    __device__ void columns_in(const ColumnsBack& back) {
        u32 rows[HALF][2];
        u32* tile = waves + warp / 4 * SPECTRUM;
        const u32* from = tile + place * TILE + line;
#pragma unroll
        for (u32 k = 0; k < HALF; k++) {
            float sums[4] = {};
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) {
                const u32* some = from + k * COLUMN + 8 * step * TILE;
                multiply_f16(sums, back.a[step], some[0], 8 * step + 4 < N ? some[4 * TILE] : 0u);
                if (k > 0) continue;
                some += HALF * COLUMN;
                multiply_f16(sums, back.a[step], times_i(some[0]), 8 * step + 4 < N ? times_i(some[4 * TILE]) : 0u);
            }
            rows[k][0] = narrow({sums[0], sums[2]});
            rows[k][1] = narrow({sums[1], sums[3]});
        }
        // Nobody reads the columns any more.
        __syncthreads();
        if (back.y < N)
#pragma unroll
            for (u32 k = 0; k < HALF; k++) *(uint2*)(tile + k * COLUMN + back.y * TILE + 2 * place) = {rows[k][0], rows[k][1]};
        // Rows of both tiles are there.
        __syncthreads();
    }

    // A number of a transform's matrix: what column k of a row's spectrum has of its pixel x and the other way round, re and im. The first
    // column is 0 and HALF.
    __device__ u32 turn_of(u32 k, u32 x) const { return k == 0 ? (x % 2 ? 0xbc003c00u : 0x3c003c00u) : conjugate(turns[k * x % N]); }
    // A lane's share of the matrices of the rows' transforms, each a tile of it for a step of the sum: back (a tile has 16 pixels, a step eight
    // columns), where columns count twice since half of them are missing, and there (a tile has re of eight columns and then im of these, a step
    // 16 pixels). Half a turn of 32 pixels later odd columns have the other sign and even ones the same: then one tile, and one step there, do.
    static constexpr bool TWINS = N == 32;
    static constexpr u32 BACK_TILES = TWINS ? 1 : 2, THERE_STEPS = TWINS ? 1 : 2, THERE = 2 * BACK_TILES, MATRICES = THERE + 2 * THERE_STEPS;
    __device__ u32 share_of(u32 matrix, u32 i) const {
        if (matrix < THERE) {
            u32 tile = matrix / 2, step = matrix % 2, k = 8 * step + i / 2 * 4 + place;
            float2 turn = of_f16(turn_of(k, 16 * tile + i % 2 * 8 + line));
            float times = k == 0 ? 1.0f : 2.0f;
            return pair_f16(times * turn.x, times * turn.y);
        }
        u32 tile = (matrix - THERE) / THERE_STEPS, step = (matrix - THERE) % THERE_STEPS;
        u32 k = 8 * tile + line, x = 16 * step + i / 2 * 8 + 2 * place, one = turn_of(k, x), two = turn_of(k, x + 1);
        return i % 2 ? one >> 16 | (two & 0xffff0000u) : (one & 0xffffu) | two << 16;
    }
    // Both numbers of a pair with the other sign.
    static constexpr u32 SIGNS = 0x80008000u;
    // Each warp makes some of them, for all.
    __device__ void make_matrices(uint4* matrices) const {
        for (u32 matrix = warp; matrix < MATRICES; matrix += WARPS)
            matrices[matrix * 32 + lane] = {share_of(matrix, 0), share_of(matrix, 1), share_of(matrix, 2), share_of(matrix, 3)};
    }

    // Rows of g, and of the slopes of an adjoint, come to shared memory a row ahead: [warp][row % QUEUE][g or slopes][pixel][channel].
    static constexpr u32 QUEUE = 2, INPUTS = KIND == SLOPES ? 2 : 1, ROW = N * CHANNELS;
    // What a launch is to give a block.
    static constexpr u32 BYTES = (TILES * SPECTRUM + WARPS * QUEUE * INPUTS * ROW) * sizeof(u32);
    __device__ float* queue(u32 row) const { return (float*)(waves + TILES * SPECTRUM) + (warp * QUEUE + row % QUEUE) * INPUTS * ROW; }
    // Where the warp's rows begin in an array; from a row to the next; where a lane finds what it brings of a row and what it has of it.
    __device__ u64 begin() const { return ((u64)sample * N + warp * ROWS) * N * plane.channels + first; }
    __device__ u32 row_step() const { return N * plane.channels; }
    __device__ u32 own() const { return line * plane.channels + 4 * place; }
    // Begins to bring a row of the warp's, if there is one: a group of copies. `g` and `slopes` are the lane's.
    __device__ void bring(u32 row, const float* g, const float* slopes) const {
        float* to = queue(row) + 4 * lane;
        if (row < ROWS && (N == WARPS * ROWS || warp * ROWS + row < N))
#pragma unroll
            for (u32 i = 0; i < EIGHTS; i++) {
                u32 eight = 8 * i * plane.channels;
                if (!has_pixel(i)) continue;
                copy_later<16>(to + 8 * i * CHANNELS, g + eight);
                if (KIND == SLOPES) copy_later<16>(to + ROW + 8 * i * CHANNELS, slopes + eight);
            }
        end_group();
    }
    // The first rows of the queue.
    __device__ void begin_queue(const float* g, const float* slopes) const {
        u64 at = begin() + own();
        for (u32 row = 0; row < QUEUE; row++, at += row_step()) bring(row, g + at, KIND == SLOPES ? slopes + at : nullptr);
    }
    __device__ bool has_pixel(u32 eight) const { return N == 8 * EIGHTS || 8 * eight + line < N; }
    // The masks of four channels of row lane / 4 of the warp's.
    __device__ uint4 masks_of(const u32* masks) const {
        u32 y = warp * ROWS + line;
        if (line >= ROWS || y >= N) return {0, 0, 0, 0};
        return __ldg((const uint4*)(masks + ((u64)sample * N + y) * plane.channels + first + 4 * place));
    }
    __device__ static uint4 lent(const uint4& of, u32 lane) {
        return {__shfl_sync(~0u, of.x, lane), __shfl_sync(~0u, of.y, lane), __shfl_sync(~0u, of.z, lane), __shfl_sync(~0u, of.w, lane)};
    }
    // What is sent of two channels of pixel x.
    __device__ static u32 sent_of(const Reflection& by, const Flow& flow, const Wave& old, const Wave& next, float2 d, uint2 masks, u32 x) {
        if constexpr (KIND == MASKS) {
            float below = fmaf(2.0f, by.factor, -1.0f);
            return narrow({(masks.x >> x & 1 ? 1.0f : below) * (next.re - old.re) * flow.scale_next,
                           (masks.y >> x & 1 ? 1.0f : below) * (next.im - old.im) * flow.scale_next});
        } else {
            float2 slopes = {0.0f, 0.0f};
            if (KIND == SLOPES) slopes = {reflected_slope(by, d.x), reflected_slope(by, d.y)};
            return narrow({sent<KIND>(by, slopes.x, old.re, next.re, flow), sent<KIND>(by, slopes.y, old.im, next.im, flow)});
        }
    }

    // The warp's rows: their pixels, g, and the row spectra of what is sent, in the place of those that came.
    __device__ void rows(const uint4* matrices, const Flow& flow, const Reflection& by, const float* slopes, float* g, PairPath& path) const {
        u32 shares[MATRICES][4];
#pragma unroll
        for (u32 matrix = 0; matrix < MATRICES; matrix++) {
            uint4 four = matrices[matrix * 32 + lane];
            shares[matrix][0] = four.x, shares[matrix][1] = four.y, shares[matrix][2] = four.z, shares[matrix][3] = four.w;
        }
        // Of the columns that a lane has of a row spectrum, and of those that it has of a matrix, all are odd or none.
        u32 odd_columns = place % 2 ? SIGNS : 0, odd_lines = line % 2 ? SIGNS : 0;
        float back = by.part / flow.scale_back;
        Squares squares;
        uint4 all_masks = {0, 0, 0, 0};
        if (KIND == MASKS) all_masks = masks_of((const u32*)slopes);
        float* to = g + begin() + own();
#pragma unroll 1
        for (u32 row = 0; row < ROWS; row++) {
            u32 y = warp * ROWS + row;
            if (y >= N) break;
            u32* spectrum = waves + y * TILE;
            u32 in[TILES][4], out[TILES][EIGHTS];
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    u32 k = 4 * i + place;
                    in[tile][i] = k < HALF ? spectrum[tile * SPECTRUM + k * COLUMN + line] : 0u;
                }
            await_groups<QUEUE - 1>();
            __syncwarp();
            const float* pixels = queue(row) + 4 * lane;
            uint4 masks = all_masks;
            if (KIND == MASKS) masks = lent(all_masks, row * 4 + place);
#pragma unroll
            for (u32 two = 0; two < EIGHTS; two += 2) {
                float sums[TILES][4] = {};
#pragma unroll
                for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
                    for (u32 step = 0; step < 2; step++) {
                        u32 sign = TWINS && two > 0 ? odd_columns : 0;
                        multiply_f16(sums[tile], shares[TWINS ? step : two + step], in[tile][2 * step] ^ sign, in[tile][2 * step + 1] ^ sign);
                    }
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    u32 eight = two + i, x = 8 * eight + line;
                    float4 before = {0.0f, 0.0f, 0.0f, 0.0f}, d = before;
                    if (has_pixel(eight)) before = *(const float4*)(pixels + 8 * eight * CHANNELS);
                    if (KIND == SLOPES && has_pixel(eight)) d = *(const float4*)(pixels + ROW + 8 * eight * CHANNELS);
                    Wave old[TILES] = {{before.x, before.y}, {before.z, before.w}}, next[TILES];
#pragma unroll
                    for (u32 tile = 0; tile < TILES; tile++) {
                        next[tile] = {fmaf(sums[tile][2 * i], back, old[tile].re), fmaf(sums[tile][2 * i + 1], back, old[tile].im)};
                        if (!has_pixel(eight)) next[tile] = {0.0f, 0.0f};
                        squares.add(old[tile], next[tile]);
                    }
                    if (has_pixel(eight)) __stcg((float4*)(to + 8 * eight * plane.channels), float4{next[0].re, next[0].im, next[1].re, next[1].im});
                    out[0][eight] = turned_tile(sent_of(by, flow, old[0], next[0], {d.x, d.y}, {masks.x, masks.y}, x));
                    out[1][eight] = turned_tile(sent_of(by, flow, old[1], next[1], {d.z, d.w}, {masks.z, masks.w}, x));
                }
            }
            // Every lane has read the row, and its spectrum.
            __syncwarp();
            const float* later = to + QUEUE * row_step();
            bring(row + QUEUE, later, KIND == SLOPES ? slopes + (later - g) : nullptr);
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                u32 k = 8 * half + line, near = THERE + half * THERE_STEPS, far[4];
#pragma unroll
                for (u32 i = 0; i < 4; i++) far[i] = TWINS ? shares[near][i] ^ odd_lines : shares[near + THERE_STEPS - 1][i];
#pragma unroll
                for (u32 tile = 0; tile < TILES; tile++) {
                    float sums[4] = {};
                    multiply_f16(sums, shares[near], out[tile][0], out[tile][1]);
                    multiply_f16(sums, far, out[tile][2], out[tile][3]);
                    if (k < HALF) *(uint2*)(spectrum + tile * SPECTRUM + k * COLUMN + 2 * place) = {narrow({sums[0], sums[2]}), narrow({sums[1], sums[3]})};
                }
            }
            to += row_step();
        }
        path.add(squares);
    }

    // The warp's columns of what goes, transformed; all rows are there.
    __device__ void columns_out(u32* changes) const {
        u32 b[COLUMNS][TILES][STEPS][2];
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++)
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
                for (u32 step = 0; step < STEPS; step++) {
                    const u32* from = waves + tile * SPECTRUM + min(COLUMNS * warp + i, HALF - 1) * COLUMN + (8 * step + place) * TILE + line;
                    b[i][tile][step][0] = from[0];
                    b[i][tile][step][1] = 8 * step + 4 < N ? from[4 * TILE] : 0u;
                }
        // Column 0 is (0, HALF), which are real: of a warp's columns the first may be that one.
        u32 kept = warp == 0 ? 0xffffu : ~0u;
        u32* to = changes + wave(COLUMNS * warp, line) + 4 * place;
#pragma unroll 1
        for (u32 eight = 0; eight < STEPS; eight++) {
            u32 row = 8 * eight + line;
            float sums[COLUMNS][TILES][4] = {}, last[TILES][4] = {};
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) {
                u32 near = turns[(8 * step + place) * row % N], far = turns[(8 * step + 4 + place) * row % N];
                u32 a[4] = {near, times_i(near), far, times_i(far)};
#pragma unroll
                for (u32 tile = 0; tile < TILES; tile++) {
#pragma unroll
                    for (u32 i = 0; i < COLUMNS; i++) {
                        u32 mask = i == 0 ? kept : ~0u;
                        multiply_f16(sums[i][tile], a, b[i][tile][step][0] & mask, b[i][tile][step][1] & mask);
                    }
                    if (warp == 0) multiply_f16(last[tile], a, b[0][tile][step][0] >> 16, b[0][tile][step][1] >> 16);
                }
            }
            auto put = [](u32* to, const float (&sums)[TILES][4]) {
                *(uint4*)to = {narrow({sums[0][0], sums[0][2]}), narrow({sums[0][1], sums[0][3]}), narrow({sums[1][0], sums[1][2]}), narrow({sums[1][1], sums[1][3]})};
            };
            if (N % 8 != 0 && row >= N) break;
#pragma unroll
            for (u32 i = 0; i < COLUMNS; i++)
                if (HALF % WARPS == 0 || COLUMNS * warp + i < HALF) put(to + i * N * stride(), sums[i]);
            // Column HALF, by the warp that has column 0.
            if (warp == 0) put(to + HALF * N * stride(), last);
            to += 8 * stride();
        }
    }
};

// One iteration from the products on, of rippling samples. Channels are multiples of 16; the measure is the relative one. `slopes` may be masks.
template <u32 N, u32 KIND>
__device__ void ripple_step(const Plane& plane, const Course& course, u32 iteration, const Reflection& by, const Waters& from, const Waters& to,
                            const float* slopes, float* g) {
    __shared__ u32 turns[N];
    __shared__ uint4 matrices[Ripples<N, KIND>::MATRICES * 32];
    Ripples<N, KIND> ripples(plane, turns);
    if (course.samples.active[ripples.sample] != 1) return;
    Flow flow = course.flows[ripples.sample];
    if (!is_rippling(flow)) return;
    // Known, so that nothing asks for it again.
    flow.whole_back = flow.whole_next = 0;
    typename Ripples<N, KIND>::Share share;
    ripples.fetch(from.changes, share);
    if (threadIdx.x < N) {
        float sine, cosine;
        sincospif(2.0f * threadIdx.x / N, &sine, &cosine);
        turns[threadIdx.x] = pair_f16(cosine, sine);
    }
    __syncthreads();
    // After the barrier, and so after the changes, which are needed first.
    ripples.begin_queue(g, slopes);
    ripples.make_matrices(matrices);
    auto back = ripples.columns_back();
    ripples.put(share);
    __syncthreads();
    ripples.columns_in(back);
    PairPath path;
    ripples.rows(matrices, flow, by, slopes, g, path);
    path.leave(RELATIVE);
    __syncthreads();
    ripples.columns_out(to.changes);
    conclude_part(course, iteration, ripples.sample, ripples.groups, by.part, (u64)N * N * plane.channels);
}

#define RIPPLE(N, KIND, name)                                                                                                                \
    extern "C" __global__ void __launch_bounds__(RIPPLE_THREADS, KIND == SLOPES ? 2 : 3)                                                     \
    fourier_ripple_##name##_##N(Plane plane, Course course, u32 iteration, Reflection by, Waters from, Waters to, const float* slopes,       \
                                float* g) {                                                                                                  \
        ripple_step<N, KIND>(plane, course, iteration, by, from, to, slopes, g);                                                             \
    }
#define RIPPLES(N)             \
    RIPPLE(N, SLOPES, slopes)  \
    RIPPLE(N, KINKED, kinked)  \
    RIPPLE(N, PLAIN_TANH, tanh) \
    RIPPLE(N, MASKS, masks)
