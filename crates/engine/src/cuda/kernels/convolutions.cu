// Convolutions on tensor cores, f32 accurate, and what is done with their sums while they are still in registers.
//
// A block has a tile of one sample's pixels, up to 256, and 8 TILES columns (output channels, of both planes where there are two).
// It goes through the input in slabs of 16 channels: a slab of the tile and of its halo is brought to shared memory as f16 halves, scaled
// by a power of two of its own; then every tap is one step of 16 of the sum, its pixels' addresses moved, while the next slab comes as it
// is. Each warp has 32 pixels and all columns. Weights are packed for the lanes that multiply by them (`pack_convolution`) and come from the L1 cache.
//
// Tensor cores truncate as they add: the sum over a tap's 16 channels begins at zero and is added to the total with rounding.
// Nothing depends on other samples: the same bits in any batch.
#include "copies.cuh"
#include "map.cuh"
#include "mma.cuh"
#include "solve.cuh"

#define SLAB 16
#define WARPS (THREADS / 32)
#define HALO_MOST 448
// Numbers of a row of staged sums, and the bytes of shared memory that they or the halo need.
#define PITCH(tiles) (8 * (tiles) + 8)
#define PIXEL_BYTES (4 * SLAB)
// Fours of numbers that a thread reads before it uses the first: what it waits for is memory.
#define READS 3

struct Convolution {
    u32 height, width, inputs, outputs, planes_in, planes_out;
    u32 side, circular;
    // Of a block: its pixels, how many such tiles are next to each other, and how many a sample has.
    u32 tile_height, tile_width, across, tiles;
    // Columns by eights, all planes: what the blocks have together.
    u32 column_tiles, unused;
    __device__ u32 slabs_of_plane() const { return (inputs + SLAB - 1) / SLAB; }
    __device__ u32 slabs() const { return planes_in * slabs_of_plane(); }
    __device__ u32 taps() const { return side * side; }
    __device__ u64 area() const { return (u64)height * width; }
};

// Four neighbouring channels of a pixel of a sample; `count` of them exist. `whole`: all channels come in fours.
struct Place {
    u32 sample, pixel, column, channel, count;
    bool whole;
    // Where it is in a plane.
    __device__ u64 at(const Convolution& shape) const { return (u64)pixel * shape.outputs + channel; }
};

__device__ inline void read_four(float (&x)[4], const float* from, const Place& place) {
    if (place.whole) {
        float4 v = *(const float4*)from;
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++) x[i] = i < place.count ? from[i] : 0.0f;
    }
}
__device__ inline void write_four(const float (&x)[4], float* to, const Place& place) {
    if (place.whole) {
        *(float4*)to = {x[0], x[1], x[2], x[3]};
    } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            if (i < place.count) to[i] = x[i];
    }
}

// How far images are from their arguments: a thread's part.
struct Gap {
    double difference, size;
    __device__ void add(const float (&image)[4], const float (&argument)[4], const Place& place) {
        for (u32 i = 0; i < 4; i++) {
            if (i >= place.count) continue;
            double f = image[i], off = f - (double)argument[i];
            difference += off * off;
            size += f * f;
        }
    }
};

// Norms along an image's height are taken of columns: a thread has one, of one channel. `row` numbers lie between its entries.

// What a column is multiplied by to have 1 as its largest absolute value.
__device__ inline float inverse_largest(const float* column, u64 row, u32 height) {
    float largest = 0.0f;
#pragma unroll 16
    for (u32 i = 0; i < height; i++) {
        float size = fabsf(column[i * row]);
        if (!(size < largest)) largest = size;
    }
    return 1.0f / largest;
}

// The derivative of the normalisation at a batch of states.
struct Norm {
    // The normalised states, the gradients of their norms, and what they were multiplied by: one for each column.
    const float* states;
    const float* gradients;
    const float* inverses;
    // <state, g> in a column that begins at `at` of all states; `step` numbers lie between the entries of g.
    __device__ float inner(const float* g, u64 step, u64 at, u64 row, u32 height) const {
        float sum = 0.0f;
#pragma unroll 16
        for (u32 i = 0; i < height; i++) sum = fmaf(states[at + i * row], g[i * step], sum);
        return sum;
    }
    // An entry of N' g.
    static __device__ float pulled(float g, float inner, float gradient, float inverse) { return (g - inner * gradient) * inverse; }
};

