//! Matrix tiles (AMX): bf16 products summed in f32.
//!
//! A number is split into a bf16 and a bf16 remainder, `x = hi + lo` up to `2^-17 |x|`. One pass multiplies the high
//! parts (relative error about `2^-8` per product); three passes, `hi*hi + hi*lo + lo*hi`, come close to f32.
//!
//! Measured on one core of a Sapphire Rapids: a product of two tiles takes 6 ns, a tile load 2.9 ns from L1 if its rows lie in
//! cache lines and 7.3 ns if they cross them. Whoever lays out operands must keep rows aligned.

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::offset_of;

use crate::cpu::isa::Isa;

/// Rows (and f32 columns) of a tile.
pub const SIDE: usize = 16;
/// bf16 numbers in a tile row.
pub const DEPTH: usize = 32;
/// Pixel tiles that share one load of the weights: four accumulators.
pub const GROUP: usize = 4;

/// A 1 KiB tile of bf16 numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Tile(pub [u16; SIDE * DEPTH]);

/// Proof that this machine has AMX with bf16 and that this process may use it.
#[derive(Clone, Copy, Debug)]
pub struct AmxProof(());

impl AmxProof {
    /// The proof that this instruction set carries, if it does.
    pub fn of(isa: Isa) -> Option<Self> {
        isa.has_amx().then_some(Self(()))
    }
}

/// How many products of the split numbers are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// High parts only.
    One,
    /// High times high, high times low, low times high.
    Three,
}

/// The nearest bf16 (ties to even).
fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// A finite number as high and low part.
pub fn split(x: f32) -> (u16, u16) {
    let high = bf16(x);
    (high, bf16(x - f32::from_bits(u32::from(high) << 16)))
}

/// Offsets (in bytes) of the operands of one product in a sum of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Step {
    /// Of the four operands of their own.
    pub own: usize,
    /// Of the common operand.
    pub common: usize,
}

/// Four sums of tile products with one operand in common; tile rows of both operands are 64 bytes apart.
#[derive(Debug)]
#[repr(C)]
pub struct Job {
    /// Start of the operand of each sum.
    pub own: [*const u16; GROUP],
    /// Start of the common operand.
    pub common: *const u16,
    /// From the high to the low parts of the operands of their own, in bytes.
    pub own_low: usize,
    /// From the high to the low parts of the common operand, in bytes.
    pub common_low: usize,
    /// Where the sums go.
    pub out: [*mut f32; GROUP],
    /// Bytes from row to row of each sum.
    pub out_stride: [usize; GROUP],
    /// First step.
    pub steps: *const Step,
    /// Behind the last step.
    pub steps_end: *const Step,
}

/// Which operand the four sums have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Common {
    /// The right one; the sums begin at zero.
    Right,
    /// The left one; the sums begin at zero.
    Left,
    /// The left one; the sums are added to what is there.
    LeftAdded,
}

/// Four zeros.
macro_rules! zeros {
    () => {
        "tilezero tmm0\n tilezero tmm1\n tilezero tmm2\n tilezero tmm3"
    };
}

/// What is where the sums go.
macro_rules! present {
    () => {
        concat!(
            present!("", "tmm0"),
            present!("+ 8", "tmm1"),
            present!("+ 16", "tmm2"),
            present!("+ 24", "tmm3")
        )
    };
    ($at:literal, $sum:literal) => {
        concat!(
            "mov {own}, [{job} + {out_at} ",
            $at,
            "]\n",
            "mov {offset}, [{job} + {stride_at} ",
            $at,
            "]\n",
            "tileloadd ",
            $sum,
            ", [{own} + {offset}*1]\n",
        )
    };
}

