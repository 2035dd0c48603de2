// Integrations of dz/dt = s(W z) on [0, 1] by Dormand and Prince's method (ode.cu), everything of a sample on chip (Hopper): all its steps in one
// launch, back through those that were accepted in another, and what they add to the gradient of the weights in a third.
//
// Forward and back a sample has a cluster of blocks as in onchip_tiles.cuh. The stages that others are made of (on the way back gradients of points)
// are in shared memory, what it has no room for in registers. A stage needs no meeting of the whole cluster but for two signals: borders come from neighbours, and nobody sends
// the next ones before all have multiplied the last ones. Steps are judged by each block by itself, with the same sums.
//
// What is remembered of an accepted step, in a piece: where its stages were taken, as bf16 halves, which the third kernel multiplies, and the stages, by
// which the slopes are known. On the way back the gradient of what a stage is the activation of takes the place of the stage after it, as bf16 halves
// too. Of steps beyond the first few there is the state before them only; they are made again, one at a time, before they are gone back through.
#pragma once
#include "onchip_tiles.cuh"

// As in ode.cu, and that a sample needs more steps than there is room for.
enum OnchipOdeOutcome : uint32_t { ODE_FINISHED, ODE_STEP_LIMIT, ODE_NOT_FINITE, ODE_RUNNING, ODE_NO_ROOM };
struct OnchipOdeReport {
  uint32_t accepted, rejected, outcome, unused;
  double time;
};
constexpr int ODE_STAGES = 6;
/// A[i][j]: stage i is taken at z + h sum_j A[i][j] k_j; the last row is the step. E: the error of one.
struct OdeTableau {
  float a[ODE_STAGES + 1][ODE_STAGES], e[ODE_STAGES + 1], unused;
};
/// An accepted step of all samples: points and stages are [stage][sample], points (and gradients) of a sample [block][high, low][eight channels][pixel of its tile][channel].
struct OdePiece {
  uint32_t* points;
  float* stages;
};
/// Steps from `low` to below `high` of a sample, as far as it made them; the piece of the first one, and those of the others behind it.
struct OdeSpan {
  uint32_t low, high, place;
};
struct OnchipOde {
  const uint4* weights;     // as pack_for_warpgroups has them; of the way back transposed
  const float* from;        // z(0), or the gradient for the end of the steps: [sample][row][column][channel]
  float* to;                // z(1), or the gradient for their start
  OnchipOdeReport* reports;
  const OdePiece* pieces;   // behind the last one another with its first stage
  double* sizes;            // [step][sample]
  float* later;             // [step - kept][sample]: states before steps without a piece
  const uint32_t* bad;      // not 0: a weight is not finite
  double first, absolute, relative;
  OdeTableau tableau;
  uint32_t tries, room, kept, relu;
  OdeSpan span;             // what is gone back through; forward the one step that is made again, if any
  uint32_t unused;
};