// What a thread reads for four numbers, ahead of their sums.
struct Given {
    float first[4], second[4], before[4];
};
// What a thread reads for four numbers of its block's columns.
struct ColumnEntries {
    float value[4], gradient[4], slope[4];
};

// What a kernel does with its sums that neither goes on through whole columns nor measures distances.
struct Plain {
    __device__ bool has_columns() const { return false; }
    __device__ float column(const Convolution&, const float*, u64, u64) const { return 0.0f; }
    __device__ void read_entries(const Convolution&, const Place&, ColumnEntries&) const {}
    __device__ void put_entries(const Convolution&, const Place&, const ColumnEntries&, const float*) const {}
    __device__ bool measured() const { return false; }
    __device__ Distance* parts() const { return 0; }
};

// out <- the sums, plus a bias for each channel.
struct Keep : Plain {
    const float* bias;
    float* out;
    __device__ void begin() const {}
    __device__ void expect(const Convolution&, const Place&) const {}
    __device__ void read(const Convolution&, const Place&, Given&) const {}
    __device__ void four(const Convolution& shape, const Place& place, float (&sums)[2][4], const Given&, Gap&, float*) const {
        u64 len = shape.area() * shape.outputs;
#pragma unroll
        for (u32 plane = 0; plane < 2; plane++) {
            if (plane >= shape.planes_out) break;
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (bias && i < place.count) sums[plane][i] += bias[plane * shape.outputs + place.channel + i];
            write_four(sums[plane], out + (place.sample * (u64)shape.planes_out + plane) * len + place.at(shape), place);
        }
    }
};

// A kernel's map, brought near: reading it from where a kernel's arguments are takes longer than using it, and every formula asks for
// several constants one after the other.
__shared__ Map near_map;

// Not inlined: all formulas with all activations are long, and would be compiled into every kernel many times over.
__device__ __noinline__ float any_image_of(float u, float w, float y, float other) { return image_of(near_map, u, w, y, other); }
// By value: what is left at an address goes through memory, and so does everything beside it.
struct Tangent {
    float image, du, dw;
};
__device__ __noinline__ Tangent any_slopes_of(float u, float w, float y, float other) {
    Tangent at;
    at.image = slopes_of(near_map, u, w, y, other, at.du, at.dw);
    return at;
}

#ifdef EMULATED
static float short_exp2(float x) { return exp2f(x); }
static float short_log2(float x) { return log2f(x); }
#else
// 2^x and log2 x to a few units in the last place; what is or would be denormal counts as zero.
__device__ inline float short_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float short_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif
// tanh to about 2e-7 absolutely (tanhf knows small numbers relatively, and takes three times as long). A NaN stays one.
__device__ inline float short_tanh(float x) { return 1.0f - __fdividef(2.0f, short_exp2(2.885390081777927f * x) + 1.0f); }

// Whether it is one of the maps that are used most, whose formulas are short: (tanh + base)^power, where the base keeps that positive.
__device__ inline bool is_short(const Map& map) {
    return map.formula == SINGLE && map.activation == TANH && (!map.has_power || map.base > 1.0f);
}
// What such a map makes of u = W z and y, and the slope of it.
__device__ inline float short_image(const Map& map, float u, float y, float& slope) {
    float s = short_tanh(map.inner ? u + y : u), outer = map.inner ? map.shift : y + map.shift;
    slope = (1.0f - s) * (1.0f + s);
    if (!map.has_power) return s + outer;
    float based = s + map.base, h = short_exp2(map.power * short_log2(based));
    slope *= __fdividef(map.power * h, based);
    return h + outer;
}

// The injection at a place, and the second one of a power ratio.
__device__ inline void read_injections(const Map& map, const float* y, u64 at, const Place& place, float (&ys)[4], float (&others)[4]) {
    if (map.formula == POWER_RATIO) {
        read_four(ys, y + 2 * place.sample * map.len + at, place);
        read_four(others, y + (2 * place.sample + 1) * map.len + at, place);
    } else {
        read_four(ys, y + place.sample * map.len + at, place);
    }
}

