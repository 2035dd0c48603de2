// Convolutions: their shapes, and what is done with their sums (convolutions.cu, warpgroup_convolutions.cu).
#pragma once
#include "copies.cuh"
#include "map.cuh"
#include "mma.cuh"
#include "solve.cuh"

#define SLAB 16
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
        // By name, since four numbers are else stored one by one.
        __stcg((float4*)to, float4{x[0], x[1], x[2], x[3]});
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
    float value[4], gradient[4], slope[4], inverse[4];
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
        u64 column = (place.sample * (u64)shape.width + place.column) * shape.outputs + place.channel;
        read_four(entries.gradient, norm.gradients + state, place);
        read_four(entries.slope, norm_slopes + pulled_at(shape, place), place);
        read_four(entries.inverse, norm.inverses + column, place);
    }
    __device__ void put_entries(const Convolution& shape, const Place& place, const ColumnEntries& entries, const float* inners) const {
        float g[4], q[4], d[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            g[i] = Norm::pulled(entries.value[i], inners[i], entries.gradient[i], entries.inverse[i]);
            q[i] = entries.slope[i] * g[i];
        }
        u64 to = pulled_at(shape, place);
        write_four(q, pulled + to, place);
#pragma unroll 1
        for (u32 plane = 1; plane < pulled_planes; plane++) {
            to += shape.area() * shape.outputs;
            read_four(d, norm_slopes + to, place);
#pragma unroll
            for (u32 i = 0; i < 4; i++) q[i] = d[i] * g[i];
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
#pragma unroll 1
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

// Who has a tile: all threads of a block.
struct Everyone {
    // How many they are, and fours of numbers that each reads before it uses the first.
    static constexpr u32 COUNT = THREADS, AHEAD = READS;
    __device__ u32 thread() const { return threadIdx.x; }
    __device__ void meet() const { __syncthreads(); }
};

// Goes on through the columns of a tile that has whole ones, which `kept` has, [pixel][channel]: first one number for each of them, to
// `known`, then their entries. From a pixel to the next there, and from a column: WIDTH.
template <u32 WIDTH, class Finish, class Crew>
__device__ inline void finish_columns(const Convolution& shape, const TileShare& share, const Finish& finish, const Crew& crew, const float* kept, float* known) {
    u32 channels = min(share.fours * 4, shape.outputs - share.first_channel), count = min(shape.tile_width, shape.width - share.left) * channels;
    u64 row = (u64)shape.width * shape.outputs;
    for (u32 item = crew.thread(); item < count; item += Crew::COUNT) {
        u32 column = item / channels, channel = item % channels;
        u64 at = share.sample * row * shape.height + (u64)(share.left + column) * shape.outputs + share.first_channel + channel;
        known[column * WIDTH + channel] = finish.column(shape, kept + column * WIDTH + channel, shape.tile_width * WIDTH, at);
    }
    crew.meet();
#pragma unroll 1
    for (u32 first = crew.thread(); first < share.pixels * share.fours; first += Crew::COUNT * Crew::AHEAD) {
        Place places[Crew::AHEAD];
        ColumnEntries entries[Crew::AHEAD];
        bool there[Crew::AHEAD];
#pragma unroll
        for (u32 k = 0; k < Crew::AHEAD; k++) {
            u32 item = first + Crew::COUNT * k, pixel = share.by_fours.of(item), four = item - pixel * share.fours;
            there[k] = share.find(shape, pixel, four, places[k]);
            if (!there[k]) continue;
            float4 value = *(const float4*)(kept + pixel * WIDTH + four * 4);
            entries[k].value[0] = value.x, entries[k].value[1] = value.y, entries[k].value[2] = value.z, entries[k].value[3] = value.w;
            finish.read_entries(shape, places[k], entries[k]);
        }
#pragma unroll
        for (u32 k = 0; k < Crew::AHEAD; k++) {
            if (!there[k]) continue;
            u32 column = places[k].column - share.left, channel = places[k].channel - share.first_channel;
            finish.put_entries(shape, places[k], entries[k], known + column * WIDTH + channel);
        }
    }
}
