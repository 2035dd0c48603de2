// Whole solves by Anderson's method in one launch, everything of a sample on chip (Hopper): convolutions of 48 channels of 32 x 32 and of 32 of
// 28 x 28, zero padded.
//
// A sample has a cluster of blocks, each of them a tile of the image. In its shared memory a block has the weights (f16 halves), the
// argument with its halo (f16 halves), and what is kept of the last four pairs: residuals and differences of images, f16 as in anderson.cuh.
// Argument, image and the image before are in registers. Nothing but y (or v and the slopes) is read from device memory in an iteration.
// The shapes differ in how the products are shared out among 512 threads: see there.
//
// Two meetings of the cluster in an iteration: sums (products of residuals) to all blocks, whose first warps decide, each the same; then borders of the next argument
// and votes on it. Who has what comes in a meeting knows that all had what came in the one before.
#pragma once
#include "onchip_report.cuh"
#include "onchip_tiles.cuh"

#ifdef EMU
DEV double reciprocal(double x) { return 1.0 / x; }
#else
/// From 20 bits by two steps of Newton's: no branches for numbers that do not come here.
DEV double reciprocal(double x) {
  double r;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(x));
  r = fma(r, fma(-x, r, 1.0), r);
  return fma(r, fma(-x, r, 1.0), r);
}
#endif

/// A batch whose samples end together: how many iterations are made, and whether it is known after how many all end (`judge_together`).
struct OnchipTogether {
  uint32_t limit, known, end;
};
struct OnchipGap { double difference, size; };
struct OnchipAnderson {
  const uint4* weights;   // as pack_for_warpgroups has them, then what each output's sums are to be multiplied by
  const float* drive;     // y, or v: [sample][row][column][channel], as all states
  const float* slope;     // D of an adjoint
  // The derivative of a normalisation: normalised states, gradients of their norms, and what they were multiplied by: one for each column.
  const float* states;
  const float* gradients;
  const float* inverses;
  const float* start;
  float* state;           // the answer; may be where the start is
  OnchipReport* reports;
  // Null, or samples end together: then `state` has room for the images of the last ANSWERS iterations, that of iteration i at i % ANSWERS.
  const OnchipTogether* together;
  OnchipGap* gaps;        // [iteration][sample]
  const uint32_t* bad;    // not 0: a weight is not finite
  double tolerance, ridge;
  float shift, base, power;
  uint32_t inner, has_power, max_iterations;
};
enum { ANDERSON_FORWARD, ANDERSON_ADJOINT };
// As in solve.cu.
constexpr uint32_t ANSWERS = 4;

