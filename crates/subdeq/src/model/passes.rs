//! From images to a loss, and back to the gradients.

use std::borrow::Cow;

use subdeq_engine::network::Adam;
use subdeq_engine::{Backend, Crop, Dropout, Order, Picks, Real, Summary};

use super::batch_norm::Statistics;
use super::block::Block;
use super::core_layer::{CoreLayer, CoreStart};
use super::trained::Trained;
use super::{BatchReport, Classifier, Noise};
use crate::memory::made;
use crate::{Error, Result};

/// A batch of images that are on the device.
pub struct Batch<'a, D: Backend> {
    /// The data set.
    pub images: &'a D::Images,
    /// Which of its images.
    pub picks: Picks<'a, D::Integers>,
    /// Where each image's solve (the first block's) starts, one state per image of the data set; the results are put back there.
    pub states: Option<&'a mut D::Array>,
    /// What is done to them.
    pub noise: Noise,
}

/// How a batch is trained on.
struct Lesson<'a, D: Backend> {
    start: CoreStart<'a, D>,
    /// What is dropped of the features, by the numbers of the images.
    head: Option<(Dropout, Picks<'a, D::Integers>)>,
    label_smoothing: f64,
}

impl<D: Backend> Lesson<'_, D> {
    /// Without anything special.
    const PLAIN: Self = Self { start: CoreStart::Usual, head: None, label_smoothing: 0.0 };
}

/// Arrays whose size depends on the batch.
pub(super) struct Buffers<D: Backend> {
    capacity: usize,
    x: D::Array,
    labels: D::Integers,
    /// The pooled states of every block but the last, and their gradients.
    pooled: Vec<D::Array>,
    gpooled: Vec<D::Array>,
    features: D::Array,
    gfeatures: D::Array,
    logits: D::Array,
    glogits: D::Array,
}

impl<D: Backend> Classifier<D> {
    /// Makes room for batches of this many images.
    ///
    /// # Errors
    /// A batch of no images; memory that does not suffice.
    pub fn reserve(&mut self, batch: usize) -> Result<()> {
        if batch == 0 {
            return Err(Error::invalid("a batch of 0 images"));
        }
        if self.buffers.as_ref().is_some_and(|buffers| buffers.capacity >= batch) {
            return Ok(());
        }
        let device = &*self.device;
        let features = self.last()?.shape.pooled_len();
        // A strided injection makes the whole image first.
        let largest = |block: &Block<D>| block.injection_len() * block.shape.stride * block.shape.stride;
        let widest = self.blocks.iter().map(largest).max().unwrap_or(0);
        let sizes = [self.input_len(), widest, features, self.spec.classes];
        if sizes.iter().any(|&size| size.checked_mul(batch).is_none_or(|len| len > isize::MAX as usize / 8)) {
            return Err(Error::invalid(format!("a batch of {batch} images is larger than any memory")));
        }
        self.buffers = None; // its memory may be needed for the larger one
        if let Some(norm) = &mut self.norm {
            norm.reserve(device, batch * features)?;
        }
        self.blocks.iter_mut().try_for_each(|block| block.reserve(device, batch))?;
        let between = || {
            let inner = &self.blocks[..self.blocks.len() - 1];
            let pooled = inner.iter().map(|block| device.zeros(batch * block.shape.pooled_len()));
            pooled.collect::<std::result::Result<Vec<_>, _>>()
        };
        self.buffers = Some(Buffers {
            capacity: batch,
            x: device.zeros(batch * self.input_len())?,
            labels: device.integers(&vec![0; batch])?,
            pooled: between()?,
            gpooled: between()?,
            features: device.zeros(batch * features)?,
            gfeatures: device.zeros(batch * features)?,
            logits: device.zeros(batch * self.spec.classes)?,
            glogits: device.zeros(batch * self.spec.classes)?,
        });
        Ok(())
    }

    /// One step of training with images on the host: forward, backward, update.
    ///
    /// # Errors
    /// Images or labels that do not fit, a loss that is not finite, or an adjoint solve that is not.
    pub fn train_step(&mut self, x: &[D::Elem], labels: &[u32], adam: &Adam) -> Result<BatchReport> {
        let report = self.gradients(x, labels)?;
        self.update(adam)?;
        Ok(report)
    }

    /// Forward and backward pass: every parameter gets its gradient of the mean loss ([`Classifier::named_gradients`]).
    ///
    /// # Errors
    /// As [`Classifier::train_step`].
    pub fn gradients(&mut self, x: &[D::Elem], labels: &[u32]) -> Result<BatchReport> {
        let batch = self.load(x, Some(labels))?;
        self.differentiate(batch, Lesson::PLAIN)?;
        Ok(self.finish()?.into())
    }