/// One pass; `$product` is the product of an operand of its own with the common one, in their order.
macro_rules! one_pass {
    ($product:ident) => {
        concat!(
            "tileloadd tmm4, [{common} + {line}*1]\n /* not used: {low} {common_low_at} */\n",
            one_pass!($product, "{a0}", "tmm0", "tmm5"),
            one_pass!($product, "{a1}", "tmm1", "tmm6"),
            one_pass!($product, "{a2}", "tmm2", "tmm7"),
            one_pass!($product, "{a3}", "tmm3", "tmm5"),
        )
    };
    ($product:ident, $own:literal, $sum:literal, $tile:literal) => {
        concat!(
            "lea {own}, [",
            $own,
            " + {offset}]\n",
            "tileloadd ",
            $tile,
            ", [{own} + {line}*1]\n",
            $product!($sum, $tile),
        )
    };
}

/// Common operand on the right, one pass.
macro_rules! right_one {
    () => {
        one_pass!(right_one)
    };
    ($sum:literal, $own:literal) => {
        concat!("tdpbf16ps ", $sum, ", ", $own, ", tmm4\n")
    };
}

/// Common operand on the left, one pass.
macro_rules! left_one {
    () => {
        one_pass!(left_one)
    };
    ($sum:literal, $own:literal) => {
        concat!("tdpbf16ps ", $sum, ", tmm4, ", $own, "\n")
    };
}

/// Three passes; `$products` are those of an operand of its own (high in tmm6, low in tmm7) with the common one (tmm4, tmm5).
macro_rules! three_passes {
    ($products:ident) => {
        concat!(
            "tileloadd tmm4, [{common} + {line}*1]\n",
            "add {common}, [{job} + {common_low_at}]\n",
            "tileloadd tmm5, [{common} + {line}*1]\n",
            three_passes!($products, "{a0}", "tmm0"),
            three_passes!($products, "{a1}", "tmm1"),
            three_passes!($products, "{a2}", "tmm2"),
            three_passes!($products, "{a3}", "tmm3"),
        )
    };
    ($products:ident, $own:literal, $sum:literal) => {
        concat!(
            "lea {own}, [",
            $own,
            " + {offset}]\n",
            "tileloadd tmm6, [{own} + {line}*1]\n",
            "add {own}, {low}\n",
            "tileloadd tmm7, [{own} + {line}*1]\n",
            $products!($sum),
        )
    };
}

/// Common operand on the right, three passes: high times high, high times low, low times high.
macro_rules! right_three {
    () => {
        three_passes!(right_three)
    };
    ($sum:literal) => {
        concat!(
            "tdpbf16ps ",
            $sum,
            ", tmm6, tmm4\n tdpbf16ps ",
            $sum,
            ", tmm6, tmm5\n tdpbf16ps ",
            $sum,
            ", tmm7, tmm4\n"
        )
    };
}

/// Common operand on the left, three passes in the same order, so that the sums have the same bits.
macro_rules! left_three {
    () => {
        three_passes!(left_three)
    };
    ($sum:literal) => {
        concat!(
            "tdpbf16ps ",
            $sum,
            ", tmm4, tmm6\n tdpbf16ps ",
            $sum,
            ", tmm4, tmm7\n tdpbf16ps ",
            $sum,
            ", tmm5, tmm6\n"
        )
    };
}

