//! A padded copy of an image, so that no kernel has to think of borders.

use super::shape::{Geometry, neighbour};
use crate::Padding;
use crate::cpu::buffer::Buffer;
use crate::cpu::simd::SimdReal;

/// `(height + 2) x (width + 2)` pixels, channels of all input planes together.
#[derive(Clone, Debug, Default)]
pub struct Padded<T: SimdReal> {
    numbers: Buffer<T>,
    geometry: Option<Geometry>,
}

impl<T: SimdReal> Padded<T> {
    /// Pixels behind the last one that kernels may read (and whose results they drop).
    pub const SLACK: usize = 16;

    /// Copies an image (all input planes) into the inside and continues it over the border.
    pub fn load(&mut self, geometry: &Geometry, image: &[T]) {
        let shape = &geometry.shape;
        let (inputs, channels, width) = (geometry.inputs(), shape.in_channels, shape.width);
        assert!(image.len() == geometry.in_planes * shape.input_len(), "image length");
        if self.geometry != Some(*geometry) {
            // Zeros once; afterwards only the inside (and a circular border) is rewritten.
            let pixels = (shape.height + 2) * (width + 2) + Self::SLACK;
            self.numbers = Buffer::zeros(pixels * inputs);
            self.geometry = Some(*geometry);
        }
        let row_len = (width + 2) * inputs;
        for (row, target) in self.numbers.chunks_exact_mut(row_len).take(shape.height + 2).enumerate() {
            let Some(source) = neighbour(row, shape.height, shape.padding) else { continue };
            for (plane, image) in image.chunks_exact(shape.input_len()).enumerate() {
                let source = &image[source * width * channels..][..width * channels];
                if geometry.in_planes == 1 {
                    target[inputs..][..source.len()].copy_from_slice(source);
                } else {
                    for (pixel, source) in source.chunks_exact(channels).enumerate() {
                        target[(pixel + 1) * inputs + plane * channels..][..channels].copy_from_slice(source);
                    }
                }
            }
            if shape.padding == Padding::Circular {
                target.copy_within(width * inputs..(width + 1) * inputs, 0);
                target.copy_within(inputs..2 * inputs, (width + 1) * inputs);
            }
        }
    }

    /// The padded image, if one of this geometry is there.
    pub fn numbers(&self, geometry: &Geometry) -> &[T] {
        assert!(self.geometry == Some(*geometry), "no image of this geometry was loaded");
        &self.numbers
    }
}
