//! The convolution on matrix tiles (AMX): bf16 products summed in f32.
//!
//! A number is split into a bf16 and a bf16 remainder, `x = hi + lo` up to `2^-17 |x|`. One pass multiplies the high
//! parts (relative error about `2^-8` per product); three passes, `hi*hi + hi*lo + lo*hi`, come close to f32.
//!
//! Tile loads that cross cache lines cost more than the products they feed (7.3 against 2.9 and 6 ns), so the image is kept in
//! slots: padded bf16 planes of 32 channels, 64 bytes for each pixel, in which the tile of 16 neighbouring pixels under any
//! tap of the window is read in place and aligned. Up to 16 left-over channels share a slot with those of the next
//! pixel, so that one product serves two taps. No patch matrix is ever built. The weights of 16 outputs (15 kB or 30 kB for
//! 48 channels) stay in L1 while the rows of a band pass by.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ops::Range;

use super::shape::{Geometry, Stencil, neighbour};
use crate::cpu::buffer::Buffer;
use crate::Real;
use crate::cpu::isa::Isa;

/// Rows (and f32 columns) of a tile.
const SIDE: usize = 16;
/// bf16 numbers in a tile row.
const DEPTH: usize = 32;
/// Channels of one pixel in a shared slot.
const HALF: usize = 16;
/// Pixel tiles that share one load of the weights: four accumulators.
const GROUP: usize = 4;

/// A 1 KiB tile of bf16 numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Tile([u16; SIDE * DEPTH]);

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

/// Weights as `[output tile][step][high, low]`, in the pairwise layout of the tile product.
#[derive(Clone, Debug)]
pub struct Amx {
    geometry: Geometry,
    steps: Vec<Step>,
    tiles: Vec<Tile>,
}

/// The padded high slots of the image at hand, then the low ones.
#[derive(Clone, Debug, Default)]
pub struct Planes {
    numbers: Buffer<u16>,
    /// The inputs of one pixel, up to a multiple of 16.
    pixel: Vec<f32>,
    geometry: Option<Geometry>,
}

/// One tile product of the sum: a tap of the window (two in a shared slot) and up to 32 channels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Step {
    /// From the output pixel's upper left neighbour in the first slot to what is read, in bytes.
    offset: usize,
    row: usize,
    column: usize,
    slot: usize,
}

/// How the inputs are distributed over slots.
#[derive(Clone, Copy)]
struct Slots {
    inputs: usize,
    /// Slots of 32 channels of one pixel.
    full: usize,
    /// Whether one more slot holds the last channels of a pixel and of its right neighbour.
    shared: bool,
    /// Numbers of one slot, with room for tiles that run over the end.
    len: usize,
}

impl Slots {
    fn new(geometry: &Geometry) -> Self {
        let shape = &geometry.shape;
        let inputs = geometry.inputs();
        let shared = (1..=HALF).contains(&(inputs % DEPTH));
        let pixels = (shape.height + 2) * (shape.width + 2) + SIDE + 2;
        Self { inputs, full: if shared { inputs / DEPTH } else { inputs.div_ceil(DEPTH) }, shared, len: pixels * DEPTH }
    }

    fn count(&self) -> usize {
        self.full + usize::from(self.shared)
    }

    /// Numbers in all high (or all low) slots.
    fn total(&self) -> usize {
        self.count() * self.len
    }

    fn steps(&self, geometry: &Geometry) -> Vec<Step> {
        let step = |slot: usize, row: usize, column: usize| {
            let offset = 2 * (slot * self.len + (row * (geometry.shape.width + 2) + column) * DEPTH);
            Step { offset, row, column, slot }
        };
        let mut steps = Vec::new();
        for row in 0..3 {
            steps.extend((0..self.full).flat_map(|slot| (0..3).map(move |column| step(slot, row, column))));
            if self.shared {
                steps.extend([step(self.full, row, 0), step(self.full, row, 2)]);
            }
        }
        steps
    }