template <class Tiles> struct OdeTiles : OnchipTiles<Tiles> {
  using Base = OnchipTiles<Tiles>;
  using Base::CL, Base::THREADS, Base::NT, Base::PAIRS, Base::COLS;
  using Base::sm, Base::base, Base::rank, Base::sample, Base::warp, Base::lane, Base::row, Base::turns;
  using Base::col, Base::owns, Base::global, Base::word;
  // Threads with numbers of their own, bytes of a state, and how many there is room for: the fifth may have to be in registers.
  static constexpr int KEEPERS = Base::LOOSE ? 32 * Base::ROWS : THREADS, STATE = PAIRS * KEEPERS * 8, NUMBERS = 2 * PAIRS;
  static constexpr int KEPT = Base::TILES_SHARED + 5 * STATE + 256 <= 232448 ? 5 : 4;
  static constexpr int AT_STATES = Base::TILES_SHARED, AT_DONE = AT_STATES + KEPT * STATE, AT_KNOWN = AT_DONE + 32, SHARED = AT_KNOWN + 128;
  static_assert(SHARED <= 232448, "room");
  static constexpr int TILE_PIXELS = Base::ROWS * COLS;
  static constexpr size_t LENGTH = (size_t)Base::SIDE * Base::SIDE * Base::C, TILE = LENGTH / CL;

  const OnchipOde& a;
  uint32_t products;        // so far
  __device__ explicit OdeTiles(const OnchipOde& args) : Base(args.weights), a(args), products(0) {}

  DEV bool keeps() const { return KEEPERS == THREADS || warp < KEEPERS / 32; }
  DEV float2& kept(int slot, int p) const { return *reinterpret_cast<float2*>(sm + AT_STATES + slot * STATE + (p * KEEPERS + thread_index()) * 8); }
  DEV void keep(int slot, const float (&x)[NUMBERS]) const {
    if (!keeps()) return;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) kept(slot, p) = make_float2(x[2 * p], x[2 * p + 1]);
  }
  DEV void take(int slot, float (&x)[NUMBERS]) const {
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      float2 k = keeps() ? kept(slot, p) : make_float2(0.0f, 0.0f);
      x[2 * p] = k.x, x[2 * p + 1] = k.y;
    }
  }
  DEV void add(float (&x)[NUMBERS], float by, int slot) const {
    if (!keeps()) return;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      float2 k = kept(slot, p);
      x[2 * p] = fmaf(by, k.x, x[2 * p]), x[2 * p + 1] = fmaf(by, k.y, x[2 * p + 1]);
    }
  }
  /// The fifth: in its slot if it has one, else in registers.
  DEV void keep_fifth(const float (&x)[NUMBERS], float (&fifth)[NUMBERS]) const {
    if (KEPT > 4) keep(4, x); else copy(fifth, x);
  }
  DEV void add_fifth(float (&x)[NUMBERS], float by, const float (&fifth)[NUMBERS]) const {
    if (KEPT > 4) add(x, by, 4); else add(x, by, fifth);
  }
  static DEV void copy(float (&to)[NUMBERS], const float (&from)[NUMBERS]) {
#pragma unroll
    for (int k = 0; k < NUMBERS; k++) to[k] = from[k];
  }
  static DEV void add(float (&x)[NUMBERS], float by, const float (&k)[NUMBERS]) {
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) x[i] = fmaf(by, k[i], x[i]);
  }

  // ---- what is remembered ----
  DEV size_t sample_at(uint32_t number) const { return ((size_t)number * (grid_size() / CL) + sample) * LENGTH; }
  DEV uint32_t* points(uint32_t piece, int stage) const { return of_device(a.pieces[piece].points) + sample_at(stage); }
  /// The stage after the last is the first of the next piece.
  DEV float* stage(uint32_t piece, int stage) const { return of_device(a.pieces[stage < ODE_STAGES ? piece : piece + 1].stages) + sample_at(stage % ODE_STAGES); }
  DEV double& size(uint32_t step) const { return a.sizes[(size_t)step * (grid_size() / CL) + sample]; }
  DEV void remember_halves(uint32_t* to, const float (&x)[NUMBERS]) const {
    uint32_t* tile = to + rank * TILE + row * COLS * 4 + (lane & 3);
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      if (!owns(p / NT)) continue;
      uint32_t high = pack_bf16(x[2 * p], x[2 * p + 1]), *at = tile + (p % NT * TILE_PIXELS + col(p / NT)) * 4;
      float2 h = unpack_bf16(high);
      at[0] = high, at[NT * TILE_PIXELS * 4] = pack_bf16(x[2 * p] - h.x, x[2 * p + 1] - h.y);
    }
  }
  /// Where a pair is in a sample's state.
  DEV size_t place(int p) const { return global(p) - sample * LENGTH; }
  DEV void write(float* to, const float (&x)[NUMBERS]) const {
#pragma unroll
    for (int p = 0; p < PAIRS; p++)
      if (owns(p / NT)) *reinterpret_cast<float2*>(to + place(p)) = make_float2(x[2 * p], x[2 * p + 1]);
  }
  DEV void read(const float* from, float (&x)[NUMBERS]) const {
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      float2 two = owns(p / NT) ? read_now(reinterpret_cast<const float2*>(from + place(p))) : make_float2(0.0f, 0.0f);
      x[2 * p] = two.x, x[2 * p + 1] = two.y;
    }
  }
  /// The largest size among them, as bits.
  static DEV uint32_t size_of(const float (&x)[NUMBERS]) {
    uint32_t size = 0;
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) {
      uint32_t bits = bits_of(x[i]) & 0x7fffffffu;
      size = size > bits ? size : bits;
    }
    return size;
  }

  // ---- products ----
  /// W of an argument, and `meanwhile`, with all meetings of the cluster that this needs. What reads or writes device memory belongs there: a fence
  /// waits for everything that was begun before it.
  template <class Meanwhile> DEV void product(const float (&x)[NUMBERS], float scale, float (&u)[NUMBERS], const Meanwhile& meanwhile) {
    await_products();
    Base::put_halves(x, scale);
    uint32_t bar = Base::flow();
    if (thread_index() == 0) flow_expect(bar, Base::border_bytes());
    async_fence_own();
    block_barrier();
    flow_wait(bar, (turns >> 1) & 1);
    async_fence_own();
    turns++;
    Base::convolve(scale, u, meanwhile);
    if constexpr (Base::LOOSE) {
#pragma unroll
      for (int i = 0; i < NUMBERS; i++) u[i] = owns(i / 2 / NT) ? u[i] : 0.0f;
    }
    block_barrier();
    uint32_t done = Base::own_flow(products);
    if (thread_index() == 0) flow_expect(done, CL * 4);
    if (warp == 0 && lane < CL) flow_store(base + AT_DONE + rank * 4, done, lane, 0);
    products++;
  }
  /// All blocks have made the last product: what they read for it may be overwritten.
  DEV void await_products() const {
    if (products) flow_wait(Base::own_flow(products - 1), (products - 1) >> 1 & 1);
  }
};

