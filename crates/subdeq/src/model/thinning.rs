//! Every s-th pixel of every s-th row: behind a convolution, what makes it a strided one.

use subdeq_engine::Backend;
use subdeq_engine::network::{ConvShape, Rows};

use crate::Result;
use crate::memory::made;

/// The thinning of images whose sides are multiples of the stride.
pub(super) struct Thinning<A> {
    height: usize,
    width: usize,
    channels: usize,
    stride: usize,
    buffers: Option<Buffers<A>>,
}

struct Buffers<A> {
    /// The images before, and on the way back their gradients.
    whole: A,
    /// All of their rows, thinned.
    rows: A,
}

impl<A> Thinning<A> {
    /// Of what comes out of a convolution; none for a stride of 1.
    pub fn new(conv: ConvShape, stride: usize) -> Option<Self> {
        let ConvShape { height, width, outputs: channels, .. } = conv;
        (stride > 1).then_some(Self { height, width, channels, stride, buffers: None })
    }

    /// Makes room for batches of this many images.
    pub fn reserve<D: Backend<Array = A>>(&mut self, device: &D, batch: usize) -> Result<()> {
        let whole = batch * self.height * self.width * self.channels;
        self.buffers = None; // its memory may be needed for the larger one
        self.buffers =
            Some(Buffers { whole: device.zeros(whole)?, rows: device.zeros(whole / self.stride)? });
        Ok(())
    }

    /// Where the whole images belong before [`Thinning::forward`], and their gradients are after [`Thinning::backward`].
    pub fn whole(&mut self) -> Result<&mut A> {
        Ok(&mut made(&mut self.buffers)?.whole)
    }

    /// From the whole images to `thin`.
    pub fn forward<D: Backend<Array = A>>(&mut self, device: &D, batch: usize, thin: &mut A) -> Result<()> {
        let [pixels, lines] = self.kept(batch);
        let Buffers { whole, rows } = made(&mut self.buffers)?;
        let (from, to) = (pixels.spaced(&*whole), pixels.packed(&mut *rows));
        device.copy_rows(pixels.count, pixels.len, from, to)?;
        Ok(device.copy_rows(lines.count, lines.len, lines.spaced(&*rows), lines.packed(thin))?)
    }

    /// From the gradient of the thin images to that of the whole ones, 0 where nothing was kept.
    pub fn backward<D: Backend<Array = A>>(&mut self, device: &D, batch: usize, gthin: &A) -> Result<()> {
        let [pixels, lines] = self.kept(batch);
        let Buffers { whole, rows } = made(&mut self.buffers)?;
        device.fill(lines.count * lines.stride, 0.0, rows)?;
        device.copy_rows(lines.count, lines.len, lines.packed(gthin), lines.spaced(&mut *rows))?;
        device.fill(pixels.count * pixels.stride, 0.0, whole)?;
        Ok(device.copy_rows(pixels.count, pixels.len, pixels.packed(&*rows), pixels.spaced(whole))?)
    }

    /// What is kept of all rows (pixels), then of all that is left (rows).
    fn kept(&self, batch: usize) -> [Kept; 2] {
        let Self { height, width, channels, stride, .. } = *self;
        let row = width / stride * channels;
        [
            Kept { count: batch * height * width / stride, len: channels, stride: stride * channels },
            Kept { count: batch * height / stride, len: row, stride: stride * row },
        ]
    }
}

/// The first `len` of every `stride` numbers.
struct Kept {
    count: usize,
    len: usize,
    stride: usize,
}

impl Kept {
    fn spaced<R>(&self, array: R) -> Rows<R> {
        Rows { array, stride: self.stride, offset: 0 }
    }

    fn packed<R>(&self, array: R) -> Rows<R> {
        Rows { array, stride: self.len, offset: 0 }
    }
}