/// Common frame: beginnings, the loop over the steps, stores. Everything is one block of assembly since tile registers
/// must not be relied on from one block to the next. `{own}` and `{common}` are the addresses for the step at hand.
macro_rules! tile_products {
    ($job:expr, $begin:ident, $body:ident) => {
        asm!(
            "mov {a0}, [{job} + {own_at}]", "mov {a1}, [{job} + {own_at} + 8]",
            "mov {a2}, [{job} + {own_at} + 16]", "mov {a3}, [{job} + {own_at} + 24]",
            "mov {step}, [{job} + {steps_at}]",
            $begin!(),
            "2:",
            "mov {offset}, [{step}]",
            "mov {common}, [{job} + {common_at}]", "add {common}, [{step} + 8]",
            $body!(),
            "add {step}, 16",
            "cmp {step}, [{job} + {steps_end_at}]",
            "jne 2b",
            "mov {a0}, [{job} + {out_at}]", "mov {own}, [{job} + {stride_at}]",
            "tilestored [{a0} + {own}*1], tmm0",
            "mov {a1}, [{job} + {out_at} + 8]", "mov {own}, [{job} + {stride_at} + 8]",
            "tilestored [{a1} + {own}*1], tmm1",
            "mov {a2}, [{job} + {out_at} + 16]", "mov {own}, [{job} + {stride_at} + 16]",
            "tilestored [{a2} + {own}*1], tmm2",
            "mov {a3}, [{job} + {out_at} + 24]", "mov {own}, [{job} + {stride_at} + 24]",
            "tilestored [{a3} + {own}*1], tmm3",
            job = in(reg) $job as *const Job,
            line = in(reg) 64usize,
            low = in(reg) $job.own_low,
            a0 = out(reg) _, a1 = out(reg) _, a2 = out(reg) _, a3 = out(reg) _,
            own = out(reg) _, common = out(reg) _, step = out(reg) _, offset = out(reg) _,
            own_at = const offset_of!(Job, own),
            common_at = const offset_of!(Job, common),
            common_low_at = const offset_of!(Job, common_low),
            out_at = const offset_of!(Job, out),
            stride_at = const offset_of!(Job, out_stride),
            steps_at = const offset_of!(Job, steps),
            steps_end_at = const offset_of!(Job, steps_end),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// Computes the four sums of a job.
///
/// # Safety
/// There must be at least one step. At every step, the operands must be good for reading 1 KiB (the low parts too, for
/// three passes), and the outputs for writing (and, if added to, reading) 16 rows of 64 bytes at their stride.
pub unsafe fn products(_: &TileSession, job: &Job, passes: Passes, common: Common) {
    // SAFETY: a session exists only where AMX does; the rest is passed on to the caller.
    unsafe {
        match (common, passes) {
            (Common::Right, Passes::One) => tile_products!(job, zeros, right_one),
            (Common::Right, Passes::Three) => tile_products!(job, zeros, right_three),
            (Common::Left, Passes::One) => tile_products!(job, zeros, left_one),
            (Common::Left, Passes::Three) => tile_products!(job, zeros, left_three),
            (Common::LeftAdded, _) => tile_products!(job, present, left_three),
        }
    }
}

/// The high and the low parts of the first 16 numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub fn split16(numbers: &[f32]) -> (__m256i, __m256i) {
    assert!(numbers.len() >= SIDE);
    // SAFETY: sixteen numbers are there.
    split_vector(unsafe { _mm512_loadu_ps(numbers.as_ptr()) })
}

/// As many of the first 16 numbers as there are, then zeros.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_some(numbers: &[f32]) -> __m512 {
    let mask = ((1u32 << numbers.len().min(SIDE)) - 1) as __mmask16;
    // SAFETY: lanes beyond the slice are masked and not touched.
    unsafe { _mm512_maskz_loadu_ps(mask, numbers.as_ptr()) }
}

/// The high and the low parts of a vector.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn split_vector(x: __m512) -> (__m256i, __m256i) {
    let high = _mm512_cvtneps_pbh(x);
    let low = _mm512_cvtneps_pbh(_mm512_sub_ps(x, _mm512_cvtpbh_ps(high)));
    // SAFETY: bf16 vectors are 256 bits of plain data.
    unsafe { (std::mem::transmute::<__m256bh, __m256i>(high), std::mem::transmute::<__m256bh, __m256i>(low)) }
}

/// The high parts of two vectors, one after the other.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub fn round32(first: __m512, second: __m512) -> __m512i {
    // SAFETY: bf16 vectors are plain data.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first)) }
}

