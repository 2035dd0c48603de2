//! The size of a convolution, and its weights as the kernels ask for them.

use crate::{Padding, Real};

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
///
/// One weight array is an operator from one image to one image. Several arrays of the same shape are stacked: as they
/// stand they map one input plane to one output plane each (`P z` and `N z` of the two-operator forms); transposed
/// they map one input plane each to one common output plane (`P^T q + N^T r`).
#[derive(Clone, Copy)]
pub struct Stencil<'a, T> {
    arrays: &'a [&'a [T]],
    stored: Shape,
    transposed: bool,
}

impl<'a, T: Real> Stencil<'a, T> {
    /// The arrays as they stand, each `[out][in][3][3]` of `shape`.
    pub fn new(shape: Shape, arrays: &'a [&'a [T]]) -> Self {
        assert!(arrays.iter().all(|array| array.len() == shape.weight_len()), "weight length");
        Self { arrays, stored: shape, transposed: false }
    }

    /// The transposed operator: kernels flipped, inputs and outputs exchanged.
    pub fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// Sizes of what the operator maps.
    pub fn geometry(&self) -> Geometry {
        let count = self.arrays.len();
        if self.transposed {
            Geometry { shape: self.stored.transposed(), in_planes: count, out_planes: 1 }
        } else {
            Geometry { shape: self.stored, in_planes: 1, out_planes: count }
        }
    }

    /// The weight of output channel `output` of plane `plane` for input `input` (counted over all planes) at the tap in
    /// row `row` and column `column` of the 3x3 window.
    pub fn weight(&self, plane: usize, output: usize, input: usize, row: usize, column: usize) -> T {
        let inputs = self.stored.in_channels;
        if self.transposed {
            let (array, o) = (input / self.stored.out_channels, input % self.stored.out_channels);
            self.arrays[array][(o * inputs + output) * 9 + (2 - row) * 3 + (2 - column)]
        } else {
            self.arrays[plane][(output * inputs + input) * 9 + row * 3 + column]
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
