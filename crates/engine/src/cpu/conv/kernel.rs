//! The convolution inside an equilibrium: which kernel computes it, and how its bands are handed on.

use std::any::Any;

#[cfg(target_arch = "x86_64")]
use super::amx::{Amx, Planes, add_change, loads_in_place};
use super::direct::Direct;
use super::padded::Padded;
use super::precision::Accuracy;
use super::same::{is_f32, same, same_mut};
use super::shape::{Geometry, Shape, Stencil};
use super::weight_gradient::{self, WeightGradient};
use super::winograd::{self, Winograd};
use crate::cpu::buffer::Buffer;
use crate::cpu::isa::Isa;
use crate::cpu::linear::{ConvKernel, ConvScratch, StackShape};
use crate::cpu::simd::SimdReal;
#[cfg(target_arch = "x86_64")]
use crate::cpu::tiles::{AmxProof, Passes, TileSession};

/// Rows of an image that are computed before they are handed on.
const BAND: usize = winograd::TILE;

/// Images with fewer pixels than this are summed directly: tiles of 16 pixels would mostly be empty.
pub const SMALL: usize = 16;

/// A convolution packed for every accuracy.
///
/// | accuracy | with AMX (`f32`) | without |
/// |---|---|---|
/// | coarse | bf16 tiles, one pass | Winograd |
/// | fine | bf16 tiles, three passes, or one pass over a change ([`Series`]) | Winograd |
/// | full | direct sum | direct sum |
///
/// Everything is summed directly in `f64` and for small images.
pub struct Convolution<T: SimdReal> {
    geometry: Geometry,
    direct: Direct<T>,
    fast: Fast,
    gradient: WeightGradient,
}

/// What computes below full accuracy.
enum Fast {
    None,
    Winograd(Winograd),
    #[cfg(target_arch = "x86_64")]
    Tiles(AmxProof, Amx),
}

/// Memory of one thread.
#[derive(Default)]
pub struct Scratch<T: SimdReal> {
    padded: Padded<T>,
    winograd: winograd::Scratch,
    #[cfg(target_arch = "x86_64")]
    planes: Planes,
    #[cfg(target_arch = "x86_64")]
    changes: Changes,
    gradient: weight_gradient::Scratch<T>,
}

/// Where an application stands in a series of applications to images that change less and less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// By itself.
    Alone,
    /// The first of a series.
    First,
    /// The next one: the one before it, with the same scratch memory and accuracy, was of the same series.
    Next,
}

/// What is known of a series. The sum of the image before and one bf16 pass over the change are as good as three
/// passes over the image, as long as the changes are not small compared to all changes since the last three passes,
/// whose rounding errors have accumulated.
#[cfg(target_arch = "x86_64")]
#[derive(Default)]
struct Changes {
    /// The image before.
    last: Buffer<f32>,
    /// Its sums.
    sums: Buffer<f32>,
    /// Sizes of the changes since the last three passes, added up.
    path: f64,
}

/// The smallest change, as a share of the path, that is worth adding: the passes leave errors of about `1.3e-3` of the
/// path (measured), which then are an eighth of the change at hand, which is what the residual will be compared with.
#[cfg(target_arch = "x86_64")]
const LEAST_CHANGE: f64 = 1e-2;

#[cfg(target_arch = "x86_64")]
impl Changes {
    /// Puts the change of the image to `planes`, if that is good enough; if not, takes note of the image.
    fn step(
        &mut self,
        proof: AmxProof,
        geometry: &Geometry,
        images: &[f32],
        series: Series,
        planes: &mut Planes,
    ) -> bool {
        if series == Series::Next {
            let size = planes.load_change(proof, geometry, images, &mut self.last[..images.len()]).sqrt();
            self.path += size;
            if size >= LEAST_CHANGE * self.path {
                return true;
            }
        }
        self.path = 0.0;
        self.last.reserve_zeros(images.len());
        self.last[..images.len()].copy_from_slice(images);
        self.sums.reserve_zeros(geometry.out_planes * geometry.shape.output_len());
        false
    }
}