/// The low parts of two vectors whose high parts are `rounded`.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub fn rest32(first: __m512, second: __m512, rounded: __m512i) -> __m512i {
    let wide = |half: __m256i| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)));
    let first = _mm512_sub_ps(first, wide(_mm512_castsi512_si256(rounded)));
    let second = _mm512_sub_ps(second, wide(_mm512_extracti64x4_epi64::<1>(rounded)));
    round32(first, second)
}

/// Writes a row of numbers to row `slot` of left operands, 32 numbers to each tile, zeros behind the last; `low` may be
/// empty.
pub fn pack_row(_: AmxProof, row: &[f32], slot: usize, high: &mut [Tile], low: &mut [Tile]) {
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn pack(row: &[f32], slot: usize, high: &mut [Tile], low: &mut [Tile]) {
        let at = slot * DEPTH;
        for (tile, high) in high.iter_mut().enumerate() {
            let part = row.get(tile * DEPTH..).unwrap_or_default();
            let (first, second) = (load_some(part), load_some(part.get(SIDE..).unwrap_or_default()));
            let rounded = round32(first, second);
            store32(rounded, &mut high.0[at..]);
            if let Some(low) = low.get_mut(tile) {
                store32(rest32(first, second, rounded), &mut low.0[at..]);
            }
        }
    }
    // SAFETY: a machine with AMX (the proof) has AVX-512 with BW and BF16 too, see `Isa::detect`.
    unsafe { pack(row, slot, high, low) }
}

/// Writes 16 numbers of each of a pair of summands to row `slot` of a right operand; what is missing is zero.
pub fn pack_pair(_: AmxProof, pair: [&[f32]; 2], slot: usize, high: &mut Tile, low: &mut Tile) {
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn pack([first, second]: [&[f32]; 2], slot: usize, high: &mut Tile, low: &mut Tile) {
        let (first, second) = (split_vector(load_some(first)), split_vector(load_some(second)));
        store32(interleave(first.0, second.0), &mut high.0[slot * DEPTH..]);
        store32(interleave(first.1, second.1), &mut low.0[slot * DEPTH..]);
    }
    // SAFETY: a machine with AMX (the proof) has AVX-512 with BW and BF16 too, see `Isa::detect`.
    unsafe { pack(pair, slot, high, low) }
}

/// Turns a left operand into a right one, or the other way round: transposes its pairs.
pub fn transpose_pairs(_: AmxProof, tile: &mut Tile) {
    #[target_feature(enable = "avx512f")]
    fn transpose_pairs(tile: &mut Tile) {
        let mut rows = [_mm512_setzero_si512(); SIDE];
        for (row, numbers) in rows.iter_mut().zip(tile.0.chunks_exact(DEPTH)) {
            // SAFETY: 32 numbers are there.
            *row = unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) };
        }
        for (&row, numbers) in transpose(&rows).iter().zip(tile.0.chunks_exact_mut(DEPTH)) {
            store32(row, numbers);
        }
    }
    // SAFETY: a machine with AMX (the proof) has AVX-512 too.
    unsafe { transpose_pairs(tile) }
}

/// `sums[i] += terms[i]`.
pub fn add(_: AmxProof, sums: &mut [f32], terms: &[f32]) {
    #[target_feature(enable = "avx512f,avx512vl")]
    fn add(sums: &mut [f32], terms: &[f32]) {
        sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
    }
    // SAFETY: a machine with AMX (the proof) has AVX-512 too.
    unsafe { add(sums, terms) }
}

/// The numbers of two vectors next to each other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn interleave(first: __m256i, second: __m256i) -> __m512i {
    let (first, second) = (_mm512_cvtepu16_epi32(first), _mm512_cvtepu16_epi32(second));
    _mm512_or_si512(first, _mm512_slli_epi32::<16>(second))
}

/// Sixteen bf16 numbers to the start of a slice.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn store16(numbers: __m256i, to: &mut [u16]) {
    assert!(to.len() >= SIDE);
    // SAFETY: there is room for sixteen numbers.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), numbers) }
}