template <class Tiles> struct OdeForward : OdeTiles<Tiles> {
  using Base = OdeTiles<Tiles>;
  using Base::a, Base::sm, Base::rank, Base::sample, Base::CL, Base::PAIRS, Base::NT, Base::NUMBERS, Base::AT_KNOWN, Base::owns;
  __device__ explicit OdeForward(const OnchipOde& args) : Base(args) {}

  /// What each block knows of the sample.
  struct Known {
    double step, time;
    uint32_t left, accepted, rejected, outcome, took;
    float scale;
  };
  static_assert(sizeof(Known) <= 128, "room");
  DEV Known& known() const { return *reinterpret_cast<Known*>(sm + AT_KNOWN); }
  /// The largest number becomes 256 to 512: where stages are taken may be a hundred times as large before a high half overflows, which ends in a
  /// step that is rejected as others are whose stages are not finite.
  static DEV float argument_scale(double largest) { return 1024.0f * scale_for((float)largest); }

  DEV void activate(float (&x)[NUMBERS]) const {
    // Both map 0, which pixels that are nobody's have, to itself.
    if (a.relu) {
#pragma unroll
      // NaN stays what it is.
      for (int i = 0; i < NUMBERS; i++) x[i] = x[i] < 0.0f ? 0.0f : x[i];
    } else {
#pragma unroll
      for (int i = 0; i < NUMBERS; i++) x[i] = tanh_exact(x[i]);
    }
  }
  /// x plus `by` times row[j] of the first stages, as many as `count` of those that are kept.
  DEV void add_stages(float (&x)[NUMBERS], const float* row, float by, int count, const float (&fifth)[NUMBERS]) const {
#pragma unroll 1
    for (int j = 0; j < count && j < 4; j++) Base::add(x, by * row[j], j);
    if (count > 4) Base::add_fifth(x, by * row[4], fifth);
  }
  /// Accepts or rejects the step and chooses the next one, as `ode_judge`. By one thread of each block, the same in all.
  DEV void judge() const {
    Known& k = known();
    const double* sums = Base::sums(0);
    double squared = sums[0] * (1.0 / Base::LEN), before = sums[1], after = sums[2];
    bool finite = squared - squared == 0.0;
    k.left--;
    k.took = squared <= 1.0;
    if (k.took) {
      if (rank == 0) Base::size(k.accepted) = k.step;
      k.accepted++;
      k.time += k.step;
      k.scale = argument_scale(sums[3]);
    } else {
      k.rejected++;
    }
    if (k.took && k.time >= 1.0 - 1e-12) {
      k.time = 1.0;
      k.outcome = ODE_FINISHED;
      return;
    }
    // The fifth root of the error. No number of use is below this one.
    float factor = finite ? 0.9f * exp2_fast(-0.1f * log2_fast((float)(squared > 1e-20 ? squared : 1e-20))) : 0.0f;
    double rest = 1.0 - k.time;
    k.step *= factor < 0.2f ? 0.2f : factor > 5.0f ? 5.0f : factor;
    // A last step that would leave a crumb takes it along.
    if (k.step > rest * (1.0 - 1e-9)) k.step = rest;
    bool lost = (!finite && k.step < 1e-9) || (k.took ? after : before) != 0.0 || *a.bad;
    k.outcome = lost ? ODE_NOT_FINITE : k.left == 0 ? ODE_STEP_LIMIT : k.accepted >= a.room ? ODE_NO_ROOM : ODE_RUNNING;
  }
  /// What a thread knows of the error of a step, squared, in units of what is allowed, and how many of its numbers are not finite, before and after. `error`
  /// has all stages but the last.
  DEV uint32_t errors(float h, const float (&z)[NUMBERS], const float (&error)[NUMBERS], const float (&last)[NUMBERS], float (&parts)[3]) const {
    float by = h * a.tableau.e[ODE_STAGES], absolute = (float)a.absolute, relative = (float)a.relative;
    uint32_t size = 0;
    parts[0] = parts[1] = parts[2] = 0.0f;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      float2 next = Base::keeps() ? Base::kept(1, p) : make_float2(0.0f, 0.0f);
#pragma unroll
      for (int k = 0; k < 2; k++) {
        int i = 2 * p + k;
        float to = k ? next.y : next.x;
        float scaled = fmaf(by, last[i], error[i]) * rcp_fast(absolute + relative * fmaxf(fabsf(z[i]), fabsf(to)));
        parts[0] = owns(p / NT) ? fmaf(scaled, scaled, parts[0]) : parts[0];
        parts[1] += fabsf(z[i]) <= FLT_MAX ? 0.0f : 1.0f;
        parts[2] += fabsf(to) <= FLT_MAX ? 0.0f : 1.0f;
        uint32_t bits = bits_of(to) & 0x7fffffffu;
        size = size > bits ? size : bits;
      }
    }
    return size;
  }
  /// Where stage i of a step is taken, and then what it is.
  DEV void remember_point(uint32_t step, int i, const float (&x)[NUMBERS]) const {
    if (again() || step < a.kept) Base::remember_halves(Base::points(again() ? a.span.place : step, i), x);
    else if (i == 0) Base::write(a.later + Base::sample_at(step - a.kept), x);
  }
  DEV void remember_stage(uint32_t step, int i, const float (&f)[NUMBERS]) const {
    if (again() || step < a.kept) Base::write(Base::stage(again() ? a.span.place : step, i), f);
  }
  /// Whether a step is made again.
  DEV bool again() const { return a.span.high > 0; }

  DEV void run() {
    // For all blocks alike.
    if (again() && a.reports[block_index() / CL].accepted <= a.span.low) return;
    Base::begin(Base::AT_STATES, 0);
    // The state before the step, where the next stage is taken, the last stage, the fifth.
    float z[NUMBERS], x[NUMBERS], f[NUMBERS], fifth[NUMBERS];
    Base::read(again() ? a.later + Base::sample_at(a.span.low - a.kept) : a.from + Base::sample_at(0), z);
    float none[1] = {0.0f};
    Base::template sum_up<true>(none, Base::size_of(z));
    if (thread_index() == 0) known() = Known{again() ? Base::size(a.span.low) : a.first, 0.0, a.tries, again() ? a.span.low : 0, 0, ODE_RUNNING, 0, argument_scale(Base::sums(0)[1])};
    block_barrier();
    Base::copy(x, z);
    int i = 0;
#pragma unroll 1
    for (;;) {
      uint32_t step = known().accepted;
      float h = (float)known().step, scale = known().scale;
      if (i > 0) {
        // The first stage is known: the last of the step before, or still the first if that was rejected.
        Base::take(0, f);
        Base::copy(x, z);
        Base::add(x, h * a.tableau.a[1][0], f);
      }
#pragma unroll 1
      for (; i < ODE_STAGES + !again(); i++) {
        // The second stage is of no more use.
        if (i == ODE_STAGES) Base::keep(1, x);
        float u[NUMBERS];
        Base::product(x, scale, u, [&] {
          if (i == 1) remember_point(step, 0, z);
          if (i > 0 && i < ODE_STAGES) remember_point(step, i, x);
          if (i > 0) remember_stage(step, i - 1, f);
          // What is known of where the next stage is taken, or of the error.
          if (i < ODE_STAGES) {
            Base::copy(x, z);
            add_stages(x, a.tableau.a[i + 1], h, i, fifth);
          } else {
#pragma unroll
            for (int k = 0; k < NUMBERS; k++) x[k] = h * a.tableau.e[ODE_STAGES - 1] * f[k];
            // In the place of the second is the end of the step.
            Base::add(x, h * a.tableau.e[0], 0);
            Base::add(x, h * a.tableau.e[2], 2);
            Base::add(x, h * a.tableau.e[3], 3);
            Base::add_fifth(x, h * a.tableau.e[4], fifth);
          }
        });
        activate(u);
        Base::copy(f, u);
        if (i < 4) Base::keep(i, f);
        if (i == 4) Base::keep_fifth(f, fifth);
        if (i < ODE_STAGES) Base::add(x, h * a.tableau.a[i + 1][i], f);
      }
      if (again()) {
        remember_stage(step, ODE_STAGES - 1, f);
        break;
      }
      float parts[3];
      uint32_t size = errors(h, z, x, f, parts);
      Base::template sum_up<true>(parts, size);
      if (thread_index() == 0) judge();
      block_barrier();
      const Known& k = known();
      if (k.took) {
        Base::take(1, z);
        Base::keep(0, f);
      }
      if (k.outcome != ODE_RUNNING) break;
      i = 1;
    }
    if (!again()) {
      Base::write(a.to + Base::sample_at(0), z);
      const Known& k = known();
      if (rank == 0 && thread_index() == 0) a.reports[sample] = OnchipOdeReport{k.accepted, k.rejected, k.outcome, 0, k.time};
    }
    // Nobody stores into a block that has ended.
    Base::await_products();
  }
};