// Has the channels of a pixel brought to the L2 cache: they are wanted after the products.
__device__ inline void expect_channels(const float* from, u32 channels) {
#ifndef EMULATED
    for (u32 i = 0; i < channels; i += 32) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
#endif
}
__device__ inline void expect_injections(const Map& map, const float* y, const Convolution& shape, const Place& place) {
    u32 count = map.formula == POWER_RATIO ? 2 : 1;
    for (u32 i = 0; i < count; i++) expect_channels(y + (place.sample * (u64)count + i) * map.len + place.at(shape), shape.outputs);
}

// out <- F(argument; y), divided by the largest of each column where a block has whole ones and is told so.
struct Apply {
    Map map;
    const float* y;
    const float* argument;
    float* out;
    // Where the parts of the distance go, if they are wanted.
    Distance* distances;
    u64 normalised;
    __device__ void begin() const {
        if (threadIdx.x == 0) near_map = map;
    }
    __device__ void expect(const Convolution& shape, const Place& place) const { expect_injections(map, y, shape, place); }
    __device__ bool has_columns() const { return normalised; }
    __device__ float column(const Convolution& shape, const float* first, u64 step, u64) const { return inverse_largest(first, step, shape.height); }
    __device__ void read_entries(const Convolution&, const Place&, ColumnEntries&) const {}
    __device__ void put_entries(const Convolution& shape, const Place& place, const ColumnEntries& entries, const float* inverses) const {
        float image[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) image[i] = entries.value[i] * inverses[i];
        write_four(image, out + place.sample * map.len + place.at(shape), place);
    }
    __device__ bool measured() const { return distances != 0; }
    __device__ Distance* parts() const { return distances; }
    __device__ void read(const Convolution& shape, const Place& place, Given& given) const {
        u64 at = place.at(shape);
        read_injections(map, y, at, place, given.first, given.second);
        if (distances) read_four(given.before, argument + place.sample * map.len + at, place);
    }
    __device__ void four(const Convolution& shape, const Place& place, float (&sums)[2][4], const Given& given, Gap& gap, float* kept) const {
        const float(&ys)[4] = given.first;
        float image[4], slope;
        if (is_short(map)) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) image[i] = short_image(map, sums[0][i], ys[i], slope);
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++) image[i] = any_image_of(sums[0][i], sums[1][i], ys[i], given.second[i]);
        }
        if (kept)
            *(float4*)kept = {image[0], image[1], image[2], image[3]};
        else
            write_four(image, out + place.sample * map.len + place.at(shape), place);
        if (distances) gap.add(image, given.before, place);
    }
};

// slopes <- those of the map, all planes; out, where it is wanted, <- the image before any normalisation.
struct Linearise : Plain {
    Map map;
    const float* y;
    float* slopes;
    float* out;
    __device__ void begin() const {
        if (threadIdx.x == 0) near_map = map;
    }
    __device__ void expect(const Convolution& shape, const Place& place) const { expect_injections(map, y, shape, place); }
    __device__ void read(const Convolution& shape, const Place& place, Given& given) const {
        read_injections(map, y, place.at(shape), place, given.first, given.second);
    }
    __device__ void four(const Convolution& shape, const Place& place, float (&sums)[2][4], const Given& given, Gap&, float*) const {
        u64 at = place.at(shape);
        const float(&ys)[4] = given.first;
        float image[4], du[4], dw[4] = {};
        bool quick = is_short(map);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (quick) {
                image[i] = short_image(map, sums[0][i], ys[i], du[i]);
            } else {
                Tangent at = any_slopes_of(sums[0][i], sums[1][i], ys[i], given.second[i]);
                image[i] = at.image, du[i] = at.du, dw[i] = at.dw;
            }
        }
        float* to = slopes + place.sample * (u64)map.planes * map.len + at;
        write_four(du, to, place);
        if (map.planes == 2) write_four(dw, to + map.len, place);
        if (out) write_four(image, out + place.sample * map.len + at, place);
    }
};

