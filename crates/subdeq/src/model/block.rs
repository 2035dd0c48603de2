//! A block of a network: injections, and the equilibrium (or explicit layer, or neural ODE) that they drive.

use std::sync::Arc;

use rand::Rng;
use subdeq_engine::network::{ConvShape, NormPoolShape, Rows};
use subdeq_engine::{Backend, Operator, Room};
use subdeq_map::Padding;

use super::affine::AffineShape;
use super::batch_norm::Statistics;
use super::core_layer::{CoreLayer, CoreStart};
use super::injection::{Injection, InjectionShape};
use super::lipschitz::{reflected_margin, takes_linear_injection};
use super::reflection::Reflection;
use super::{BlockSpec, CoreSpec};
use crate::memory::made;
use crate::{Error, Init, Result, theory};

/// What begins the names of a block's arrays; the first one's have nothing before them.
pub(crate) fn block_prefix(index: usize) -> String {
    if index == 0 { String::new() } else { format!("block{}.", index + 1) }
}

/// What goes into a block and what comes out, without the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BlockShape {
    /// Of the images that it reads.
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    /// Of its injection.
    pub stride: usize,
    /// Units (dense) or channels (convolution) of its state.
    pub hidden: usize,
    /// Side of the pooling window behind a convolutional one; `None` for a dense one.
    pub pool: Option<usize>,
}

impl BlockShape {
    /// Height and width of its states.
    pub fn sides(&self) -> (usize, usize) {
        // A stride of nothing is refused before anything is made.
        (self.height / self.stride.max(1), self.width / self.stride.max(1))
    }

    /// The shape of the batch norm, or of the pooling alone, that is behind it.
    pub fn pooling(&self, batch: usize) -> NormPoolShape {
        let (height, width) = self.sides();
        match self.pool {
            None => NormPoolShape::vectors(batch, self.hidden),
            Some(window) => NormPoolShape { batch, height, width, channels: self.hidden, window },
        }
    }

    /// Numbers of one image that it reads.
    pub fn input_len(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// Numbers of one state.
    pub fn state_len(&self) -> usize {
        self.pooling(1).image_len()
    }

    /// Numbers of one state that is pooled.
    pub fn pooled_len(&self) -> usize {
        self.pooling(1).pooled_len()
    }

    /// The affine map before thinning.
    fn injection(&self) -> AffineShape {
        match self.pool {
            None => AffineShape::Linear { inputs: self.input_len(), outputs: self.hidden },
            Some(_) => self.convolution((self.height, self.width), self.channels),
        }
    }

    /// An affine map from states to states.
    fn square(&self) -> AffineShape {
        match self.pool {
            None => AffineShape::Linear { inputs: self.hidden, outputs: self.hidden },
            Some(_) => self.convolution(self.sides(), self.hidden),
        }
    }

    fn convolution(&self, (height, width): (usize, usize), inputs: usize) -> AffineShape {
        let (outputs, padding) = (self.hidden, Padding::Zero);
        AffineShape::Conv(ConvShape { batch: 1, height, width, inputs, outputs, padding })
    }

    fn operator(&self) -> Operator {
        let ((height, width), channels) = (self.sides(), self.hidden);
        match self.pool {
            None => Operator::Dense { n: channels },
            Some(_) => Operator::Conv { channels, height, width, padding: Padding::Zero, kernel: 3 },
        }
    }
}

/// A block with its parameters.
pub(super) struct Block<D: Backend> {
    pub shape: BlockShape,
    /// Begins the names of its arrays.
    pub prefix: String,
    /// As many as the core's equation takes (the power ratio takes two).
    pub injections: Vec<Injection<D::Array>>,
    /// Whether the core gets the positive parts of its injections.
    pub rectified: bool,
    pub core: CoreLayer<D>,
    /// Of a network with a bounded gain: what comes out is reflected.
    pub reflection: Option<Reflection<D::Array>>,
    buffers: Option<BlockBuffers<D>>,
}

/// Arrays whose size depends on the batch.
struct BlockBuffers<D: Backend> {
    /// One injection, where the core has several.
    part: D::Array,
    /// The injections; after the way back of a single linear one, its gradient.
    y: D::Array,
    gy: Room<D::Array>,
    gz: D::Array,
    /// The share of one injection in the gradient of the input, where the core has several.
    share: D::Array,
}

impl<D: Backend> Block<D> {
    /// Draws the parameters of the block with that index.
    pub fn new(
        device: &Arc<D>,
        index: usize,
        shape: BlockShape,
        spec: &BlockSpec,
        reflected: bool,
        init: Init,
        rng: &mut impl Rng,
    ) -> Result<Self> {
        let (operator, prefix) = (shape.operator(), block_prefix(index));
        let (rectified, count) = match &spec.core {
            CoreSpec::Equilibrium { architecture, .. } => {
                let equation = architecture.equation(theory::layout(&operator));
                (!takes_linear_injection(&equation), equation.form().injection_count())
            }
            CoreSpec::ExplicitTanh | CoreSpec::NeuralOde { .. } => (true, 1),
        };
        let core = CoreLayer::new(device, &spec.core, operator, shape.square(), init, &prefix, rng)?;
        let injection = InjectionShape {
            affine: shape.injection(),
            stride: spec.stride,
            normalised: spec.injection_norm,
        };
        let injections = (0..count)
            .map(|k| Injection::new(&**device, &format!("{prefix}injection{k}"), injection, init, rng))
            .collect::<Result<_>>()?;
        let reflection = match reflected {
            true => Some(Reflection::new(reflected_margin(shape, &spec.core)?)),
            false => None,
        };
        Ok(Self { shape, prefix, injections, rectified, core, reflection, buffers: None })
    }