template <class Tiles, int KIND, bool NORMALISED> struct AndersonOnChip : OnchipTiles<Tiles> {
  using Base = OnchipTiles<Tiles>;
  using Base::C, Base::SIDE, Base::COLS, Base::GROUPS, Base::CL, Base::THREADS, Base::WARPS, Base::NT, Base::OWN, Base::PAIRS, Base::LOOSE, Base::ARRAY, Base::SLOTS, Base::AT_GIVEN, Base::AT_SLOTS, Base::LEN;
  using Base::sm, Base::base, Base::rank, Base::band, Base::group, Base::sample, Base::warp, Base::lane, Base::row, Base::turns;
  using Base::col, Base::owns, Base::global, Base::pair, Base::flow, Base::word, Base::convolve;
  static constexpr int WINDOW = 5, KEPT = 4, VALUES = 6;
  static constexpr int AT_RESIDUALS = Base::TILES_SHARED, AT_DIFFERENCES = AT_RESIDUALS + KEPT * ARRAY, AT_COLUMNS = AT_DIFFERENCES + KEPT * ARRAY;
  static constexpr int COLUMNS = 2 * PAIRS * 32 * 4, AT_KNOWN = AT_COLUMNS + 2 * COLUMNS, SHARED = AT_KNOWN + 640;
  static_assert(SHARED <= 232448, "room");

  // What is known of the sample. The first warp has the end, the second one the history and the next combination: at the same time.
  struct Known {
    double gram[WINDOW][WINDOW], residual;
    // Of the pairs that stay when the next one comes (`prepare`).
    double older[KEPT][KEPT];
    float backs[KEPT], steps[KEPT];
    uint32_t count, newest, place, accelerated, helped, solved, regular;
    float to;               // what the next pair is multiplied by
    double difference, size, best;
    uint32_t since, ended;
    float scale;            // what the next argument is multiplied by
    uint32_t spoiled;       // y or v or a weight is not finite
  };
  static_assert(sizeof(Known) <= 640, "room");

  // What a thread may say of its part of a combination: it is not finite, not positive, and the image was not.
  static constexpr uint32_t NOT_FINITE = 1, NOT_POSITIVE = 2, WAS_NOT = 4;

  const OnchipAnderson& a;
  uint32_t limit;           // of iterations
  int exchanges;
  float z[2 * PAIRS], f[2 * PAIRS], before[2 * PAIRS];
  __device__ explicit AndersonOnChip(const OnchipAnderson& args) : Base(args.weights), a(args) {}

  DEV Known& known() const { return *reinterpret_cast<Known*>(sm + AT_KNOWN); }
  DEV int residual_at(int place, int p) const { return AT_RESIDUALS + (place * PAIRS + p) * THREADS * 4 + thread_index() * 4; }
  DEV int difference_at(int place, int p) const { return residual_at(place, p) + (AT_DIFFERENCES - AT_RESIDUALS); }

  /// For arguments of about this size: their root mean square becomes 32 to 64, so that low halves keep 11 bits and high ones do not overflow.
  static DEV float argument_scale(double squares) { return 128.0f * pair_scale(squares); }
  /// What residuals of this size and their differences are kept by, as f16.
  static DEV float pair_scale(double squares) { return scale_for(sqrt_fast((float)(squares * (1.0 / LEN)))); }
  DEV void begin() {
    limit = a.together && a.together->limit && a.together->limit < a.max_iterations ? a.together->limit : a.max_iterations;
    exchanges = 0;
    // Pairs that are not there are zeros, and have no share.
    Base::begin(AT_RESIDUALS, 2 * KEPT * ARRAY);
  }

  // ---- meetings ----
  /// The argument, as scaled halves, to where the products find it, borders also to the neighbours. Whether it may stay there, by what all
  /// threads of the cluster say of it.
  DEV bool put(float scale, uint32_t vote) {
    Base::put_halves(z, scale);
    uint32_t said = warp_or(vote);
    uint32_t slots = AT_SLOTS + (turns & 1) * SLOTS, bar = flow();
    if (lane < CL) flow_store(base + slots + (rank * WARPS + warp) * 4, bar, lane, said);
    if (thread_index() == 0) flow_expect(bar, SLOTS + Base::border_bytes());
    async_fence_own();
    block_barrier();
    flow_wait(bar, (turns >> 1) & 1);
    async_fence_own();
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < SLOTS / 256; i++) {
      uint2 two = *reinterpret_cast<const uint2*>(sm + slots + (i * 32 + lane) * 8);
      all |= two.x | two.y;
    }
    all = warp_or(all);
    turns++;
    return !(all & NOT_FINITE) && (!(all & NOT_POSITIVE) || (all & WAS_NOT));
  }

  // ---- columns of the image, which two blocks share ----
  /// A number for each column of the tile: [one of this thread's numbers][lane]. Those of this block, or of the one below or above.
  DEV uint32_t& column(int other, int i) const { return word(AT_COLUMNS + other * COLUMNS + (i * 32 + lane) * 4); }
  /// This block's numbers to the other one, and the other's here.
  DEV void exchange_columns() {
    uint32_t bar = Base::own_flow(0), at = AT_COLUMNS + 4 * thread_index();
    block_barrier();
    if (thread_index() == 0) flow_expect(bar, COLUMNS);
    if (thread_index() < COLUMNS / 4) flow_store(base + at + COLUMNS, bar, rank ^ 1, word(at));
    flow_wait(bar, exchanges & 1);
    exchanges++;
  }
  static DEV float joined(float x, float y) { return KIND == ANDERSON_FORWARD ? fmaxf(x, y) : x + y; }
  /// The largest number of each column of the tile, or the sum of all, in a fixed order: of what `of` says that threads have.
  template <class Of> DEV void join_columns(const Of& of) {
    float* given = reinterpret_cast<float*>(sm + AT_GIVEN);
#pragma unroll
    for (int first = 0; first < 2 * PAIRS; first += 4) {
      block_barrier();
#pragma unroll
      for (int i = 0; i < 4; i++) given[(warp * 4 + i) * 32 + lane] = of(first + i);
      block_barrier();
      if (warp < 4) {
        float some[4];
#pragma unroll
        for (int k = 0; k < 4; k++) some[k] = given[(k * 4 + warp) * 32 + lane];
#pragma unroll
        for (int k = 4; k < WARPS; k++) some[k % 4] = joined(some[k % 4], given[(k * 4 + warp) * 32 + lane]);
        column(0, first + warp) = bits_of(joined(joined(some[0], some[1]), joined(some[2], some[3])));
      }
    }
    exchange_columns();
  }
  DEV float joined_column(int i) const { return joined(from_bits(column(band, i)), from_bits(column(band ^ 1, i))); }
  /// Divides columns by their largest numbers.
  DEV void normalise() {
    join_columns([&](int i) { return fabsf(f[i]); });
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) f[i] = owns(i / 2 / NT) ? f[i] * (1.0f / joined_column(i)) : 0.0f;
  }
  /// s(W z + y) + shift or s(W z) + y + shift, s a tanh or a power of one.
  DEV void image(const float (&u)[2 * PAIRS], const float2 (&y)[PAIRS]) {
    float inside = a.inner ? 1.0f : 0.0f, outside = 1.0f - inside;
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) f[i] = tanh_exact(fmaf(inside, i & 1 ? y[i / 2].y : y[i / 2].x, u[i]));
    if (a.has_power) {
#pragma unroll
      for (int i = 0; i < 2 * PAIRS; i++) f[i] = exp2_fast(a.power * log2_fast(f[i] + a.base));
    }
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) f[i] = owns(i / 2 / NT) ? f[i] + fmaf(outside, i & 1 ? y[i / 2].y : y[i / 2].x, a.shift) : 0.0f;
  }
  /// f = F(z).
  DEV void apply(float scale) {
    constexpr bool BACK = KIND == ANDERSON_ADJOINT;
    float2 y[PAIRS], d[PAIRS];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      y[p] = pair(a.drive, p);
      d[p] = BACK ? pair(NORMALISED ? a.states : a.slope, p) : make_float2(0.0f, 0.0f);
    }
    float u[2 * PAIRS];
    convolve(scale, u);
    if constexpr (BACK && LOOSE) {
#pragma unroll
      for (int i = 0; i < 2 * PAIRS; i++) u[i] = owns(i / 2 / NT) ? u[i] : 0.0f;
    }
    if constexpr (BACK && NORMALISED) {
      float inner[2 * PAIRS];
#pragma unroll
      for (int p = 0; p < PAIRS; p++) {
        u[2 * p] += y[p].x, u[2 * p + 1] += y[p].y;
        inner[2 * p] = d[p].x * u[2 * p], inner[2 * p + 1] = d[p].y * u[2 * p + 1];
      }
      float2 slope[PAIRS];
#pragma unroll
      for (int p = 0; p < PAIRS; p++) slope[p] = pair(a.slope, p);
      join_columns([&](int i) { return inner[i]; });
#pragma unroll
      for (int p = 0; p < PAIRS; p++) {
        float2 gradient = pair(a.gradients, p), inverse = inverse_of(p);
        f[2 * p] = slope[p].x * ((u[2 * p] - joined_column(2 * p) * gradient.x) * inverse.x);
        f[2 * p + 1] = slope[p].y * ((u[2 * p + 1] - joined_column(2 * p + 1) * gradient.y) * inverse.y);
      }
    } else if constexpr (BACK) {
#pragma unroll
      for (int p = 0; p < PAIRS; p++) f[2 * p] = d[p].x * (u[2 * p] + y[p].x), f[2 * p + 1] = d[p].y * (u[2 * p + 1] + y[p].y);
    } else {
      image(u, y);
      if (NORMALISED) normalise();
    }
  }
  /// What the pair's columns were multiplied by.
  DEV float2 inverse_of(int p) const {
    size_t at = ((size_t)sample * SIDE + group * COLS + col(p / NT)) * C + p % NT * 8 + (lane & 3) * 2;
    return owns(p / NT) ? read_only(reinterpret_cast<const float2*>(a.inverses + at)) : make_float2(0.0f, 0.0f);
  }

  // ---- Anderson's step, as anderson.cuh has it ----
  /// The parts of the new pair's products, and the pair into its place.
  DEV void put_pair(float (&parts)[VALUES]) {
    const Known& k = known();
    uint32_t newest = k.place, next = (newest + 1) % KEPT;
    float to = k.to;
#pragma unroll
    for (int v = 0; v < VALUES; v++) parts[v] = 0.0f;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      float r0 = f[2 * p] - z[2 * p], r1 = f[2 * p + 1] - z[2 * p + 1];
      // The condition keeps the compiler from reading everything at once, into more registers than there are.
      if (k.count) {
#pragma unroll
        for (int age = 0; age < KEPT; age++) {
          float2 old = unpack_f16(word(residual_at((newest + KEPT - age) % KEPT, p)));
          parts[age] = fmaf(r0, old.x, fmaf(r1, old.y, parts[age]));
        }
      }
      parts[4] = fmaf(r0, r0, fmaf(r1, r1, parts[4]));
      parts[5] = fmaf(f[2 * p], f[2 * p], fmaf(f[2 * p + 1], f[2 * p + 1], parts[5]));
      word(residual_at(next, p)) = pack_f16(r0 * to, r1 * to);
      word(difference_at(next, p)) = pack_f16((f[2 * p] - before[2 * p]) * to, (f[2 * p + 1] - before[2 * p + 1]) * to);
    }
  }
  /// What becomes of the new pair: by two warps, the same in every block.
  DEV void decide(uint32_t iteration) {
    if (warp < 2 && lane == 0) {
      if (warp == 0) conclude(iteration); else take_pair();
    }
  }
  /// A combination helped if it has come nearer.
  static DEV bool helps(uint32_t accelerated, double residual, double before) { return !accelerated || residual < before; }
  DEV void take_pair() {
    Known& k = known();
    const double* sums = Base::sums(1);
    k.helped = helps(k.accelerated, sums[4], k.residual);
    k.solved = false;
    if (!k.helped) {
      k.count = 1;
    } else {
      uint32_t kept = k.count < KEPT ? k.count : KEPT, next = k.count == 0 ? 0 : (k.newest + 1) % WINDOW;
      double products[KEPT];
#pragma unroll
      for (uint32_t age = 0; age < KEPT; age++) {
        products[age] = age < kept ? sums[age] * (double)k.backs[(k.place + KEPT - age) % KEPT] : 0.0;
        uint32_t slot = (k.newest + WINDOW - age) % WINDOW;
        if (age < kept) k.gram[next][slot] = k.gram[slot][next] = products[age];
      }
      k.gram[next][next] = sums[4];
      k.count = k.count + 1 < WINDOW ? k.count + 1 : WINDOW;
      k.newest = next;
      k.place = (k.place + 1) % KEPT;
      k.backs[k.place] = inverse_power(k.to);
      k.residual = sums[4];
      k.solved = kept > 0 && combination(products, sums[4]);
    }
    k.to = pair_scale(k.residual);
  }
  DEV void conclude(uint32_t iteration) {
    Known& k = known();
    const double* sums = Base::sums(0);
    if (helps(k.accelerated, sums[4], k.difference)) k.difference = sums[4], k.size = sums[5];
    k.scale = argument_scale(k.size);
    double size = k.spoiled ? (double)NAN : k.size;
    if (a.together) {
      if (rank == 0) a.gaps[(size_t)(iteration - 1) * (grid_size() / CL) + sample] = OnchipGap{k.difference, size};
      k.ended = iteration >= limit;
      return;
    }
    double residual = sqrt(k.difference) * reciprocal(1e-5 + sqrt(size));
    if (residual < k.best) { k.best = residual; k.since = 0; } else k.since++;
    const uint32_t RUNNING = 4;
    uint32_t outcome = RUNNING;
    if (!(size <= DBL_MAX) || residual != residual) outcome = ONCHIP_NOT_FINITE;
    else if (residual <= a.tolerance) outcome = ONCHIP_CONVERGED;
    else if (k.since >= ONCHIP_PATIENCE && k.best <= ONCHIP_ROUNDING) outcome = ONCHIP_STAGNATED;
    else if (iteration >= limit) outcome = ONCHIP_ITERATION_LIMIT;
    k.ended = outcome < RUNNING;
    if (k.ended && rank == 0) a.reports[sample] = OnchipReport{iteration, outcome, residual};
  }
  /// The weights of a combination are w of (G + ridge diag G) w = 1, divided by their sum, as `combination` of anderson.cuh has them. All but
  /// a row and a column of it, A, is of older pairs, and known before the newest one is: the second warp inverts it while it would wait for the
  /// others' sums, a lane for each column, by L D L' (not scaled to a unit diagonal, which elimination without pivoting does not notice). Pairs
  /// that are not there have a row of the unit matrix, and no share. What is kept of a column are its sums from each row on.
  DEV void prepare() {
    Known& k = known();
    if (lane < KEPT) {
      int kept = (int)k.count < KEPT ? (int)k.count : KEPT;
      double g[KEPT][KEPT], w[KEPT], inverse[KEPT];
      bool fine = true;
#pragma unroll
      for (int i = 0; i < KEPT; i++) {
        int slot = ((int)k.newest + WINDOW - i) % WINDOW;
#pragma unroll
        for (int j = 0; j <= i; j++) g[i][j] = i < kept ? k.gram[slot][((int)k.newest + WINDOW - j) % WINDOW] : i == j ? 1.0 : 0.0;
        w[i] = i == lane && i < kept ? 1.0 : 0.0;
      }
#pragma unroll
      for (int i = 0; i < KEPT; i++) {
        double least = 1e-13 * g[i][i], pivot = i < kept ? g[i][i] + a.ridge * g[i][i] : 1.0;
        // g[i][j], j < i, are L D by now.
#pragma unroll
        for (int j = 0; j < i; j++) pivot -= g[i][j] * g[i][j] * inverse[j];
        fine = fine && pivot > least;
        inverse[i] = reciprocal(pivot);
#pragma unroll
        for (int j = 0; j < i; j++) w[i] -= g[i][j] * inverse[j] * w[j];
#pragma unroll
        for (int below = i + 1; below < KEPT; below++)
#pragma unroll
          for (int j = 0; j < i; j++) g[below][i] -= g[below][j] * g[i][j] * inverse[j];
      }
#pragma unroll
      for (int i = KEPT; i-- > 0;) {
        w[i] *= inverse[i];
#pragma unroll
        for (int j = i + 1; j < KEPT; j++) w[i] -= g[j][i] * inverse[i] * w[j];
      }
      double from = 0.0;
#pragma unroll
      for (int i = KEPT; i-- > 0;) k.older[i][lane] = from += w[i];
      if (lane == 0) k.regular = fine;
    }
    warp_barrier();
  }
  /// The older pairs' shares, from each on: what differences of images are multiplied by. `products` of the newest residual with the older ones
  /// (b), and its `square` (c). With p = A^-1 1, q = A^-1 b and v = c + ridge c - b'q, the newest pair's w is n / v, n = 1 - b'p, the others' are
  /// p - q n / v, and all together p'1 + n^2 / v. P and Q are sums of p and q from an entry on, so Q_0 = b'p.
  DEV bool combination(const double (&products)[KEPT], double square) {
    Known& k = known();
    double p[KEPT], q[KEPT], least = 1e-13 * square, v = square + a.ridge * square;
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
      const double* row = k.older[i];
      p[i] = (row[0] + row[1]) + (row[2] + row[3]);
      q[i] = fma(row[1], products[1], row[0] * products[0]) + fma(row[3], products[3], row[2] * products[2]);
    }