impl<T: SimdReal> Convolution<T> {
    /// Room for the weights of such a convolution.
    pub fn new(isa: Isa, geometry: Geometry) -> Self {
        Self {
            geometry,
            direct: Direct::new(isa, geometry),
            fast: Fast::new::<T>(isa, geometry),
            gradient: WeightGradient::new::<T>(isa, geometry.shape),
        }
    }

    /// Packs the weights.
    pub fn pack(&mut self, stencil: &Stencil<T>) {
        self.direct.pack(stencil);
        match &mut self.fast {
            Fast::None => {}
            Fast::Winograd(winograd) => winograd.pack(stencil),
            #[cfg(target_arch = "x86_64")]
            Fast::Tiles(_, amx) => amx.pack(stencil),
        }
    }

    /// Numbers in a band of rows of all output planes.
    pub fn band_len(&self) -> usize {
        self.geometry.out_planes * self.geometry.output_rows(BAND)
    }

    /// Convolves one sample and hands on bands of rows, `[plane][row][pixel][channel]`, with their first row.
    pub fn bands(
        &self,
        images: &[T],
        (accuracy, series): (Accuracy, Series),
        scratch: &mut Scratch<T>,
        band: &mut [T],
        mut emit: impl FnMut(usize, &mut [T]),
    ) {
        let height = self.geometry.shape.height;
        let band_len = |rows: usize| self.geometry.out_planes * self.geometry.output_rows(rows);
        let bands =
            |start: usize, end: usize| (start..end).step_by(BAND).map(move |row| row..end.min(row + BAND));
        match (&self.fast, accuracy) {
            (Fast::Winograd(winograd), Accuracy::Coarse | Accuracy::Fine) => {
                let images = same::<T, f32>(images).expect("Winograd is chosen for f32 only");
                let block = winograd.block_rows();
                for start in (0..height).step_by(block) {
                    let end = height.min(start + block);
                    winograd.transform(images, start..end, &mut scratch.winograd);
                    for rows in bands(start, end) {
                        let band = &mut band[..band_len(rows.len())];
                        let sums = same_mut::<T, f32>(band).expect("Winograd is chosen for f32 only");
                        winograd.rows(&scratch.winograd, rows.start - start, rows.len(), sums);
                        emit(rows.start, band);
                    }
                }
            }
            #[cfg(target_arch = "x86_64")]
            (Fast::Tiles(proof, amx), Accuracy::Coarse | Accuracy::Fine) => {
                let images = same::<T, f32>(images).expect("tiles are chosen for f32 only");
                let geometry = &self.geometry;
                let in_series =
                    accuracy == Accuracy::Fine && series != Series::Alone && loads_in_place(geometry);
                let Scratch { planes, changes, .. } = scratch;
                let change = in_series && changes.step(*proof, geometry, images, series, planes);
                let passes = if accuracy == Accuracy::Coarse || change { Passes::One } else { Passes::Three };
                if !change {
                    planes.load(*proof, geometry, images, passes);
                }
                let session = TileSession::start(*proof);
                for rows in bands(0, height) {
                    let band = &mut band[..band_len(rows.len())];
                    let numbers = same_mut::<T, f32>(band).expect("tiles are chosen for f32 only");
                    amx.rows(&session, planes, passes, rows.clone(), numbers);
                    if in_series {
                        let plane_len = geometry.output_rows(rows.len());
                        let sums = changes.sums.chunks_exact_mut(geometry.shape.output_len());
                        for (band, sums) in numbers.chunks_exact_mut(plane_len).zip(sums) {
                            let sums = &mut sums[geometry.output_rows(rows.start)..][..plane_len];
                            if change {
                                add_change(*proof, band, sums);
                            } else {
                                sums.copy_from_slice(band);
                            }
                        }
                    }
                    emit(rows.start, band);
                }
            }
            _ => {
                scratch.padded.load(&self.geometry, images);
                for rows in bands(0, height) {
                    let band = &mut band[..band_len(rows.len())];
                    self.direct.rows(&scratch.padded, rows.clone(), band);
                    emit(rows.start, band);
                }
            }
        }
    }
}