// q <- D (W' q + v), all planes. Without slopes: one plane, W' q + v; where a block has whole columns, it may go on from there through
// a normalisation.
struct Pull {
    u32 planes, unused;
    const float* v;
    const float* slopes;
    const float* argument;
    float* out;
    Distance* distances;
    Norm norm;
    // Behind the normalisation: the slopes, and where q goes; how many planes it has.
    const float* norm_slopes;
    float* pulled;
    u64 pulled_planes;
    __device__ void begin() const {}
    __device__ void expect(const Convolution& shape, const Place& place) const {
        u64 len = shape.area() * shape.outputs, at = place.at(shape), state = place.sample * len + at;
        expect_channels(v + state, shape.outputs);
        if (slopes) expect_channels(slopes + planes * place.sample * len + at, shape.outputs);
        if (!pulled) return;
        expect_channels(norm.states + state, shape.outputs);
        expect_channels(norm.gradients + state, shape.outputs);
        expect_channels(norm_slopes + pulled_at(shape, place), shape.outputs);
    }
    __device__ bool has_columns() const { return pulled; }
    __device__ float column(const Convolution& shape, const float* first, u64 step, u64 at) const {
        return norm.inner(first, step, at, (u64)shape.width * shape.outputs, shape.height);
    }
    // Of the first plane of q.
    __device__ u64 pulled_at(const Convolution& shape, const Place& place) const {
        return place.sample * pulled_planes * shape.area() * shape.outputs + place.at(shape);
    }
    __device__ void read_entries(const Convolution& shape, const Place& place, ColumnEntries& entries) const {
        u64 state = place.sample * shape.area() * shape.outputs + place.at(shape);
        read_four(entries.gradient, norm.gradients + state, place);
        read_four(entries.slope, norm_slopes + pulled_at(shape, place), place);
    }
    __device__ void put_entries(const Convolution& shape, const Place& place, const ColumnEntries& entries, const float* inners) const {
        float inverses[4], q[4], d[4];
        u64 row = (u64)shape.width * shape.outputs;
        read_four(inverses, norm.inverses + place.sample * row + (u64)place.column * shape.outputs + place.channel, place);
#pragma unroll
        for (u32 i = 0; i < 4; i++) d[i] = entries.slope[i];
        for (u32 plane = 0; plane < pulled_planes; plane++) {
            u64 to = pulled_at(shape, place) + plane * shape.area() * shape.outputs;
            if (plane > 0) read_four(d, norm_slopes + to, place);
#pragma unroll
            for (u32 i = 0; i < 4; i++) q[i] = d[i] * Norm::pulled(entries.value[i], inners[i], entries.gradient[i], inverses[i]);
            write_four(q, pulled + to, place);
        }
    }
    __device__ bool measured() const { return distances != 0; }
    __device__ Distance* parts() const { return distances; }
    // v, and slopes and argument of the first plane.
    __device__ void read(const Convolution& shape, const Place& place, Given& given) const {
        u64 len = shape.area() * shape.outputs, at = place.at(shape), state = place.sample * (u64)planes * len + at;
        read_four(given.first, v + place.sample * len + at, place);
        if (slopes) read_four(given.second, slopes + state, place);
        if (distances) read_four(given.before, argument + state, place);
    }
    __device__ void four(const Convolution& shape, const Place& place, float (&sums)[2][4], const Given& given, Gap& gap, float* kept) const {
        u64 len = shape.area() * shape.outputs;
        float d[4], q[4], before[4];
        if (kept) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) kept[i] = sums[0][i] + given.first[i];
            return;
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) d[i] = given.second[i], before[i] = given.before[i];
        for (u32 plane = 0; plane < planes; plane++) {
            u64 state = (place.sample * (u64)planes + plane) * len + place.at(shape);
            if (plane > 0 && slopes) read_four(d, slopes + state, place);
            if (plane > 0 && distances) read_four(before, argument + state, place);
#pragma unroll
            for (u32 i = 0; i < 4; i++) q[i] = (slopes ? d[i] : 1.0f) * (sums[0][i] + given.first[i]);
            write_four(q, out + state, place);
            if (distances) gap.add(q, before, place);
        }
    }
};

// Where 16 bytes of a pixel of a slab lie: high channels 0-7, 8-15, low ones 0-7, 8-15, turned so that the same of eight neighbouring
// pixels are in different banks.
__device__ inline u32 chunk_at(u32 pixel, u32 chunk) { return pixel * PIXEL_BYTES + ((chunk ^ (pixel >> 1 & 3)) << 4); }

// Fours of a slab that a thread has.
#define SLAB_SHARE (HALO_MOST * 4 / THREADS)

#define NOWHERE 0xffffffffu