#pragma unroll
    for (int i = 0; i < KEPT; i++) v = fma(i > 0 ? products[i - 1] - products[i] : -products[0], q[i], v);
    double n = 1.0 - q[0], total = fma(v, p[0], n * n), whole = reciprocal(total);
#pragma unroll
    for (int age = 0; age < KEPT; age++) {
      bool there = age + 1 < (int)k.count;
      k.steps[age] = there ? (float)((n * q[age] - v * p[age]) * whole * (double)k.backs[((int)k.place + KEPT - age) % KEPT]) : 0.0f;
    }
    return k.regular && v > least && total <= DBL_MAX && total >= DBL_MIN;
  }
  /// The combination of images becomes the argument; what this thread says of it.
  DEV uint32_t combine() {
    const Known& k = known();
    float steps[KEPT];
    uint32_t place = k.place;
    bool positive = true, were_positive = true, finite = true;
#pragma unroll
    for (int age = 0; age < KEPT; age++) steps[age] = k.steps[age];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      float x = f[2 * p], y = f[2 * p + 1];
      bool own = owns(p / NT);
      were_positive &= !own || (x > 0.0f && y > 0.0f);
      if (k.count) {
#pragma unroll
        for (int age = 0; age < KEPT; age++) {
          float2 moved = unpack_f16(word(difference_at((place + KEPT - age) % KEPT, p)));
          x = fmaf(steps[age], moved.x, x);
          y = fmaf(steps[age], moved.y, y);
        }
      }
      positive &= !own || (x > 0.0f && y > 0.0f);
      finite &= fabsf(x) <= FLT_MAX && fabsf(y) <= FLT_MAX;
      z[2 * p] = x, z[2 * p + 1] = y;
    }
    return (finite ? 0 : NOT_FINITE) | (positive ? 0 : NOT_POSITIVE) | (were_positive ? 0 : WAS_NOT);
  }
  DEV void plain_step() {
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) z[i] = f[i];
  }

  DEV void write_answer(uint32_t place) const {
    float* to = a.state + (size_t)place * (grid_size() / CL) * (SIDE * SIDE * C);
#pragma unroll
    for (int p = 0; p < PAIRS; p++)
      if (owns(p / NT)) *reinterpret_cast<float2*>(to + global(p)) = make_float2(f[2 * p], f[2 * p + 1]);
  }

  DEV void run() {
    // For all blocks alike.
    if (a.together && a.together->known) return;
    begin();
    float parts[VALUES] = {};
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      float2 x = owns(p / NT) ? *reinterpret_cast<const float2*>(a.start + global(p)) : make_float2(0.0f, 0.0f);
      z[2 * p] = x.x, z[2 * p + 1] = x.y;
      parts[5] = fmaf(x.x, x.x, fmaf(x.y, x.y, parts[5]));
      // NaN if it is not finite.
      float2 y = pair(a.drive, p);
      parts[4] = fmaf(y.x, 0.0f, fmaf(y.y, 0.0f, parts[4]));
    }
    if (thread_index() == 0) {
      Known& k = known();
      k.count = k.newest = k.place = k.accelerated = k.since = 0;
      k.residual = k.difference = k.size = 0.0;
      k.best = INFINITY;
    }
    Base::template sum_up<false>(parts, 0);
    if (thread_index() == 0) {
      known().scale = argument_scale(Base::sums(0)[5]);
      known().spoiled = Base::sums(0)[4] != 0.0 || *a.bad;
    }
    block_barrier();
    put(known().scale, 0);