impl<T: SimdReal> ConvKernel<T> for Convolution<T> {
    fn input_len(&self) -> usize {
        self.geometry.in_planes * self.geometry.shape.input_len()
    }

    fn pack(&mut self, blocks: &[&[T]]) {
        Convolution::pack(self, &Stencil::new(self.geometry, blocks));
    }

    fn scratch(&self) -> ConvScratch<T> {
        ConvScratch {
            numbers: Buffer::zeros(self.band_len()),
            own: Some(Box::new(Scratch::<T>::default())),
            ..Default::default()
        }
    }

    fn rows(
        &self,
        images: &[T],
        series: Series,
        scratch: &mut ConvScratch<T>,
        emit: &mut dyn FnMut(usize, &mut [T], &mut [T]),
    ) {
        let row_len = self.geometry.output_rows(1);
        let (accuracy, own) = (scratch.grade.accuracy(), own(&mut scratch.own));
        self.bands(images, (accuracy, series), own, &mut scratch.numbers, |first, band| {
            // Row by row: what follows reads a row several times, and several bands would not fit in L1.
            let (u, w) = band.split_at_mut(band.len() / self.geometry.out_planes);
            let mut second = w.chunks_exact_mut(row_len);
            for (row, u) in u.chunks_exact_mut(row_len).enumerate() {
                emit((first + row) * row_len, u, second.next().unwrap_or_default());
            }
        });
    }

    fn gradient_len(&self) -> usize {
        self.geometry.in_planes * self.geometry.out_planes * self.gradient.packed_len()
    }

    fn accumulate_gradient(
        &self,
        images: &[T],
        gradients: &[T],
        scratch: &mut ConvScratch<T>,
        accumulator: &mut [T],
    ) {
        let shape = &self.geometry.shape;
        let scratch = &mut own(&mut scratch.own).gradient;
        let mut accumulators = accumulator.chunks_exact_mut(self.gradient.packed_len());
        for gy in gradients.chunks_exact(shape.output_len()) {
            for (x, accumulator) in images.chunks_exact(shape.input_len()).zip(&mut accumulators) {
                self.gradient.add_image(x, gy, scratch, accumulator);
            }
        }
    }

    fn unpack_gradient(&self, accumulator: &[T], blocks: &mut [&mut [T]]) {
        for (packed, block) in accumulator.chunks_exact(self.gradient.packed_len()).zip(blocks) {
            self.gradient.unpack(packed, block);
        }
    }
}

/// The best kernel for a stack of images on a machine.
pub(crate) fn kernel<T: SimdReal>(isa: Isa, shape: StackShape) -> Box<dyn ConvKernel<T>> {
    let StackShape { height, width, channels, padding, inputs, outputs } = shape;
    let shape = Shape { height, width, in_channels: channels, out_channels: channels, padding };
    Box::new(Convolution::new(isa, Geometry { shape, in_planes: inputs, out_planes: outputs }))
}

/// The memory that [`ConvKernel::scratch`] made.
fn own<T: SimdReal>(own: &mut Option<Box<dyn Any + Send>>) -> &mut Scratch<T> {
    own.as_mut().and_then(|own| own.downcast_mut()).expect("scratch memory of another kernel")
}

impl Fast {
    fn new<T: SimdReal>(isa: Isa, geometry: Geometry) -> Self {
        if !is_f32::<T>() || geometry.shape.pixels() < SMALL {
            return Self::None;
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(proof) = AmxProof::of(isa) {
            return Self::Tiles(proof, Amx::new(geometry));
        }
        Self::Winograd(Winograd::new(isa, geometry))
    }
}