    /// One step of training with images on the device. Nothing is read: whether all went well is known after
    /// [`Classifier::finish`], which a training calls before it trusts or writes anything.
    ///
    /// # Errors
    /// A batch that does not fit; a device that fails.
    pub fn step(&mut self, batch: Batch<'_, D>, adam: &Adam) -> Result<()> {
        let Batch { images, picks, states, noise } = batch;
        let Noise { crop, input, head, label_smoothing } = noise;
        let count = self.gather(images, picks.clone(), crop)?;
        if !input.is_none() {
            let len = self.input_len();
            self.device.drop_entries(len, picks.clone(), &input, &mut made(&mut self.buffers)?.x)?;
        }
        let head = (!head.is_none()).then(|| (head, picks.clone()));
        let start = match states {
            None => CoreStart::Usual,
            Some(states) => CoreStart::Warm { states, picks },
        };
        self.differentiate(count, Lesson { start, head, label_smoothing })?;
        self.update(adam)
    }

    /// Loss and hits of images on the device, with the running statistics of batch norm, added to what
    /// [`Classifier::finish_evaluation`] will say.
    ///
    /// # Errors
    /// A batch that does not fit; a device that fails.
    pub fn evaluate_batch(&mut self, images: &D::Images, picks: Picks<'_, D::Integers>) -> Result<()> {
        let batch = self.gather(images, picks, Crop::NONE)?;
        self.eval_forward(batch)?;
        self.take_loss(batch)
    }

    /// Reads what happened since the last time.
    ///
    /// # Errors
    /// A loss or an adjoint solve that is not finite; an integration that did not reach its end.
    pub fn finish(&mut self) -> Result<Summary> {
        let summary = self.finish_evaluation()?;
        if !summary.loss.is_finite() {
            return Err(Error::invalid(format!(
                "the loss is {}: training has diverged (lower the learning rate, or use a map with a certificate)",
                summary.loss
            )));
        }
        Ok(summary)
    }

    /// The same for passes without an update, whose loss may be anything.
    ///
    /// # Errors
    /// An integration that did not reach its end.
    pub fn finish_evaluation(&mut self) -> Result<Summary> {
        let summary = self.device.finish(&mut self.tally)?;
        for block in &self.blocks {
            match &block.core {
                CoreLayer::Ode { layer, .. } if summary.unfinished > 0 => {
                    return Err(layer.failure(summary.unfinished)?);
                }
                CoreLayer::Equilibrium { layer, .. } if summary.adjoint_not_finite > 0 => {
                    return Err(layer.adjoint_failure(summary.adjoint_not_finite)?);
                }
                _ => {}
            }
        }
        Ok(summary)
    }

    /// Loss and hits of images on the host with the running statistics of batch norm.
    ///
    /// # Errors
    /// Images or labels that do not fit.
    pub fn evaluate(&mut self, x: &[D::Elem], labels: &[u32]) -> Result<BatchReport> {
        let batch = self.load(x, Some(labels))?;
        self.eval_forward(batch)?;
        self.take_loss(batch)?;
        Ok(self.finish_evaluation()?.into())
    }

    /// The logits of images, with the running statistics of batch norm.
    ///
    /// # Errors
    /// Images that do not fit.
    pub fn logits(&mut self, x: &[D::Elem]) -> Result<Vec<D::Elem>> {
        let batch = self.load(x, None)?;
        self.logits_of_loaded(batch)
    }

    /// The logits of images that are on the device.
    pub(super) fn logits_of(
        &mut self,
        images: &D::Images,
        picks: Picks<'_, D::Integers>,
    ) -> Result<Vec<D::Elem>> {
        let batch = self.gather(images, picks, Crop::NONE)?;
        self.logits_of_loaded(batch)
    }

    fn logits_of_loaded(&mut self, batch: usize) -> Result<Vec<D::Elem>> {
        self.eval_forward(batch)?;
        self.finish_evaluation()?;
        let mut logits = vec![Default::default(); batch * self.spec.classes];
        self.device.read(&made(&mut self.buffers)?.logits, 0, &mut logits)?;
        Ok(logits)
    }

    /// Updates every parameter by its gradient, with the engine's Adam; [`Classifier::update_with`] takes any other.
    ///
    /// # Errors
    /// A step number of 0.
    pub fn update(&mut self, adam: &Adam) -> Result<()> {
        let Self { device, blocks, head, norm, .. } = self;
        let mut updates = Vec::new();
        for block in blocks.iter_mut() {
            let injections = block.injections.iter_mut().flat_map(|injection| injection.parts_mut().0);
            updates.extend(injections.map(Trained::update));
            updates.extend(block.core.updates());
        }
        updates.extend(
            head.trained_mut()
                .into_iter()
                .chain(norm.iter_mut().flat_map(|norm| norm.parts_mut().0))
                .map(Trained::update),
        );
        device.adam(adam, &mut updates)?;
        drop(updates);
        blocks.iter_mut().try_for_each(|block| block.core.updated(adam.step))?;
        self.hold()
    }