/// The transpose of 16 x 16 pairs.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn transpose(rows: &[__m512i; SIDE]) -> [__m512i; SIDE] {
    let mut a = *rows;
    let mut b = [_mm512_setzero_si512(); SIDE];
    // Within 128-bit lanes: first 2 x 2, then 4 x 4.
    for i in 0..8 {
        b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    for i in 0..4 {
        let [p, q, r, s] = [b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]];
        a[4 * i] = _mm512_unpacklo_epi64(p, r);
        a[4 * i + 1] = _mm512_unpackhi_epi64(p, r);
        a[4 * i + 2] = _mm512_unpacklo_epi64(q, s);
        a[4 * i + 3] = _mm512_unpackhi_epi64(q, s);
    }
    // Then the 4 x 4 lanes.
    for i in 0..4 {
        let [p, q, r, s] = [a[i], a[4 + i], a[8 + i], a[12 + i]];
        let (pq_even, pq_odd) = (_mm512_shuffle_i32x4::<0x88>(p, q), _mm512_shuffle_i32x4::<0xdd>(p, q));
        let (rs_even, rs_odd) = (_mm512_shuffle_i32x4::<0x88>(r, s), _mm512_shuffle_i32x4::<0xdd>(r, s));
        b[i] = _mm512_shuffle_i32x4::<0x88>(pq_even, rs_even);
        b[4 + i] = _mm512_shuffle_i32x4::<0x88>(pq_odd, rs_odd);
        b[8 + i] = _mm512_shuffle_i32x4::<0xdd>(pq_even, rs_even);
        b[12 + i] = _mm512_shuffle_i32x4::<0xdd>(pq_odd, rs_odd);
    }
    b
}

/// A cache line to the start of a slice.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn store32(numbers: __m512i, to: &mut [u16]) {
    assert!(to.len() >= DEPTH);
    // SAFETY: there is room for 32 numbers.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), numbers) }
}

/// Multiplies tiles of zeros that stay in their registers, `4 steps` times; returns the operations of that.
pub fn multiply_only(proof: AmxProof, steps: usize) -> f64 {
    let _session = TileSession::start(proof);
    // SAFETY: the session configured the tile registers; no memory is touched.
    unsafe {
        asm!(
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6", "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {steps}",
            "jnz 2b",
            steps = inout(reg) steps.max(1) => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, nomem),
        );
    }
    (4 * steps.max(1) * 2 * SIDE * SIDE * DEPTH) as f64
}

/// The shape that `ldtilecfg` gives the eight tile registers: 16 rows of 64 bytes each.
#[repr(C, align(64))]
struct TileShape {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

thread_local! {
    /// Sessions of this thread. All have the same shape, so that only the outermost touches the configuration.
    static SESSIONS: Cell<usize> = const { Cell::new(0) };
}

/// Full tile registers on this thread, given back when the last session is dropped.
pub struct TileSession {
    /// The configuration belongs to the thread.
    not_send: PhantomData<*const ()>,
}

impl TileSession {
    /// Configures the tile registers.
    pub fn start(_: AmxProof) -> Self {
        if SESSIONS.replace(SESSIONS.get() + 1) > 0 {
            return Self { not_send: PhantomData };
        }
        let mut shape =
            TileShape { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        shape.row_bytes[..8].fill(2 * DEPTH as u16);
        shape.rows[..8].fill(SIDE as u8);
        // SAFETY: the proof says that the machine has AMX and lets us use it; `shape` is a valid configuration.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) &shape, options(nostack, readonly)) }
        Self { not_send: PhantomData }
    }
}

impl Drop for TileSession {
    fn drop(&mut self) {
        if SESSIONS.replace(SESSIONS.get() - 1) > 1 {
            return;
        }
        // SAFETY: a session exists only where AMX does.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }
}
