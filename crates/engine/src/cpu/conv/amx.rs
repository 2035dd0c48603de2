//! The convolution on matrix tiles (AMX): bf16 products summed in f32.
//!
//! A number is split into a bf16 and a bf16 remainder, `x = hi + lo` up to `2^-17 |x|`. One pass multiplies the high
//! parts (relative error about `2^-8` per product); three passes, `hi*hi + hi*lo + lo*hi`, come close to f32.
//!
//! The image is kept as padded bf16 planes, channels fastest, so that for each of the three window rows the 3 x inputs
//! numbers that one output pixel needs are contiguous: a tile of 16 neighbouring pixels is read in place, with overlap,
//! and no patch matrix is ever built. Weights of 16 outputs (15 kB or 30 kB for 48 channels) stay in L1 while the rows of
//! a band pass by.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ops::Range;

use super::shape::{Geometry, Stencil, neighbour};
use crate::Padding;
use crate::cpu::buffer::Buffer;
use crate::cpu::isa::Isa;

/// Rows (and f32 columns) of a tile.
const SIDE: usize = 16;
/// bf16 numbers in a tile row.
const DEPTH: usize = 32;
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

/// Weights as `[output tile][window row][depth tile][high, low]`, in the pairwise layout of the tile product.
#[derive(Clone, Debug, Default)]
pub struct Amx {
    tiles: Vec<Tile>,
}

/// The padded high plane of the image at hand, then the low one.
#[derive(Clone, Debug, Default)]
pub struct Planes {
    numbers: Buffer<u16>,
    geometry: Option<Geometry>,
}

/// Numbers of one padded bf16 plane, with room for tiles that run over the end.
fn plane_len(geometry: &Geometry) -> usize {
    let shape = &geometry.shape;
    let pixels = (shape.height + 2) * (shape.width + 2) + SIDE;
    (pixels * geometry.inputs() + 2 * DEPTH).next_multiple_of(DEPTH)
}