    /// Makes room for batches of this many samples.
    pub fn reserve(&mut self, device: &D, batch: usize) -> Result<()> {
        let (state, parts) = (batch * self.shape.state_len(), self.injections.len());
        self.buffers = None; // its memory may be needed for the larger one
        self.injections.iter_mut().try_for_each(|injection| injection.reserve(device, batch))?;
        self.core.reserve(device, batch)?;
        if let Some(reflection) = &mut self.reflection {
            reflection.reserve(device, state)?;
        }
        self.buffers = Some(BlockBuffers {
            part: device.zeros(if parts > 1 { state } else { 0 })?,
            y: device.zeros(state * parts)?,
            gy: Room::new(state * parts),
            gz: device.zeros(state)?,
            share: device.zeros(if parts > 1 { batch * self.shape.input_len() } else { 0 })?,
        });
        Ok(())
    }

    /// Numbers of one sample's injections.
    pub fn injection_len(&self) -> usize {
        self.shape.state_len() * self.injections.len()
    }

    /// The injections of the last batch.
    pub fn injected(&self) -> Result<&D::Array> {
        let buffers = self.buffers.as_ref();
        Ok(&buffers.ok_or_else(|| Error::invalid("no batch was injected yet"))?.y)
    }

    /// What comes out: the states, or the reflected ones.
    pub fn output(&self) -> Result<&D::Array> {
        match &self.reflection {
            None => self.core.states(),
            Some(reflection) => {
                reflection.reflected().ok_or_else(|| Error::invalid("no batch was reflected yet"))
            }
        }
    }

    /// What comes out; and its gradient, to be filled before [`Block::backward`].
    pub fn output_and_gradient(&mut self) -> Result<(&D::Array, &mut D::Array)> {
        let Self { core, reflection, buffers, .. } = self;
        let output = match reflection {
            None => core.states()?,
            Some(reflection) => {
                reflection.reflected().ok_or_else(|| Error::invalid("no batch was reflected yet"))?
            }
        };
        Ok((output, &mut made(buffers)?.gz))
    }

    /// From the input `x` to the injections.
    pub fn inject(&mut self, device: &D, batch: usize, statistics: Statistics, x: &D::Array) -> Result<()> {
        let (state, parts) = (self.shape.state_len(), self.injections.len());
        let b = made(&mut self.buffers)?;
        if let [injection] = &mut self.injections[..] {
            return injection.forward(device, batch, statistics, x, self.rectified, &mut b.y);
        }
        for (k, injection) in self.injections.iter_mut().enumerate() {
            injection.forward(device, batch, statistics, x, false, &mut b.part)?;
            let from = Rows { array: &b.part, stride: state, offset: 0 };
            let to = Rows { array: &mut b.y, stride: parts * state, offset: k * state };
            device.copy_rows(batch, state, from, to)?;
        }
        if self.rectified {
            device.relu(batch * state * parts, &mut b.y)?;
        }
        Ok(())
    }

    /// From the injections to the states.
    pub fn solve(
        &mut self,
        device: &D,
        batch: usize,
        start: CoreStart<'_, D>,
        tally: &mut D::Tally,
    ) -> Result<()> {
        let y = &made(&mut self.buffers)?.y;
        self.core.forward(device, batch, y, start, tally)?;
        match &mut self.reflection {
            None => Ok(()),
            Some(reflection) => {
                reflection.forward(device, batch * self.shape.state_len(), self.core.states()?, y)
            }
        }
    }

    /// From the gradient of what comes out to the gradients of the parameters, and to that of the input: once for each way there.
    pub fn backward(
        &mut self,
        device: &D,
        batch: usize,
        (x, mut gx): (&D::Array, Option<&mut D::Array>),
        tally: &mut D::Tally,
    ) -> Result<()> {
        let b = made(&mut self.buffers)?;
        let len = batch * self.shape.state_len();
        if let Some(reflection) = &mut self.reflection {
            reflection.pull_to_states(device, len, &mut b.gz)?;
        }
        if let ([injection], false) = (&mut self.injections[..], self.rectified) {
            // Nothing asks for the injection any more.
            let gy = &mut b.y;
            self.core.backward_over(device, batch, gy, &mut b.gz, &mut b.gy, tally)?;
            if let Some(reflection) = &mut self.reflection {
                reflection.pull_to_injections(device, len, gy)?;
            }
            return injection.backward(device, batch, (x, gx), None, gy, &mut b.gz);
        }
        let gy = b.gy.made(device)?;
        self.core.backward(device, batch, &b.y, &mut b.gz, gy, tally)?;
        if let Some(reflection) = &mut self.reflection {
            reflection.pull_to_injections(device, len, gy)?;
        }
        let (state, parts) = (self.shape.state_len(), self.injections.len());
        if let [injection] = &mut self.injections[..] {
            return injection.backward(device, batch, (x, gx), Some(&b.y), gy, &mut b.gz);
        }
        if self.rectified {
            device.relu_backward(batch * state * parts, &b.y, gy)?;
        }
        for (k, injection) in self.injections.iter_mut().enumerate() {
            let from = Rows { array: &*gy, stride: parts * state, offset: k * state };
            let to = Rows { array: &mut b.part, stride: state, offset: 0 };
            device.copy_rows(batch, state, from, to)?;
            match &mut gx {
                Some(gx) if k > 0 => {
                    let share = Some(&mut b.share);
                    injection.backward(device, batch, (x, share), None, &mut b.part, &mut b.gz)?;
                    device.axpy(batch * self.shape.input_len(), 1.0, &b.share, gx)?;
                }
                gx => {
                    injection.backward(
                        device,
                        batch,
                        (x, gx.as_deref_mut()),
                        None,
                        &mut b.part,
                        &mut b.gz,
                    )?;
                }
            }
        }
        Ok(())
    }
}