    /// The window column and the input that entry `k` of a step multiplies, if any.
    fn factor(&self, step: &Step, k: usize) -> Option<(usize, usize)> {
        let (column, input) =
            if step.slot < self.full { (step.column, step.slot * DEPTH + k) } else { (step.column + k / HALF, self.full * DEPTH + k % HALF) };
        (column < 3 && input < self.inputs).then_some((column, input))
    }
}

/// Output tiles of one plane.
fn output_tiles(geometry: &Geometry) -> usize {
    geometry.shape.out_channels.div_ceil(SIDE)
}

/// The nearest bf16 (ties to even).
fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// A finite number as high and low part.
fn split(x: f32) -> (u16, u16) {
    let high = bf16(x);
    (high, bf16(x - f32::from_bits(u32::from(high) << 16)))
}

impl Amx {
    /// Room for the weights of such a convolution.
    pub fn new(geometry: Geometry) -> Self {
        let steps = Slots::new(&geometry).steps(&geometry);
        let tiles = vec![Tile([0; SIDE * DEPTH]); geometry.out_planes * output_tiles(&geometry) * steps.len() * 2];
        Self { geometry, steps, tiles }
    }

    /// Packs the weights.
    pub fn pack<T: Real>(&mut self, stencil: &Stencil<T>) {
        assert!(stencil.geometry() == self.geometry, "weights of another geometry");
        let slots = Slots::new(&self.geometry);
        let (outputs, plane_tiles) = (self.geometry.shape.out_channels, output_tiles(&self.geometry));
        let mut tiles = self.tiles.chunks_exact_mut(2);
        for (plane, first) in (0..self.geometry.out_planes).flat_map(|p| (0..plane_tiles).map(move |t| (p, t * SIDE))) {
            for (step, tiles) in self.steps.iter().zip(&mut tiles) {
                for (k, (column, input)) in (0..DEPTH).filter_map(|k| Some((k, slots.factor(step, k)?))) {
                    for output in first..outputs.min(first + SIDE) {
                        let at = (k / 2) * DEPTH + 2 * (output - first) + k % 2;
                        let weight = stencil.weight(plane, output, input, step.row, column);
                        (tiles[0].0[at], tiles[1].0[at]) = split(weight.to_f64() as f32);
                    }
                }
            }
        }
    }