    /// Forward and backward pass of the images that are loaded.
    fn differentiate(&mut self, batch: usize, lesson: Lesson<'_, D>) -> Result<()> {
        // A loss that is not finite is the cause of whatever was refused after it.
        self.forward_and_back(batch, lesson).map_err(|error| self.finish().err().unwrap_or(error))
    }

    fn forward_and_back(&mut self, batch: usize, lesson: Lesson<'_, D>) -> Result<()> {
        self.blocks_forward(batch, Statistics::OfBatch, lesson.start)?;
        let Self { device, buffers, blocks, norm, head, spec, tally, .. } = self;
        let (device, b) = (&**device, made(buffers)?);
        let last = blocks.last_mut().ok_or_else(no_block)?;
        let shape = last.shape.pooling(batch);
        let (z, gz) = last.output_and_gradient()?;
        match norm {
            Some(norm) => norm.forward(device, shape, Statistics::OfBatch, z, &mut b.features)?,
            None => device.average_pool(shape, z, &mut b.features)?,
        }
        let drop_features = |features: &mut D::Array| match &lesson.head {
            Some((dropout, picks)) => {
                device.drop_entries(shape.pooled_len(), picks.clone(), dropout, features)
            }
            None => Ok(()),
        };
        drop_features(&mut b.features)?;
        head.forward(device, batch, &b.features, false, &mut b.logits)?;
        let smoothing = lesson.label_smoothing;
        device.cross_entropy(batch, spec.classes, smoothing, &b.logits, &b.labels, &mut b.glogits, tally)?;
        head.backward(device, batch, &b.features, None, &mut b.glogits, Some(&mut b.gfeatures))?;
        drop_features(&mut b.gfeatures)?;
        match norm {
            Some(norm) => norm.backward(device, shape, z, &b.gfeatures, gz)?,
            None => device.average_pool_backward(shape, &b.gfeatures, gz)?,
        }
        self.blocks_backward(batch, None)
    }

    /// The gradients for the images that were evaluated last of `sum_k weights[k] logits[k]`, in a network without batch norm.
    pub(super) fn pull_to_images(&mut self, weights: &[D::Elem]) -> Result<Vec<D::Elem>> {
        let batch = weights.len() / self.spec.classes;
        let len = batch * self.input_len();
        let mut gx = self.device.zeros(len)?;
        let Self { device, buffers, blocks, head, .. } = self;
        let (device, b) = (&**device, made(buffers)?);
        device.write(&mut b.glogits, 0, weights)?;
        head.backward(device, batch, &b.features, None, &mut b.glogits, Some(&mut b.gfeatures))?;
        let last = blocks.last_mut().ok_or_else(no_block)?;
        let shape = last.shape.pooling(batch);
        device.average_pool_backward(shape, &b.gfeatures, last.output_and_gradient()?.1)?;
        self.blocks_backward(batch, Some(&mut gx))?;
        self.finish_evaluation()?;
        let mut gradient = vec![D::Elem::ZERO; len];
        self.device.read(&gx, 0, &mut gradient)?;
        Ok(self.in_file_order(gradient))
    }

    /// From the gradient of the last block's output to the gradients of all blocks' parameters, and to that of the images.
    fn blocks_backward(&mut self, batch: usize, gx: Option<&mut D::Array>) -> Result<()> {
        let Self { device, buffers, blocks, tally, .. } = self;
        let (device, b) = (&**device, made(buffers)?);
        for index in (1..blocks.len()).rev() {
            let (before, from) = (index - 1, &mut b.gpooled[index - 1]);
            blocks[index].backward(device, batch, (&b.pooled[before], Some(from)), tally)?;
            let shape = blocks[before].shape.pooling(batch);
            device.average_pool_backward(shape, from, blocks[before].output_and_gradient()?.1)?;
        }
        blocks.first_mut().ok_or_else(no_block)?.backward(device, batch, (&b.x, gx), tally)
    }

    /// From the images that are loaded to their logits, with the running statistics of batch norm.
    fn eval_forward(&mut self, batch: usize) -> Result<()> {
        self.blocks_forward(batch, Statistics::Running, CoreStart::Usual)?;
        let Self { device, buffers, blocks, norm, head, .. } = self;
        let (device, b) = (&**device, made(buffers)?);
        let last = blocks.last().ok_or_else(no_block)?;
        let (shape, z) = (last.shape.pooling(batch), last.output()?);
        match norm {
            Some(norm) => norm.forward(device, shape, Statistics::Running, z, &mut b.features)?,
            None => device.average_pool(shape, z, &mut b.features)?,
        }
        head.forward(device, batch, &b.features, false, &mut b.logits)
    }