// Where in a plane a thread finds its share of the first slab, or NOWHERE: the same for every slab, and kept by the thread itself.
__device__ inline void find_slab(const Convolution& shape, int first_row, int first_column, u32* places) {
    u32 reach = shape.side - 1, pitch = shape.tile_width + reach, count = pitch * (shape.tile_height + reach);
    Divisor by_pitch(pitch);
#pragma unroll 1
    for (u32 i = 0; i < SLAB_SHARE; i++) {
        u32 pixel = threadIdx.x / 4 + i * (THREADS / 4), row = by_pitch.of(pixel);
        int r = first_row + (int)row, c = first_column + (int)(pixel - row * pitch);
        bool there = pixel < count && inside(r, c, shape.height, shape.width, shape.circular);
        places[i * THREADS + threadIdx.x] = there ? ((u32)r * shape.width + (u32)c) * shape.inputs + threadIdx.x % 4 * 4 : NOWHERE;
    }
}

// Begins to bring a thread's share of a slab to `raw`, as it is. `from` is the sample's plane, at the slab's channels.
__device__ inline void bring_slab(const Convolution& shape, const float* from, u32 channel, const u32* places, float4* raw) {
    int left = (int)shape.inputs - (int)(channel + threadIdx.x % 4 * 4);
    bool fours = shape.inputs % 4 == 0;
#pragma unroll
    for (u32 i = 0; i < SLAB_SHARE; i++) {
        u32 item = i * THREADS + threadIdx.x, place = places[item];
        bool there = place != NOWHERE;
        bring_four(raw + item, there ? from + place : from, there, left, fours);
    }
}

// Turns a slab, each thread the share that it brought, into halves; what its sums are to be multiplied by.
__device__ inline float put_slab(const Convolution& shape, const float4* raw, unsigned char* halo) {
    __shared__ u32 sizes[WARPS];
    u32 reach = shape.side - 1, count = (shape.tile_width + reach) * (shape.tile_height + reach);
    u32 pixel = threadIdx.x / 4, four = threadIdx.x % 4 * 4, size = 0;
    float4 x[SLAB_SHARE];
#pragma unroll
    for (u32 i = 0; i < SLAB_SHARE; i++) {
        x[i] = raw[i * THREADS + threadIdx.x];
        size = max(size, max(max(size_bits(x[i].x), size_bits(x[i].y)), max(size_bits(x[i].z), size_bits(x[i].w))));
    }
    size = warp_max(size);
    if (threadIdx.x % 32 == 0) sizes[threadIdx.x / 32] = size;
    // Also: nobody reads the last slab any more.
    __syncthreads();
    for (u32 k = 0; k < WARPS; k++) size = max(size, sizes[k]);
    Scale scale = scale_of(size);
#pragma unroll
    for (u32 i = 0; i < SLAB_SHARE; i++) {
        u32 p = pixel + i * (THREADS / 4);
        if (p >= count) break;
        Halves a = halves_f16(x[i].x * scale.to, x[i].y * scale.to), b = halves_f16(x[i].z * scale.to, x[i].w * scale.to);
        u32 at = chunk_at(p, four / 8) + four % 8 * 2;
        *(uint2*)(halo + at) = {a.high, b.high};
        *(uint2*)(halo + (at ^ 32)) = {a.low, b.low};
    }
    __syncthreads();
    return scale.back;
}

// What a block has of its sample: pixels of a tile, and channels by fours.
struct TileShare {
    u32 sample, top, left, pixels, first_channel, fours;
    Divisor by_width, by_fours;
    // Number `four` of its channels of number `pixel` of its pixels, if that is in the image.
    __device__ bool find(const Convolution& shape, u32 pixel, u32 four, Place& place) const {
        u32 row = by_width.of(pixel), r = top + row, c = left + (pixel - row * shape.tile_width), channel = first_channel + four * 4;
        if (pixel >= pixels || r >= shape.height || c >= shape.width || channel >= shape.outputs) return false;
        place = {sample, r * shape.width + c, c, channel, min(4u, shape.outputs - channel), shape.outputs % 4 == 0};
        return true;
    }
};