    /// Preactivations of some rows of the image in `planes`: `[plane][row][pixel][channel]`.
    pub fn rows(&self, _: &TileSession, planes: &Planes, passes: Passes, rows: Range<usize>, out: &mut [f32]) {
        let geometry = &self.geometry;
        let shape = &geometry.shape;
        let (outputs, width) = (shape.out_channels, shape.width);
        let row_tiles = width.div_ceil(SIDE);
        let tiles = rows.len() * row_tiles;
        let plane_out = geometry.output_rows(rows.len());
        assert!(out.len() == geometry.out_planes * plane_out, "output length");
        assert!(rows.end <= shape.height && planes.geometry == Some(*geometry), "image size");
        let low = 2 * Slots::new(geometry).total();
        let mut spill = [[0f32; SIDE * SIDE]; GROUP];
        for (index, weights) in self.tiles.chunks_exact(2 * self.steps.len()).enumerate() {
            let (plane, output) = (index / output_tiles(geometry), (index % output_tiles(geometry)) * SIDE);
            let channels = SIDE.min(outputs - output);
            for group in (0..tiles).step_by(GROUP) {
                let mut job = Job {
                    image: [std::ptr::null(); GROUP],
                    out: [std::ptr::null_mut(); GROUP],
                    out_stride: [0; GROUP],
                    weights: weights.as_ptr(),
                    steps: self.steps.as_ptr(),
                    steps_end: self.steps.as_ptr_range().end,
                    low,
                };
                let mut partial = [None; GROUP];
                for slot in 0..GROUP {
                    // A group at the end repeats its last tile; the repetition goes to the spill tile and is dropped.
                    let tile = (group + slot).min(tiles - 1);
                    let (row, column) = (tile / row_tiles, (tile % row_tiles) * SIDE);
                    let start = ((rows.start + row) * (width + 2) + column) * DEPTH;
                    let target = plane * plane_out + (row * width + column) * outputs + output;
                    job.image[slot] = planes.numbers[start..].as_ptr();
                    if group + slot < tiles && channels == SIDE && column + SIDE <= width {
                        job.out[slot] = out[target..].as_mut_ptr();
                        job.out_stride[slot] = 4 * outputs;
                    } else {
                        job.out[slot] = spill[slot].as_mut_ptr();
                        job.out_stride[slot] = 4 * SIDE;
                        partial[slot] = (group + slot < tiles).then_some((target, SIDE.min(width - column)));
                    }
                }
                // SAFETY: a tile session exists only with AMX, and is alive. Reads: a tile is 16 pixels of a slot from
                // at most two pixels behind an inner one, which the 18 pixels of slack at the end of a slot leave room
                // for; the weights hold a pair of tiles for each step. Writes: 16 x 16 numbers at the given stride,
                // inside `out` (full tiles only) or a spill tile.
                unsafe {
                    match passes {
                        Passes::One => one_pass(&job),
                        Passes::Three => three_passes(&job),
                    }
                }
                for (spill, partial) in spill.iter().zip(partial) {
                    let Some((target, pixels)) = partial else { continue };
                    for pixel in 0..pixels {
                        out[target + pixel * outputs..][..channels]
                            .copy_from_slice(&spill[pixel * SIDE..][..channels]);
                    }
                }
            }
        }
    }
}

/// Addresses and strides (in bytes) of four tile products with common weights.
#[repr(C)]
struct Job {
    image: [*const u16; GROUP],
    out: [*mut f32; GROUP],
    out_stride: [usize; GROUP],
    weights: *const Tile,
    steps: *const Step,
    steps_end: *const Step,
    /// From the high slots to the low ones.
    low: usize,
}