    fn take_loss(&mut self, batch: usize) -> Result<()> {
        let Self { device, buffers, spec, tally, .. } = self;
        let b = made(buffers)?;
        let (logits, labels) = (&b.logits, &b.labels);
        Ok(device.cross_entropy(batch, spec.classes, 0.0, logits, labels, &mut b.glogits, tally)?)
    }

    /// Brings images from the host to the buffers.
    pub(super) fn load(&mut self, x: &[D::Elem], labels: Option<&[u32]>) -> Result<usize> {
        let len = self.input_len();
        if x.is_empty() || !x.len().is_multiple_of(len) {
            return Err(Error::invalid(format!(
                "{} numbers are not a whole number of images of {len} each",
                x.len()
            )));
        }
        let batch = x.len() / len;
        if let Some(labels) = labels
            && labels.len() != batch
        {
            return Err(Error::invalid(format!("{} labels for {batch} images", labels.len())));
        }
        self.reserve(batch)?;
        let in_order = self.in_order(x);
        let b = made(&mut self.buffers)?;
        if let Some(labels) = labels {
            self.device.write_integers(&mut b.labels, labels)?;
        }
        if let Some(at) = x.iter().position(|x| !x.is_finite()) {
            return Err(Error::invalid(format!(
                "number {} of image {} is {}: inputs must be finite",
                at % len,
                at / len,
                x[at]
            )));
        }
        self.device.write(&mut b.x, 0, &in_order)?;
        Ok(batch)
    }

    /// Images as they lie in the buffers.
    fn in_order<'a>(&self, x: &'a [D::Elem]) -> Cow<'a, [D::Elem]> {
        let (channels, pixels) = (self.spec.channels, self.spec.height * self.spec.width);
        if self.order() == Order::ChannelsFirst || channels == 1 {
            return x.into();
        }
        let turned = |image: &'a [D::Elem]| {
            (0..image.len()).map(move |at| image[at % channels * pixels + at / channels])
        };
        x.chunks_exact(channels * pixels).flat_map(turned).collect()
    }

    /// The way back from the order of the buffers.
    fn in_file_order(&self, x: Vec<D::Elem>) -> Vec<D::Elem> {
        let (channels, pixels) = (self.spec.channels, self.spec.height * self.spec.width);
        if self.order() == Order::ChannelsFirst || channels == 1 {
            return x;
        }
        let turned = |image: &[D::Elem]| -> Vec<D::Elem> {
            (0..image.len()).map(|at| image[at % pixels * channels + at / pixels]).collect()
        };
        x.chunks_exact(channels * pixels).flat_map(turned).collect()
    }

    /// Puts the images that are picked together in the buffers.
    fn gather(&mut self, images: &D::Images, picks: Picks<'_, D::Integers>, crop: Crop) -> Result<usize> {
        let batch = picks.range.len();
        self.reserve(batch)?;
        let order = self.order();
        let b = made(&mut self.buffers)?;
        self.device.gather(images, picks, crop, order, &mut b.x, &mut b.labels)?;
        Ok(batch)
    }

    /// How images lie in the buffers: for dense models channel after channel, for convolutions pixel after pixel.
    fn order(&self) -> Order {
        if self.spec.pool.is_some() { Order::ChannelsLast } else { Order::ChannelsFirst }
    }

    /// From the images to the injections of the first block.
    pub(super) fn inject(&mut self, batch: usize, statistics: Statistics) -> Result<()> {
        let Self { device, buffers, blocks, .. } = self;
        blocks.first_mut().ok_or_else(no_block)?.inject(device, batch, statistics, &made(buffers)?.x)
    }

    /// One block after the other; the first one's solve starts where it is told to.
    fn blocks_forward(
        &mut self,
        batch: usize,
        statistics: Statistics,
        start: CoreStart<'_, D>,
    ) -> Result<()> {
        let Self { device, buffers, blocks, tally, .. } = self;
        let (device, b) = (&**device, made(buffers)?);
        let mut start = Some(start);
        for (index, block) in blocks.iter_mut().enumerate() {
            let x = if index == 0 { &b.x } else { &b.pooled[index - 1] };
            block.inject(device, batch, statistics, x)?;
            block.solve(device, batch, start.take().unwrap_or(CoreStart::Usual), tally)?;
            if let Some(pooled) = b.pooled.get_mut(index) {
                device.average_pool(block.shape.pooling(batch), block.output()?, pooled)?;
            }
        }
        Ok(())
    }
}

pub(super) fn no_block() -> Error {
    Error::invalid("a classifier without a block")
}