// Goes on through the columns of a tile that has whole ones, which `kept` has, [pixel][channel]: first one number for each of them, to
// `known`, then their entries. WIDTH: channels of a block at most.
template <u32 WIDTH, class Finish>
__device__ inline void finish_columns(const Convolution& shape, const TileShare& share, const Finish& finish, const float* kept, float* known) {
    u32 channels = min(share.fours * 4, shape.outputs - share.first_channel), count = min(shape.tile_width, shape.width - share.left) * channels;
    u64 row = (u64)shape.width * shape.outputs;
    for (u32 item = threadIdx.x; item < count; item += THREADS) {
        u32 column = item / channels, channel = item % channels;
        u64 at = share.sample * row * shape.height + (u64)(share.left + column) * shape.outputs + share.first_channel + channel;
        known[column * WIDTH + channel] = finish.column(shape, kept + column * WIDTH + channel, shape.tile_width * WIDTH, at);
    }
    __syncthreads();
#pragma unroll 1
    for (u32 first = threadIdx.x; first < share.pixels * share.fours; first += THREADS * READS) {
        Place places[READS];
        ColumnEntries entries[READS];
        bool there[READS];
#pragma unroll
        for (u32 k = 0; k < READS; k++) {
            u32 item = first + THREADS * k, pixel = share.by_fours.of(item), four = item - pixel * share.fours;
            there[k] = share.find(shape, pixel, four, places[k]);
            if (!there[k]) continue;
            float4 value = *(const float4*)(kept + pixel * WIDTH + four * 4);
            entries[k].value[0] = value.x, entries[k].value[1] = value.y, entries[k].value[2] = value.z, entries[k].value[3] = value.w;
            finish.read_entries(shape, places[k], entries[k]);
        }
#pragma unroll
        for (u32 k = 0; k < READS; k++) {
            if (!there[k]) continue;
            u32 column = places[k].column - share.left, channel = places[k].channel - share.first_channel;
            finish.put_entries(shape, places[k], entries[k], known + column * WIDTH + channel);
        }
    }
}