/// Common frame of the two products: accumulators to zero, the loop over the steps, stores. Everything is one block of
/// assembly since tile registers must not be relied on from one block to the next.
macro_rules! tile_product {
    ($job:expr, $($body:literal),+ $(,)?) => {
        asm!(
            "mov {a0}, [{job} + {image}]", "mov {a1}, [{job} + {image} + 8]",
            "mov {a2}, [{job} + {image} + 16]", "mov {a3}, [{job} + {image} + 24]",
            "mov {w}, [{job} + {weights}]", "mov {step}, [{job} + {steps}]",
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            "2:",
            "mov {offset}, [{step}]",
            $($body,)+
            "add {w}, 2048",
            "add {step}, {step_size}",
            "cmp {step}, [{job} + {steps_end}]",
            "jne 2b",
            "mov {a0}, [{job} + {out}]", "mov {a}, [{job} + {out_stride}]", "tilestored [{a0} + {a}*1], tmm0",
            "mov {a1}, [{job} + {out} + 8]", "mov {a}, [{job} + {out_stride} + 8]", "tilestored [{a1} + {a}*1], tmm1",
            "mov {a2}, [{job} + {out} + 16]", "mov {a}, [{job} + {out_stride} + 16]", "tilestored [{a2} + {a}*1], tmm2",
            "mov {a3}, [{job} + {out} + 24]", "mov {a}, [{job} + {out_stride} + 24]", "tilestored [{a3} + {a}*1], tmm3",
            job = in(reg) $job as *const Job,
            line = in(reg) 64usize,
            low = in(reg) $job.low,
            a0 = out(reg) _, a1 = out(reg) _, a2 = out(reg) _, a3 = out(reg) _,
            a = out(reg) _, w = out(reg) _, step = out(reg) _, offset = out(reg) _,
            image = const offset_of!(Job, image),
            out = const offset_of!(Job, out),
            out_stride = const offset_of!(Job, out_stride),
            weights = const offset_of!(Job, weights),
            steps = const offset_of!(Job, steps),
            steps_end = const offset_of!(Job, steps_end),
            step_size = const size_of::<Step>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// Four tiles of high x high.
///
/// # Safety
/// AMX must be configured for full tiles, there must be at least one step, and every address of the job be good for
/// what it is used for.
unsafe fn one_pass(job: &Job) {
    // SAFETY: passed on to the caller.
    unsafe {
        tile_product!(
            job,
            "/* not used: {low} */",
            "tileloadd tmm4, [{w} + {line}*1]",
            "lea {a}, [{a0} + {offset}]",
            "tileloadd tmm5, [{a} + {line}*1]",
            "tdpbf16ps tmm0, tmm5, tmm4",
            "lea {a}, [{a1} + {offset}]",
            "tileloadd tmm6, [{a} + {line}*1]",
            "tdpbf16ps tmm1, tmm6, tmm4",
            "lea {a}, [{a2} + {offset}]",
            "tileloadd tmm7, [{a} + {line}*1]",
            "tdpbf16ps tmm2, tmm7, tmm4",
            "lea {a}, [{a3} + {offset}]",
            "tileloadd tmm5, [{a} + {line}*1]",
            "tdpbf16ps tmm3, tmm5, tmm4",
        );
    }
}

/// Four tiles of high x high + high x low + low x high.
///
/// # Safety
/// As for [`one_pass`]; the low slots must lie `low` bytes behind the high ones.
unsafe fn three_passes(job: &Job) {
    // SAFETY: passed on to the caller.
    unsafe {
        tile_product!(
            job,
            "tileloadd tmm4, [{w} + {line}*1]",
            "tileloadd tmm5, [{w} + {line}*1 + 1024]",
            "lea {a}, [{a0} + {offset}]",
            "tileloadd tmm6, [{a} + {line}*1]",
            "add {a}, {low}",
            "tdpbf16ps tmm0, tmm6, tmm4",
            "tdpbf16ps tmm0, tmm6, tmm5",
            "tileloadd tmm7, [{a} + {line}*1]",
            "lea {a}, [{a1} + {offset}]",
            "tdpbf16ps tmm0, tmm7, tmm4",
            "tileloadd tmm6, [{a} + {line}*1]",
            "add {a}, {low}",
            "tdpbf16ps tmm1, tmm6, tmm4",
            "tdpbf16ps tmm1, tmm6, tmm5",
            "tileloadd tmm7, [{a} + {line}*1]",
            "lea {a}, [{a2} + {offset}]",
            "tdpbf16ps tmm1, tmm7, tmm4",
            "tileloadd tmm6, [{a} + {line}*1]",
            "add {a}, {low}",
            "tdpbf16ps tmm2, tmm6, tmm4",
            "tdpbf16ps tmm2, tmm6, tmm5",
            "tileloadd tmm7, [{a} + {line}*1]",
            "lea {a}, [{a3} + {offset}]",
            "tdpbf16ps tmm2, tmm7, tmm4",
            "tileloadd tmm6, [{a} + {line}*1]",
            "add {a}, {low}",
            "tdpbf16ps tmm3, tmm6, tmm4",
            "tdpbf16ps tmm3, tmm6, tmm5",
            "tileloadd tmm7, [{a} + {line}*1]",
            "tdpbf16ps tmm3, tmm7, tmm4",
        );
    }
}

impl Planes {
    /// Splits an image (all input planes) into padded bf16 slots; the low ones only where they will be used.
    pub fn load(&mut self, _: AmxProof, geometry: &Geometry, image: &[f32], passes: Passes) {
        assert!(image.len() == geometry.in_planes * geometry.shape.input_len(), "image length");
        let slots = Slots::new(geometry);
        if self.geometry != Some(*geometry) {
            // Borders, missing channels and the slack at the end are zero; afterwards only the inside is rewritten.
            self.numbers = Buffer::zeros(2 * slots.total());
            self.pixel = vec![0.0; slots.inputs.next_multiple_of(HALF)];
            self.geometry = Some(*geometry);
        }
        // SAFETY: a machine with AMX (the proof) has AVX-512 with BW and BF16 too, see `Isa::detect`.
        unsafe { self.split_image(geometry, &slots, image, passes) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn split_image(&mut self, geometry: &Geometry, slots: &Slots, image: &[f32], passes: Passes) {
        let shape = &geometry.shape;
        let (channels, width) = (shape.in_channels, shape.width);
        let in_place = geometry.in_planes == 1 && channels % HALF == 0;
        let (high, low) = self.numbers.split_at_mut(slots.total());
        for row in 0..shape.height + 2 {
            let Some(source_row) = neighbour(row, shape.height, shape.padding) else { continue };
            for column in 0..width + 2 {
                let Some(source_column) = neighbour(column, width, shape.padding) else { continue };
                let start = (source_row * width + source_column) * channels;
                let inputs = if in_place {
                    &image[start..start + channels]
                } else {
                    for (plane, image) in image.chunks_exact(shape.input_len()).enumerate() {
                        self.pixel[plane * channels..][..channels].copy_from_slice(&image[start..][..channels]);
                    }
                    &self.pixel[..]
                };
                let at = (row * (width + 2) + column) * DEPTH;
                for (half, inputs) in inputs.chunks_exact(HALF).enumerate() {
                    let at = at + (half / 2) * slots.len + (half % 2) * HALF;
                    let (rounded, rest) = split16(inputs);
                    let shared = slots.shared && half / 2 == slots.full;
                    store16(rounded, &mut high[at..]);
                    if shared && column > 0 {
                        store16(rounded, &mut high[at - HALF..]);
                    }
                    if passes == Passes::Three {
                        store16(rest, &mut low[at..]);
                        if shared && column > 0 {
                            store16(rest, &mut low[at - HALF..]);
                        }
                    }
                }
            }
        }
    }
}

/// The high and the low parts of the first 16 numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn split16(numbers: &[f32]) -> (__m256i, __m256i) {
    assert!(numbers.len() >= SIDE);
    // SAFETY: sixteen numbers are there; bf16 vectors are 256 bits of plain data.
    unsafe {
        let x = _mm512_loadu_ps(numbers.as_ptr());
        let high = _mm512_cvtneps_pbh(x);
        let low = _mm512_cvtneps_pbh(_mm512_sub_ps(x, _mm512_cvtpbh_ps(high)));
        (std::mem::transmute::<__m256bh, __m256i>(high), std::mem::transmute::<__m256bh, __m256i>(low))
    }
}

/// Sixteen bf16 numbers to the start of a slice.
#[inline]
#[target_feature(enable = "avx512f")]
fn store16(numbers: __m256i, to: &mut [u16]) {
    assert!(to.len() >= SIDE);
    // SAFETY: there is room for sixteen numbers.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), numbers) }
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

/// Full tile registers on this thread, given back when dropped.
pub struct TileSession {
    /// The configuration belongs to the thread.
    not_send: PhantomData<*const ()>,
}

impl TileSession {
    /// Configures the tile registers.
    pub fn start(_: AmxProof) -> Self {
        let mut shape = TileShape { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        shape.row_bytes[..8].fill(2 * DEPTH as u16);
        shape.rows[..8].fill(SIDE as u8);
        // SAFETY: the proof says that the machine has AMX and lets us use it; `shape` is a valid configuration.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) &shape, options(nostack, readonly)) }
        Self { not_send: PhantomData }
    }
}

impl Drop for TileSession {
    fn drop(&mut self) {
        // SAFETY: a session exists only where AMX does.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }
}