template <class Tiles> struct OdeBack : OdeTiles<Tiles> {
  using Base = OdeTiles<Tiles>;
  using Base::a, Base::sample, Base::PAIRS, Base::NT, Base::NUMBERS, Base::owns;
  __device__ explicit OdeBack(const OnchipOde& args) : Base(args) {}

  /// The largest number becomes 64 to 128: slopes and steps make what is multiplied smaller, products larger.
  DEV float argument_scale(const float (&gradient)[NUMBERS]) {
    float none[1] = {0.0f};
    Base::template sum_up<true>(none, Base::size_of(gradient));
    block_barrier();
    float scale = 256.0f * scale_for((float)Base::sums(0)[1]);
    // Before the sums of the next meeting.
    block_barrier();
    return scale;
  }
  static DEV void weigh(float (&q)[NUMBERS], float by, const float (&gradient)[NUMBERS]) {
#pragma unroll
    for (int k = 0; k < NUMBERS; k++) q[k] = by * gradient[k];
  }
  /// Times the slopes, which the stages tell.
  DEV void slope(float2 (&stages)[PAIRS], float h, float (&q)[NUMBERS]) const {
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      float2 k = stages[p];
      float x = a.relu ? (k.x > 0.0f ? 1.0f : 0.0f) : fmaf(-k.x, k.x, 1.0f), y = a.relu ? (k.y > 0.0f ? 1.0f : 0.0f) : fmaf(-k.y, k.y, 1.0f);
      q[2 * p] *= h * x, q[2 * p + 1] *= h * y;
    }
  }
  DEV void bring(const float* from, float2 (&stages)[PAIRS]) const {
#pragma unroll
    for (int p = 0; p < PAIRS; p++) stages[p] = owns(p / NT) ? read_now(reinterpret_cast<const float2*>(from + Base::place(p))) : make_float2(0.0f, 0.0f);
  }

  DEV void run() {
    Base::begin(Base::AT_STATES, 0);
    // The gradient for the state after a step, then before it; of the last point; of one.
    float gradient[NUMBERS], last[NUMBERS], g[NUMBERS];
    Base::read(a.from + Base::sample_at(0), gradient);
    uint32_t accepted = a.reports[sample].accepted;
#pragma unroll 1
    for (uint32_t step = accepted < a.span.high ? accepted : a.span.high; step > a.span.low; step--) {
      uint32_t piece = a.span.place + step - 1 - a.span.low;
      float scale = argument_scale(gradient), h = (float)Base::size(step - 1);
      float2 stages[PAIRS];
      bring(Base::stage(piece, ODE_STAGES - 1), stages);
      // The gradient for a stage, before its slope.
      float q[NUMBERS];
      weigh(q, a.tableau.a[ODE_STAGES][ODE_STAGES - 1], gradient);
#pragma unroll 1
      for (int i = ODE_STAGES - 1; i >= 0; i--) {
        slope(stages, h, q);
        Base::product(q, scale, g, [&] {
          // What is overwritten here all blocks have read.
          Base::remember_halves(reinterpret_cast<uint32_t*>(Base::stage(piece, i + 1)), q);
          if (i > 0) bring(Base::stage(piece, i - 1), stages);
          // What is known of the next one, or of the gradient before the step.
          weigh(q, i > 0 ? a.tableau.a[ODE_STAGES][i - 1] : 1.0f, gradient);
          if (i < 5) Base::add_fifth(q, i > 0 ? a.tableau.a[5][i - 1] : 1.0f, last);
#pragma unroll 1
          for (int j = i + 1; j < 5; j++) Base::add(q, i > 0 ? a.tableau.a[j][i - 1] : 1.0f, j - 1);
        });
        Base::add(q, i > 0 ? a.tableau.a[i][i - 1] : 1.0f, g);
        if (i == 5) Base::keep_fifth(g, last);
        else if (i > 0) Base::keep(i - 1, g);
      }
      weigh(gradient, 1.0f, q);
    }
    Base::write(a.to + Base::sample_at(0), gradient);
    Base::await_products();
  }
};