#pragma unroll 1
    for (uint32_t iteration = 1;; iteration++) {
      apply(known().scale);
      if (iteration == 1) {
        // The first residual has none before it that its size could be taken from. Its difference is never used.
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) before[i] = f[i];
#pragma unroll
        for (int v = 0; v < VALUES; v++) parts[v] = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) parts[4] = fmaf(f[i] - z[i], f[i] - z[i], parts[4]);
        Base::template sum_up<false>(parts, 0);
        if (thread_index() == 0) known().to = pair_scale(Base::sums(0)[4]);
        block_barrier();
      }
      put_pair(parts);
      Base::template sum_up<false>(parts, 0, [&] { prepare(); });
      decide(iteration);
      block_barrier();
      const Known& k = known();
      if (!k.helped) {
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) f[i] = before[i];
      }
      if (a.together && iteration + ANSWERS > limit) write_answer(iteration % ANSWERS);
      if (k.ended) break;
#pragma unroll
      for (int i = 0; i < 2 * PAIRS; i++) before[i] = f[i];
      bool solved = k.solved;
      uint32_t vote = 0;
      if (solved) vote = combine(); else plain_step();
      bool accepted = put(k.scale, vote);
      if (!accepted) {
        plain_step();
        put(k.scale, 0);
      }
      if (thread_index() == 0) known().accelerated = solved && accepted;
    }
    if (!a.together) write_answer(0);
  }
};

// The kernels for one shape.
#define ANDERSON_ON_CHIP(name, tiles, cluster, kind, normalised)                                                                                          \
  extern "C" __global__ void __launch_bounds__(512, 1) __cluster_dims__(cluster, 1, 1) onchip_anderson_##name(const __grid_constant__ OnchipAnderson a) { \
    static_assert(AndersonOnChip<tiles, kind, normalised>::CL == cluster, "cluster");                                                                     \
    AndersonOnChip<tiles, kind, normalised> solve(a);                                                                                                     \
    solve.run();                                                                                                                                          \
  }
#define ANDERSON_KERNELS(shape, tiles, cluster)                                        \
  ANDERSON_ON_CHIP(solve_##shape, tiles, cluster, ANDERSON_FORWARD, false)             \
  ANDERSON_ON_CHIP(solve_normalised_##shape, tiles, cluster, ANDERSON_FORWARD, true)   \
  ANDERSON_ON_CHIP(adjoint_##shape, tiles, cluster, ANDERSON_ADJOINT, false)           \
  ANDERSON_ON_CHIP(adjoint_normalised_##shape, tiles, cluster, ANDERSON_ADJOINT, true)