// The packed weights: [slab][tap][eight columns][lane], the high and low halves of what the lane multiplies by; then what each column's
// sums are to be multiplied by.
template <u32 TILES, class Finish>
__device__ void convolution(const Convolution& shape, const float* images, const float* packed, const Finish& finish, const u32* active) {
    __shared__ __align__(128) unsigned char room[HALO_MOST * PIXEL_BYTES];
    static_assert(WARPS * 16 * PITCH(6) * sizeof(float) <= sizeof(room), "the staged sums do not fit");
    u32 sample = blockIdx.x / shape.tiles, tile = blockIdx.x % shape.tiles, first_tile = blockIdx.y * TILES;
    if (active && !active[sample]) return;
    // Known to all after the barriers of the first slab.
    finish.begin();
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, centre = shape.side / 2;
    u32 top = tile / shape.across * shape.tile_height, left = tile % shape.across * shape.tile_width;
    u32 pixels = shape.tile_height * shape.tile_width, pitch = shape.tile_width + shape.side - 1;
    u32 planes = shape.planes_out, fours = TILES / planes * 2;
    TileShare share = {sample, top, left, pixels, first_tile / planes * 8, fours, Divisor(shape.tile_width), Divisor(fours)};
    // A thread has a pixel with all of its channels; other blocks of the tile need not send for them again.
    Place own;
    if (first_tile == 0 && share.find(shape, threadIdx.x, 0, own)) finish.expect(shape, own);
    // This lane's pixels of the two tiles of 16, in the halo, as the first tap sees them.
    u32 at[2];
    for (u32 m = 0; m < 2; m++) {
        u32 pixel = min(warp * 32 + m * 16 + lane % 16, pixels - 1);
        at[m] = pixel / shape.tile_width * pitch + pixel % shape.tile_width;
    }
    bool busy = warp * 32 < pixels;
    float total[2][TILES][4];
#pragma unroll
    for (u32 m = 0; m < 2; m++)
#pragma unroll
        for (u32 n = 0; n < TILES; n++)
#pragma unroll
            for (u32 k = 0; k < 4; k++) total[m][n][k] = 0.0f;
    const uint4* weights = (const uint4*)packed + first_tile * 32 + lane;
    u32 slabs = shape.slabs_of_plane(), steps_left = shape.slabs() * shape.taps();
    // Weights are loaded one step ahead.
    uint4 w[TILES];
#pragma unroll
    for (u32 n = 0; n < TILES; n++) w[n] = __ldg(weights + n * 32);
    float4* raw = (float4*)launch_memory;
    __shared__ u32 places[SLAB_SHARE * THREADS];
    find_slab(shape, (int)top - (int)centre, (int)left - (int)centre, places);
    auto bring = [&](u32 slab) {
        u32 channel = slab % slabs * SLAB;
        const float* from = images + (sample * (u64)shape.planes_in + slab / slabs) * shape.area() * shape.inputs + channel;
        bring_slab(shape, from, channel, places, raw);
    };
    bring(0);
#pragma unroll 1
    for (u32 slab = 0; slab < shape.slabs(); slab++) {
        await_copies();
        float back = put_slab(shape, raw, room);
        if (slab + 1 < shape.slabs()) bring(slab + 1);
        if (!busy) continue;
#pragma unroll 1
        for (u32 down = 0; down < shape.side; down++)
#pragma unroll 1
            for (u32 right = 0; right < shape.side; right++) {
                u32 high[2][4], low[2][4];
#pragma unroll
                for (u32 m = 0; m < 2; m++) {
                    u32 chunk = chunk_at(at[m] + down * pitch + right, lane / 16);
                    load_tiles(high[m], room + chunk);
                    load_tiles(low[m], room + (chunk ^ 32));
                }
                if (--steps_left) weights += shape.column_tiles * 32;
#pragma unroll
                for (u32 n = 0; n < TILES; n++) {
                    float sums[2][4] = {};
#pragma unroll
                    for (u32 m = 0; m < 2; m++) multiply_f16(sums[m], low[m], w[n].x, w[n].y);
#pragma unroll
                    for (u32 m = 0; m < 2; m++) multiply_f16(sums[m], high[m], w[n].z, w[n].w);
#pragma unroll
                    for (u32 m = 0; m < 2; m++) multiply_f16(sums[m], high[m], w[n].x, w[n].y);
                    w[n] = __ldg(weights + n * 32);
#pragma unroll
                    for (u32 m = 0; m < 2; m++)
#pragma unroll
                        for (u32 k = 0; k < 4; k++) total[m][n][k] = fmaf(sums[m][k], back, total[m][n][k]);
                }
            }
    }
    // The sums go through shared memory, so that a thread gets neighbouring channels, and both planes.
    __syncthreads();
    float* staged = (float*)room + warp * 16 * PITCH(TILES);
    const float* scales = packed + (u64)shape.slabs() * shape.taps() * shape.column_tiles * 128 + first_tile * 8;
    // What goes on through whole columns stays here until they are known; all slabs have been read.
    float* kept = finish.has_columns() ? (float*)launch_memory : 0;
    Gap gap = {0.0, 0.0};
#pragma unroll
    for (u32 m = 0; m < 2; m++) {
        __syncwarp();
#pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            u32 column = n * 8 + lane % 4 * 2;
            float2 scale = *(const float2*)(scales + column);
            float* to = staged + lane / 4 * PITCH(TILES) + column;
            *(float2*)to = {total[m][n][0] * scale.x, total[m][n][1] * scale.y};
            *(float2*)(to + 8 * PITCH(TILES)) = {total[m][n][2] * scale.x, total[m][n][3] * scale.y};
        }
        __syncwarp();
#pragma unroll 1
        for (u32 first = lane; first < 16 * fours; first += 32 * READS) {
            Place places[READS];
            Given given[READS];
            bool there[READS];
#pragma unroll
            for (u32 k = 0; k < READS; k++) {
                u32 item = first + 32 * k, pixel = share.by_fours.of(item);
                there[k] = item < 16 * fours && share.find(shape, warp * 32 + m * 16 + pixel, item - pixel * fours, places[k]);
                if (there[k]) finish.read(shape, places[k], given[k]);
            }
#pragma unroll
            for (u32 k = 0; k < READS; k++) {
                if (!there[k]) continue;
                u32 item = first + 32 * k, pixel = share.by_fours.of(item), four = item - pixel * fours;
                const float* sums = staged + pixel * PITCH(TILES) + (four / 2 * planes * 8 + four % 2 * 4);
                float values[2][4];
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    values[0][i] = sums[i];
                    values[1][i] = planes == 2 ? sums[8 + i] : 0.0f;
                }
                float* to = kept ? kept + (warp * 32 + m * 16 + pixel) * (8 * TILES) + four * 4 : 0;
                finish.four(shape, places[k], values, given[k], gap, to);
            }
        }
    }
    if (kept) {
        __syncthreads();
        finish_columns<8 * TILES>(shape, share, finish, kept, (float*)room);
    }
    if (!finish.measured()) return;
    double difference = block_sum(gap.difference), size = block_sum(gap.size);
    if (threadIdx.x == 0) finish.parts()[(u64)blockIdx.x * gridDim.y + blockIdx.y] = {difference, size, 0.0, 0.0};
}