// ---- the gradient of the weights ----
struct OnchipOdeGradient {
  const OnchipOdeReport* reports;
  const OdePiece* pieces;
  float* parts;             // [block][out][tap][in]
  OdeSpan span;
  uint32_t batch;
};

/// Sums of products of gradients and points, over pixels, stages, steps, and the tiles that a block has one after the other. Both factors are bf16
/// halves as they were remembered, with pixels as what is summed over: a pixel is a row of eight channels, so a tap is an offset. A warpgroup for each row
/// of taps. Tensor cores truncate as they add: after every step the sums go to shared memory, where they are added with rounding.
template <class Tiles> struct OdeGradient {
  static constexpr int C = Tiles::C, SIDE = Tiles::SIDE, ROWS = Tiles::ROWS, COLS = Tiles::COLS, CL = 2 * (SIDE / COLS), NT = C / 8;
  static constexpr int THREADS = 384, PLANES = 2 * NT, TILE_PIXELS = ROWS * COLS, PITCH = COLS + 2, HALO = (ROWS + 2) * PITCH;
  // A row of a tile of gradients has 8 pixels, or 16, with zeros: products sum over 16 pixels, rows of which are ONCE at once.
  static constexpr int GRADIENT_PITCH = COLS == 8 ? 8 : 16, ONCE = 16 / GRADIENT_PITCH, SUMS = ROWS / ONCE;
  static constexpr int GRADIENT_PLANE = ROWS * GRADIENT_PITCH * 16, POINT_PLANE = (HALO + (GRADIENT_PITCH > COLS ? 4 : 0)) * 16;
  static constexpr int POINTS = PLANES * GRADIENT_PLANE, BUFFER = POINTS + PLANES * POINT_PLANE;
  // Of 64 rows of sums the first 48 are channels, or all: those of the high halves of gradients, then of the low ones.
  static constexpr bool BOTH = C == 32;
  static constexpr int KEPT_ROWS = BOTH ? 64 : C, KEPT_PITCH = 9 * C + 8, AT_KEPT = 2 * BUFFER, SHARED = AT_KEPT + KEPT_ROWS * KEPT_PITCH * 4;
  static constexpr int SHARE = (PLANES * HALO + THREADS - 1) / THREADS;
  static constexpr size_t LENGTH = (size_t)SIDE * SIDE * C, TILE = LENGTH / CL;
  static_assert(SHARED <= 232448 && ROWS % ONCE == 0 && (BOTH || C == 48), "room");

  const OnchipOdeGradient& a;
  unsigned char* sm;
  uint32_t base;
  int group, warp, lane;
  // Where a thread's share of the points of a tile is in a sample's, or below 0: outside of the image.
  int from[SHARE];
  float sums[3][NT][4];
  __device__ explicit OdeGradient(const OnchipOdeGradient& args) : a(args) {}

  DEV void find(int rank) {
#pragma unroll
    for (int k = 0; k < SHARE; k++) {
      int item = k * THREADS + thread_index(), plane = item / HALO, pixel = item % HALO;
      int r = (rank & 1) * ROWS + pixel / PITCH - 1, c = (rank >> 1) * COLS + pixel % PITCH - 1;
      bool there = r >= 0 && r < SIDE && c >= 0 && c < SIDE;
      from[k] = there ? (r / ROWS + c / COLS * 2) * (int)TILE + (plane * TILE_PIXELS + r % ROWS * COLS + c % COLS) * 4 : -1;
    }
  }
  DEV size_t sample_at(int stage, int sample) const { return ((size_t)stage * a.batch + sample) * LENGTH; }
  /// Begins to bring what a stage has.
  DEV void bring(int sample, int rank, int pair, int buffer) const {
    int stage = pair % ODE_STAGES, after = (stage + 1) % ODE_STAGES;
    const OdePiece* piece = a.pieces + a.span.place + pair / ODE_STAGES;
    const uint32_t* points = piece->points + sample_at(stage, sample);
    const float* gradients = piece[after ? 0 : 1].stages + sample_at(after, sample) + rank * TILE;
    uint32_t to = base + buffer * BUFFER;
    for (int item = thread_index(); item < PLANES * TILE_PIXELS; item += THREADS) {
      int plane = item / TILE_PIXELS, pixel = item % TILE_PIXELS;
      copy_async(to + plane * GRADIENT_PLANE + (pixel / COLS * GRADIENT_PITCH + pixel % COLS) * 16, gradients + item * 4);
    }
#pragma unroll
    for (int k = 0; k < SHARE; k++) {
      int item = k * THREADS + thread_index(), at = POINTS + item / HALO * POINT_PLANE + item % HALO * 16;
      if (item >= PLANES * HALO) break;
      if (from[k] >= 0) copy_async(to + at, points + from[k]);
      else *reinterpret_cast<uint4*>(sm + buffer * BUFFER + at) = uint4{0, 0, 0, 0};
    }
  }
  DEV void multiply(int buffer, int keep) {
    uint32_t at = base + buffer * BUFFER;
    uint64_t gradients = wgmma_factor(at, 128, GRADIENT_PLANE), points = wgmma_factor(at + POINTS + group * PITCH * 16, ONCE > 1 ? PITCH * 16 : 128, POINT_PLANE);
    constexpr int LOW_GRADIENTS = NT * GRADIENT_PLANE / 16, LOW_POINTS = NT * POINT_PLANE / 16;
#pragma unroll
    for (int tap = 0; tap < 3; tap++) wgmma_ready(sums[tap]);
    wgmma_fence();
#pragma unroll 2
    for (int k = 0; k < SUMS; k++) {
#pragma unroll
      for (int tap = 0; tap < 3; tap++) {
        uint64_t left = gradients + k * 16, right = points + k * ONCE * PITCH + tap;
        wgmma_bf16_turned(sums[tap], left, right, k > 0 ? 1 : keep);
        wgmma_bf16_turned(sums[tap], left, right + LOW_POINTS, 1);
        if (!BOTH) wgmma_bf16_turned(sums[tap], left + LOW_GRADIENTS, right, 1);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int tap = 0; tap < 3; tap++) wgmma_ready(sums[tap]);
  }
  DEV float& kept(int row, int i) const { return *reinterpret_cast<float*>(sm + AT_KEPT + (row * KEPT_PITCH + i) * 4); }
  /// Adds the sums to those in shared memory: each thread has places of its own.
  DEV void put_by() const {
    if (16 * warp >= KEPT_ROWS) return;
#pragma unroll
    for (int tap = 0; tap < 3; tap++)
#pragma unroll
      for (int n = 0; n < NT; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          float2& at = *reinterpret_cast<float2*>(&kept(16 * warp + lane / 4 + 8 * half, (group * 3 + tap) * C + n * 8 + (lane & 3) * 2));
          at = make_float2(at.x + sums[tap][n][2 * half], at.y + sums[tap][n][2 * half + 1]);
        }
  }

  DEV void run() {
    sm = dyn_smem();
    base = smem_addr(sm);
    group = warp_uniform(thread_index() / 128);
    warp = warp_uniform(thread_index() / 32 % 4);
    lane = thread_index() & 31;
    for (int i = thread_index(); i < SHARED / 16; i += THREADS) reinterpret_cast<uint4*>(sm)[i] = uint4{0, 0, 0, 0};
    block_barrier();
    int buffer = 0;
#pragma unroll 1
    for (int tile = block_index(); tile < (int)a.batch * CL; tile += grid_size()) {
      int sample = tile / CL, rank = tile % CL;
      uint32_t accepted = a.reports[sample].accepted, end = accepted < a.span.high ? accepted : a.span.high;
      int pairs = end > a.span.low ? (int)(end - a.span.low) * ODE_STAGES : 0;
      find(rank);
      if (pairs) bring(sample, rank, 0, buffer);
#pragma unroll 1
      for (int pair = 0; pair < pairs; pair++) {
        copies_arrived();
        async_fence_own();
        // All have what they brought, and none reads the other buffer any more.
        block_barrier();
        if (pair + 1 < pairs) bring(sample, rank, pair + 1, buffer ^ 1);
        multiply(buffer, pair % ODE_STAGES != 0);
        if (pair % ODE_STAGES == ODE_STAGES - 1) put_by();
        buffer ^= 1;
      }
      // The last buffer is free again.
      block_barrier();
    }
    block_barrier();
    float* part = a.parts + (size_t)block_index() * (9 * C * C);
    for (int i = thread_index(); i < 9 * C * C; i += THREADS) {
      int out = i / (9 * C), rest = i % (9 * C);
      part[i] = kept(out, rest) + (BOTH ? kept(C + out, rest) : 0.0f);
    }
  }
};

// The kernels for one shape.
#define ODE_KERNELS(shape, tiles, cluster)                                                                                                         \
  extern "C" __global__ void __launch_bounds__(512, 1) __cluster_dims__(cluster, 1, 1) onchip_ode_forward_##shape(const __grid_constant__ OnchipOde a) { \
    static_assert(OdeForward<tiles>::CL == cluster, "cluster");                                                                                    \
    OdeForward<tiles> way(a);                                                                                                                      \
    way.run();                                                                                                                                     \
  }                                                                                                                                                \
  extern "C" __global__ void __launch_bounds__(512, 1) __cluster_dims__(cluster, 1, 1) onchip_ode_back_##shape(const __grid_constant__ OnchipOde a) { \
    OdeBack<tiles> way(a);                                                                                                                         \
    way.run();                                                                                                                                     \
  }                                                                                                                                                \
  extern "C" __global__ void __launch_bounds__(384, 1) onchip_ode_gradient_##shape(const __grid_constant__ OnchipOdeGradient a) {                  \
    OdeGradient<tiles> sum(a);                                                                                                                     \
    sum.run();                                                                                                                                     \
  }