/// Depth tiles of one window row.
fn depth_tiles(geometry: &Geometry) -> usize {
    (3 * geometry.inputs()).div_ceil(DEPTH)
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
    /// Packs the weights; allocates nothing when the sizes have not changed.
    pub fn pack(&mut self, stencil: &Stencil<f32>) {
        let geometry = stencil.geometry();
        let (inputs, outputs) = (geometry.inputs(), geometry.shape.out_channels);
        self.tiles.clear();
        for plane in 0..geometry.out_planes {
            for output_tile in 0..output_tiles(&geometry) {
                for row in 0..3 {
                    for depth_tile in 0..depth_tiles(&geometry) {
                        let (mut high, mut low) = (Tile([0; SIDE * DEPTH]), Tile([0; SIDE * DEPTH]));
                        for k in 0..DEPTH {
                            let (column, input) = ((depth_tile * DEPTH + k) / inputs, (depth_tile * DEPTH + k) % inputs);
                            for j in 0..SIDE {
                                let output = output_tile * SIDE + j;
                                if column < 3 && output < outputs {
                                    let at = (k / 2) * DEPTH + 2 * j + k % 2;
                                    (high.0[at], low.0[at]) = split(stencil.weight(plane, output, input, row, column));
                                }
                            }
                        }
                        self.tiles.extend([high, low]);
                    }
                }
            }
        }
    }

    /// Preactivations of some rows of the image in `planes`: `[plane][row][pixel][channel]`.
    pub fn rows(
        &self,
        _session: &TileSession,
        geometry: &Geometry,
        planes: &Planes,
        passes: Passes,
        rows: Range<usize>,
        out: &mut [f32],
    ) {
        let shape = &geometry.shape;
        let (inputs, outputs, width) = (geometry.inputs(), shape.out_channels, shape.width);
        let row_tiles = width.div_ceil(SIDE);
        let depth_tiles = depth_tiles(geometry);
        let tiles = rows.len() * row_tiles;
        let plane_out = geometry.output_rows(rows.len());
        assert!(out.len() == geometry.out_planes * plane_out, "output length");
        assert!(rows.end <= shape.height && planes.geometry == Some(*geometry), "image size");
        let stencil_tiles = geometry.out_planes * output_tiles(geometry);
        assert!(self.tiles.len() == stencil_tiles * 6 * depth_tiles, "packed weights");
        let high = planes.numbers.as_ptr();
        let mut spill = [[0f32; SIDE * SIDE]; GROUP];
        for weights in 0..stencil_tiles {
            let (plane, output) = (weights / output_tiles(geometry), (weights % output_tiles(geometry)) * SIDE);
            let channels = SIDE.min(outputs - output);
            for group in (0..tiles).step_by(GROUP) {
                let mut job = Job {
                    image: [std::ptr::null(); GROUP],
                    out: [std::ptr::null_mut(); GROUP],
                    out_stride: [0; GROUP],
                    weights: self.tiles[weights * 6 * depth_tiles..].as_ptr(),
                    image_stride: 2 * inputs,
                    low: 2 * plane_len(geometry),
                    depth_tiles,
                    next_row: (2 * (width + 2) * inputs) as isize - (2 * DEPTH * depth_tiles) as isize,
                };
                let mut partial = [None; GROUP];
                for slot in 0..GROUP {
                    // A group at the end repeats its last tile; the repetition goes to the spill tile and is dropped.
                    let tile = (group + slot).min(tiles - 1);
                    let (row, column) = (tile / row_tiles, (tile % row_tiles) * SIDE);
                    let start = ((rows.start + row) * (width + 2) + column) * inputs;
                    let target = plane * plane_out + (row * width + column) * outputs + output;
                    // SAFETY: `start` lies in the high plane, which `load` made of `plane_len` numbers.
                    job.image[slot] = unsafe { high.add(start) };
                    if group + slot < tiles && channels == SIDE && column + SIDE <= width {
                        job.out[slot] = out[target..].as_mut_ptr();
                        job.out_stride[slot] = 4 * outputs;
                    } else {
                        job.out[slot] = spill[slot].as_mut_ptr();
                        job.out_stride[slot] = 4 * SIDE;
                        partial[slot] = (group + slot < tiles).then_some((target, SIDE.min(width - column)));
                    }
                }
                // SAFETY: a tile session exists only with AMX, and is alive. Reads: tile rows start in the image's padded
                // plane and run over its end by at most 16 pixels and 32 numbers, which `plane_len` has room for; the
                // weights hold 3 * depth_tiles pairs of tiles. Writes: 16 x 16 numbers at the given stride, inside
                // `out` (full tiles only) or a spill tile.
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
    image_stride: usize,
    /// From the high plane to the low plane.
    low: usize,
    depth_tiles: usize,
    /// From behind the last depth tile of a window row to the first of the next.
    next_row: isize,
}

/// Common frame of the two products: accumulators to zero, the loop over window rows and depth tiles, stores.
/// Everything is one block of assembly since tile registers must not be relied on from one block to the next.
macro_rules! tile_product {
    ($job:expr, $($body:literal),+ $(,)?) => {
        asm!(
            "mov {a0}, [{job} + {image}]", "mov {a1}, [{job} + {image} + 8]",
            "mov {a2}, [{job} + {image} + 16]", "mov {a3}, [{job} + {image} + 24]",
            "mov {stride}, [{job} + {image_stride}]", "mov {w}, [{job} + {weights}]",
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            "mov {row:e}, 3",
            "2:", "mov {k}, [{job} + {depth_tiles}]",
            "3:",
            $($body,)+
            "add {w}, 2048",
            "add {a0}, 64", "add {a1}, 64", "add {a2}, 64", "add {a3}, 64",
            "dec {k}", "jnz 3b",
            "mov {k}, [{job} + {next_row}]",
            "add {a0}, {k}", "add {a1}, {k}", "add {a2}, {k}", "add {a3}, {k}",
            "dec {row:e}", "jnz 2b",
            "mov {a0}, [{job} + {out}]", "mov {k}, [{job} + {out_stride}]", "tilestored [{a0} + {k}*1], tmm0",
            "mov {a1}, [{job} + {out} + 8]", "mov {k}, [{job} + {out_stride} + 8]", "tilestored [{a1} + {k}*1], tmm1",
            "mov {a2}, [{job} + {out} + 16]", "mov {k}, [{job} + {out_stride} + 16]", "tilestored [{a2} + {k}*1], tmm2",
            "mov {a3}, [{job} + {out} + 24]", "mov {k}, [{job} + {out_stride} + 24]", "tilestored [{a3} + {k}*1], tmm3",
            job = in(reg) $job as *const Job,
            line = in(reg) 64usize,
            low = in(reg) $job.low,
            a0 = out(reg) _, a1 = out(reg) _, a2 = out(reg) _, a3 = out(reg) _,
            stride = out(reg) _, w = out(reg) _, row = out(reg) _, k = out(reg) _, t = out(reg) _,
            image = const offset_of!(Job, image),
            out = const offset_of!(Job, out),
            out_stride = const offset_of!(Job, out_stride),
            weights = const offset_of!(Job, weights),
            image_stride = const offset_of!(Job, image_stride),
            depth_tiles = const offset_of!(Job, depth_tiles),
            next_row = const offset_of!(Job, next_row),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// Four tiles of high x high.
///
/// # Safety
/// AMX must be configured for full tiles and every address of the job be good for what it is used for.
unsafe fn one_pass(job: &Job) {
    // SAFETY: passed on to the caller.
    unsafe {
        tile_product!(
            job,
            "/* {low} {t} */",
            "tileloadd tmm4, [{w} + {line}*1]",
            "tileloadd tmm5, [{a0} + {stride}*1]",
            "tdpbf16ps tmm0, tmm5, tmm4",
            "tileloadd tmm6, [{a1} + {stride}*1]",
            "tdpbf16ps tmm1, tmm6, tmm4",
            "tileloadd tmm7, [{a2} + {stride}*1]",
            "tdpbf16ps tmm2, tmm7, tmm4",
            "tileloadd tmm5, [{a3} + {stride}*1]",
            "tdpbf16ps tmm3, tmm5, tmm4",
        );
    }
}

/// Four tiles of high x high + high x low + low x high.
///
/// # Safety
/// As for [`one_pass`]; the low plane must lie `low` bytes behind the high one.
unsafe fn three_passes(job: &Job) {
    // SAFETY: passed on to the caller.
    unsafe {
        tile_product!(
            job,
            "tileloadd tmm4, [{w} + {line}*1]",
            "tileloadd tmm5, [{w} + {line}*1 + 1024]",
            "tileloadd tmm6, [{a0} + {stride}*1]",
            "lea {t}, [{a0} + {low}]",
            "tdpbf16ps tmm0, tmm6, tmm4",
            "tileloadd tmm7, [{t} + {stride}*1]",
            "tdpbf16ps tmm0, tmm6, tmm5",
            "tileloadd tmm6, [{a1} + {stride}*1]",
            "lea {t}, [{a1} + {low}]",
            "tdpbf16ps tmm0, tmm7, tmm4",
            "tdpbf16ps tmm1, tmm6, tmm4",
            "tileloadd tmm7, [{t} + {stride}*1]",
            "tdpbf16ps tmm1, tmm6, tmm5",
            "tileloadd tmm6, [{a2} + {stride}*1]",
            "lea {t}, [{a2} + {low}]",
            "tdpbf16ps tmm1, tmm7, tmm4",
            "tdpbf16ps tmm2, tmm6, tmm4",
            "tileloadd tmm7, [{t} + {stride}*1]",
            "tdpbf16ps tmm2, tmm6, tmm5",
            "tileloadd tmm6, [{a3} + {stride}*1]",
            "lea {t}, [{a3} + {low}]",
            "tdpbf16ps tmm2, tmm7, tmm4",
            "tdpbf16ps tmm3, tmm6, tmm4",
            "tileloadd tmm7, [{t} + {stride}*1]",
            "tdpbf16ps tmm3, tmm6, tmm5",
            "tdpbf16ps tmm3, tmm7, tmm4",
        );
    }
}

impl Planes {
    /// Splits an image (all input planes) into padded bf16 planes; the low one only where it will be used.
    pub fn load(&mut self, _: AmxProof, geometry: &Geometry, image: &[f32], passes: Passes) {
        assert!(image.len() == geometry.in_planes * geometry.shape.input_len(), "image length");
        if self.geometry != Some(*geometry) {
            // The border and the slack at the end must hold zeros; afterwards only the inside is rewritten.
            self.numbers = Buffer::zeros(2 * plane_len(geometry));
            self.geometry = Some(*geometry);
        }
        // SAFETY: whoever has AMX as `Isa` means it has AVX-512 with BW and BF16 (see `Isa::detect`).
        unsafe { self.split_image(geometry, image, passes) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn split_image(&mut self, geometry: &Geometry, image: &[f32], passes: Passes) {
        let shape = &geometry.shape;
        let (inputs, channels) = (geometry.inputs(), shape.in_channels);
        let row_len = (shape.width + 2) * inputs;
        let (high, low) = self.numbers.split_at_mut(plane_len(geometry));
        for row in 0..shape.height + 2 {
            let Some(source) = neighbour(row, shape.height, shape.padding) else { continue };
            let (high, low) = (&mut high[row * row_len..][..row_len], &mut low[row * row_len..][..row_len]);
            for plane in 0..geometry.in_planes {
                let source = &image[plane * shape.input_len() + source * shape.width * channels..];
                let source = &source[..shape.width * channels];
                // With one plane the row is contiguous; with several, channels of the planes alternate by pixel.
                let piece = if geometry.in_planes == 1 { source.len() } else { channels };
                for (pixel, numbers) in source.chunks_exact(piece).enumerate() {
                    let at = (pixel + 1) * inputs + plane * channels;
                    split_numbers(numbers, &mut high[at..][..piece], &mut low[at..][..piece], passes);
                }
            }
            if shape.padding == Padding::Circular {
                for plane in [high, low] {
                    plane.copy_within(shape.width * inputs..(shape.width + 1) * inputs, 0);
                    plane.copy_within(inputs..2 * inputs, (shape.width + 1) * inputs);
                }
            }
        }
    }
}

/// Splits numbers into high and, for three passes, low parts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn split_numbers(numbers: &[f32], high: &mut [u16], low: &mut [u16], passes: Passes) {
    let mut pieces = numbers.chunks_exact(SIDE);
    let (mut highs, mut lows) = (high.chunks_exact_mut(SIDE), low.chunks_exact_mut(SIDE));
    for ((x, high), low) in (&mut pieces).zip(&mut highs).zip(&mut lows) {
        // SAFETY: the three pieces are 16 numbers long.
        unsafe {
            let x = _mm512_loadu_ps(x.as_ptr());
            let rounded = _mm512_cvtneps_pbh(x);
            let bits: __m256i = std::mem::transmute(rounded);
            _mm256_storeu_si256(high.as_mut_ptr().cast(), bits);
            if passes == Passes::Three {
                let rest = _mm512_sub_ps(x, _mm512_cvtpbh_ps(rounded));
                let bits: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(rest));
                _mm256_storeu_si256(low.as_mut_ptr().cast(), bits);
            }
        }
    }
    let tail = pieces.remainder().iter().zip(highs.into_remainder()).zip(lows.into_remainder());
    for ((&x, high), low) in tail {
        (*high, *low) = split(x);
    }
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