#define CONVOLUTIONS(tiles)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                                     \
    convolve_##tiles(Convolution shape, const float* images, const float* packed, Keep keep, const u32* active) {                \
        convolution<tiles>(shape, images, packed, keep, active);                                                                 \
    }                                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                                     \
    apply_convolution_##tiles(Convolution shape, const float* images, const float* packed, const __grid_constant__ Apply apply, \
                              const u32* active) {                                                                               \
        convolution<tiles>(shape, images, packed, apply, active);                                                                \
    }                                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                                     \
    linearise_convolution_##tiles(Convolution shape, const float* images, const float* packed,                                   \
                                  const __grid_constant__ Linearise linearise, const u32* active) {                              \
        convolution<tiles>(shape, images, packed, linearise, active);                                                            \
    }                                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                                     \
    pull_convolution_##tiles(Convolution shape, const float* images, const float* packed, Pull pull, const u32* active) {        \
        convolution<tiles>(shape, images, packed, pull, active);                                                                 \
    }
CONVOLUTIONS(2)
CONVOLUTIONS(4)
CONVOLUTIONS(6)

// Packs the weights [out][in][tap] of up to two planes for `convolution`, a warp for each column. Transposed: the columns are the inputs,
// the taps mirrored, and the planes are summed over.
extern "C" __global__ void __launch_bounds__(THREADS)
pack_convolution(Convolution shape, const float* first, const float* second, u32 transposed, float* packed) {
    u32 column = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, tile = column / 8;
    if (tile >= shape.column_tiles) return;
    u32 taps = shape.taps(), slabs = shape.slabs_of_plane(), out = tile / shape.planes_out * 8 + column % 8;
    // Number `in` of the slab's plane.
    auto weight = [&](u32 slab, u32 tap, u32 in) {
        u32 c = slab % slabs * SLAB + in, plane = transposed ? slab / slabs : tile % shape.planes_out;
        if (c >= shape.inputs || out >= shape.outputs) return 0.0f;
        const float* w = plane == 0 ? first : second;
        return transposed ? w[((u64)c * shape.outputs + out) * taps + (taps - 1 - tap)] : w[((u64)out * shape.inputs + c) * taps + tap];
    };
    u32 steps = shape.slabs() * taps, size = 0;
    for (u32 i = lane; i < steps * SLAB; i += 32) size = max(size, size_bits(weight(i / SLAB / taps, i / SLAB % taps, i % SLAB)));
    Scale scale = scale_of(warp_max(size));
    for (u32 i = lane; i < steps * 4; i += 32) {
        u32 step = i / 4, in = i % 4 * 2, slab = step / taps, tap = step % taps;
        Halves a = halves_f16(weight(slab, tap, in) * scale.to, weight(slab, tap, in + 1) * scale.to);
        Halves b = halves_f16(weight(slab, tap, in + 8) * scale.to, weight(slab, tap, in + 9) * scale.to);
        ((uint4*)packed)[((u64)step * shape.column_tiles + tile) * 32 + column % 8 * 4 + i % 4] = {a.high, b.high, a.low, b.low};
    }
    if (lane == 0) packed[(u64)steps * shape.column_tiles * 128 + column] = scale.back;
}

// q <- D N' g, all planes, where no block has whole columns. `row` is all columns of all channels, next to each other.
extern "C" __global__ void __launch_bounds__(THREADS)
pull_columns_to_slopes(u32 batch, u32 row, u32 height, u32 planes, Norm norm, const float* g, const float* slopes, float* q, const u32* active) {
    u64 column = first_entry();
    if (column >= (u64)batch * row) return;
    u32 sample = column / row;
    if (active && !active[sample]) return;
    u64 len = (u64)row * height, at = sample * len + column % row, first = sample * planes * len + column % row;
    float inner = norm.inner(g + at, row, at, row, height), inverse = norm.inverses[column];
    for (u32 plane = 0; plane < planes; plane++)
#pragma unroll 8
        for (u32 i = 0; i < height; i++) {
            u64 k = i * (u64)row, to = first + plane * len + k;
            q[to] = slopes[to] * Norm::pulled(g[at + k], inner, norm.gradients[at + k], inverse);
        }
}
