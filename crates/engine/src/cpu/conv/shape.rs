//! The size of a convolution, and its weights as the kernels ask for them.

use crate::map::product_fits;
use crate::{EngineError, Padding, Real, Result};

/// Sizes of a 3x3 convolution of same-size images (stride 1): NHWC images, weights `[out][in][3][3]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Image height.
    pub height: usize,
    /// Image width.
    pub width: usize,
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Continuation beyond the border.
    pub padding: Padding,
}

impl Shape {
    /// Pixels of an image.
    pub fn pixels(&self) -> usize {
        self.height * self.width
    }

    /// Numbers in one input image.
    pub fn input_len(&self) -> usize {
        self.pixels() * self.in_channels
    }

    /// Numbers in one output image.
    pub fn output_len(&self) -> usize {
        self.pixels() * self.out_channels
    }

    /// Numbers in the weights.
    pub fn weight_len(&self) -> usize {
        9 * self.in_channels * self.out_channels
    }

    /// Refuses sizes of which a product overflows: the kernels trust lengths that agree.
    pub fn check(&self, batch: usize) -> Result<()> {
        // More than any buffer of a kernel holds: images with a border and in whole tiles, weights in whole tiles.
        let channels = self.in_channels.max(self.out_channels).saturating_add(64);
        let (height, width) = (self.height.saturating_add(64), self.width.saturating_add(64));
        let images = product_fits(&[batch.max(1), height, width, channels, 64]);
        if images && product_fits(&[channels, channels, 64 * 9]) {
            return Ok(());
        }
        Err(EngineError::Invalid(format!("{batch} images of {self:?} do not fit into the address space")))
    }

    /// One image in, one image out.
    pub fn single(&self) -> Geometry {
        Geometry { shape: *self, in_planes: 1, out_planes: 1 }
    }

    /// The shape of the transposed operator: inputs and outputs exchanged.
    pub fn transposed(&self) -> Self {
        Self { in_channels: self.out_channels, out_channels: self.in_channels, ..*self }
    }
}

/// Sizes of a convolution between stacks of images: planes of the same shape, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// One input plane and one output plane.
    pub shape: Shape,
    /// Number of input planes.
    pub in_planes: usize,
    /// Number of output planes.
    pub out_planes: usize,
}

impl Geometry {
    /// Input channels of all planes together; channel `i` of plane `p` counts as `p * in_channels + i`.
    pub fn inputs(&self) -> usize {
        self.in_planes * self.shape.in_channels
    }

    /// Numbers in `rows` rows of one output plane.
    pub fn output_rows(&self, rows: usize) -> usize {
        rows * self.shape.width * self.shape.out_channels
    }
}

/// The weights of a convolution between stacks of images.
#[derive(Clone, Copy)]
pub struct Stencil<'a, T> {
    blocks: &'a [&'a [T]],
    geometry: Geometry,
    transposed: bool,
}

impl<'a, T: Real> Stencil<'a, T> {
    /// `blocks[o * in_planes + i]`, laid out `[out][in][3][3]`, leads from input plane `i` to output plane `o`.
    pub fn new(geometry: Geometry, blocks: &'a [&'a [T]]) -> Self {
        assert!(blocks.len() == geometry.in_planes * geometry.out_planes, "number of weight blocks");
        assert!(blocks.iter().all(|block| block.len() == geometry.shape.weight_len()), "weight length");
        Self { blocks, geometry, transposed: false }
    }

    /// The transposed operator: kernels flipped, inputs and outputs exchanged.
    pub fn transposed(self) -> Self {
        let Geometry { shape, in_planes, out_planes } = self.geometry;
        let geometry = Geometry { shape: shape.transposed(), in_planes: out_planes, out_planes: in_planes };
        Self { transposed: !self.transposed, geometry, ..self }
    }

    /// Sizes of what the operator maps.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The weight of output channel `output` of plane `plane` for input `input` (counted over all planes) at the tap in
    /// row `row` and column `column` of the 3x3 window.
    pub fn weight(&self, plane: usize, output: usize, input: usize, row: usize, column: usize) -> T {
        let Geometry { shape, in_planes, out_planes } = self.geometry;
        let (input_plane, input) = (input / shape.in_channels, input % shape.in_channels);
        if self.transposed {
            let at = (input * shape.out_channels + output) * 9 + (2 - row) * 3 + (2 - column);
            self.blocks[input_plane * out_planes + plane][at]
        } else {
            let at = (output * shape.in_channels + input) * 9 + row * 3 + column;
            self.blocks[plane * in_planes + input_plane][at]
        }
    }
}

/// The image row or column that stands for position `at - 1` of the continued image, if any does.
#[inline]
pub fn neighbour(at: usize, len: usize, padding: Padding) -> Option<usize> {
    match padding {
        Padding::Zero => (1..=len).contains(&at).then(|| at - 1),
        Padding::Circular => Some((at + len - 1) % len),
    }
}
