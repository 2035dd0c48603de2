//! Whole passes over the nodes: chunks on all threads, partial results merged in their order.

use super::adjacency::{Edges, ToHyperedges};
use super::chunks::for_each_chunk;
use super::product::isa_for;
use super::propagate::{Collect, Constants, Finish, NormaliseColumns, Propagate, Source, divisor};
use super::pull::{Pull, TopCorrection, Tops};
use crate::cpu::distance::Distance;
use crate::cpu::parts::Parts;
use crate::cpu::simd::SimdReal;
use crate::cpu::{Cpu, Isa};
use crate::{GraphMap, Measure};

/// What the passes of one map over one graph need; allocated once.
pub(crate) struct Passes<T: SimdReal> {
    cpu: Cpu<T>,
    isa: Isa,
    pub constants: Constants<T>,
    nodes: usize,
    partials: Vec<Partial<T>>,
    column_products: Vec<f64>,
    tops: Tops,
    /// The states of hyperedges, on the way from nodes to nodes.
    middle: Vec<T>,
}

/// What one chunk hands over.
struct Partial<T> {
    distance: Distance,
    column_tops: Vec<T>,
    column_products: Vec<f64>,
}

/// One step of a propagation: the image and what its gradient needs.
pub(crate) struct Step<'a, T> {
    pub image: &'a [T],
    pub norms: &'a [T],
    pub injection: &'a [T],
}

impl<T: SimdReal> Passes<T> {
    pub fn new(
        cpu: &Cpu<T>,
        map: &GraphMap,
        nodes: usize,
        channels: usize,
        stride: usize,
        chunks: usize,
    ) -> Self {
        let mut passes = Self {
            cpu: cpu.clone(),
            isa: isa_for(cpu.isa(), stride),
            constants: Constants::new(map, channels, stride),
            nodes,
            partials: Vec::new(),
            column_products: vec![0.0; stride],
            tops: Tops::default(),
            middle: Vec::new(),
        };
        passes.reserve(chunks);
        passes
    }

    /// Numbers that the norms of one state take.
    pub fn norms_len(&self) -> usize {
        match self.constants.finish {
            Finish::Plain => 0,
            Finish::Rows | Finish::Ball(_) => self.nodes,
            Finish::Columns => self.constants.stride,
        }
    }

    /// Numbers in a state, with its padding.
    pub fn state_len(&self) -> usize {
        self.nodes * self.constants.stride
    }

    /// Makes room for what so many chunks hand over.
    fn reserve(&mut self, chunks: usize) {
        let stride = self.constants.stride;
        let partial = || Partial {
            distance: Distance::EMPTY,
            column_tops: vec![T::ZERO; stride],
            column_products: vec![0.0; stride],
        };
        self.partials.resize_with(chunks.max(self.partials.len()), partial);
    }

    fn merged(&self, chunks: usize) -> Distance {
        let mut total = Distance::EMPTY;
        self.partials[..chunks].iter().for_each(|partial| total.merge(partial.distance));
        total
    }

    /// `image = F(argument)`; `None` stands for a zero argument. The distance is that of argument and image.
    pub fn forward(
        &mut self,
        edges: &Edges<'_, T>,
        argument: Option<&[T]>,
        injection: &[T],
        image: &mut [T],
        norms: &mut [T],
        measure: Option<Measure>,
    ) -> Distance {
        let entries = edges.forward;
        let chunks = entries.chunks;
        self.reserve(chunks.len());
        let (constants, isa) = (self.constants, self.isa);
        let row_norms = if constants.finish.by_row() { &mut *norms } else { &mut [] };
        let mut middle = std::mem::take(&mut self.middle);
        let source =
            argument.map(|x| gather(&self.cpu, isa, edges.hyperedges, constants.stride, x, &mut middle));
        {
            let (images, row_norms) = (Parts::new(image), Parts::new(row_norms));
            for_each_chunk(&self.cpu, &mut self.partials[..chunks.len()], |k, partial| {
                let rows = chunks[k].clone();
                let normed = if constants.finish.by_row() { rows.clone() } else { 0..0 };
                // SAFETY: chunks are disjoint ranges of rows.
                let (image, row_norms) =
                    unsafe { (images.take(constants.span(&rows)), row_norms.take(normed)) };
                let column_tops = &mut partial.column_tops[..];
                partial.distance = isa.dispatch(Propagate {
                    constants,
                    entries,
                    rows,
                    argument,
                    source,
                    injection,
                    image,
                    row_norms,
                    column_tops,
                    measure,
                });
            });
        }
        self.middle = middle;
        if constants.finish.by_column() {
            norms.fill(T::ZERO);
            for partial in &self.partials[..chunks.len()] {
                norms.iter_mut().zip(&partial.column_tops).for_each(|(norm, &top)| *norm = norm.max(top));
            }
            norms.iter_mut().for_each(|norm| *norm = divisor(*norm));
            let (images, norms) = (Parts::new(image), &*norms);
            for_each_chunk(&self.cpu, &mut self.partials[..chunks.len()], |k, partial| {
                let span = constants.span(&chunks[k]);
                let argument = argument.map(|argument| &argument[span.clone()]);
                // SAFETY: as above.
                let image = unsafe { images.take(span) };
                partial.distance =
                    isa.dispatch(NormaliseColumns { constants, argument, image, norms, measure });
            });
        }
        self.merged(chunks.len())
    }

    /// Prepares pulls back through this image.
    pub fn prepare_pull(&mut self, image: &[T]) {
        if self.constants.finish.by_column() {
            self.tops.find(image, &self.constants);
        }
    }

    /// `q = s' (d norm)^T ((1 - t) A^T after + arriving)`; the gradient for the injection is added to
    /// `injection_gradient`. The distance is that of `after` and `q`. [`Passes::prepare_pull`] must have seen the image.
    #[allow(clippy::too_many_arguments)] // the sides of a pull back
    pub fn pull(
        &mut self,
        edges: &Edges<'_, T>,
        step: &Step<'_, T>,
        after: Option<&[T]>,
        arriving: Option<&[T]>,
        q: &mut [T],
        mut injection_gradient: Option<&mut [T]>,
        measure: Option<Measure>,
    ) -> Distance {
        let &Step { image, norms, injection } = step;
        let constants = self.constants;
        self.pull_chunks(
            edges,
            constants,
            step,
            after,
            arriving,
            q,
            injection_gradient.as_deref_mut(),
            measure,
        );
        let chunks = edges.backward.chunks.len();
        let mut distance = self.merged(chunks);
        if constants.finish.by_column() {
            self.column_products.fill(0.0);
            for partial in &self.partials[..chunks] {
                let sums = self.column_products.iter_mut().zip(&partial.column_products);
                sums.for_each(|(sum, part)| *sum += part);
            }
            let products = &self.column_products[..];
            distance.merge(self.tops.correct(TopCorrection {
                constants,
                image,
                norms,
                injection,
                products,
                after,
                q,
                injection_gradient,
            }));
        }
        distance
    }

    /// `gradient += (1 - t) A^T after`; `scratch` is overwritten.
    pub fn pull_start(&mut self, edges: &Edges<'_, T>, after: &[T], scratch: &mut [T], gradient: &mut [T]) {
        let constants = Constants {
            teleport: T::ONE,
            tanh: false,
            inner: false,
            finish: Finish::Plain,
            ..self.constants
        };
        let step = Step { image: after, norms: &[], injection: after };
        self.pull_chunks(edges, constants, &step, Some(after), None, scratch, Some(gradient), None);
    }

    #[allow(clippy::too_many_arguments)]
    fn pull_chunks(
        &mut self,
        edges: &Edges<'_, T>,
        constants: Constants<T>,
        step: &Step<'_, T>,
        after: Option<&[T]>,
        arriving: Option<&[T]>,
        q: &mut [T],
        injection_gradient: Option<&mut [T]>,
        measure: Option<Measure>,
    ) {
        let &Step { image, norms, injection } = step;
        let entries = edges.backward;
        let (isa, chunks) = (self.isa, entries.chunks);
        self.reserve(chunks.len());
        let mut middle = std::mem::take(&mut self.middle);
        let source =
            after.map(|q| gather(&self.cpu, isa, edges.hyperedges, constants.stride, q, &mut middle));
        let (qs, gradients) = (Parts::new(q), injection_gradient.map(Parts::new));
        for_each_chunk(&self.cpu, &mut self.partials[..chunks.len()], |k, partial| {
            let rows = chunks[k].clone();
            let span = constants.span(&rows);
            // SAFETY: chunks are disjoint ranges of rows.
            let (q, injection_gradient) =
                unsafe { (qs.take(span.clone()), gradients.as_ref().map(|gradients| gradients.take(span))) };
            let column_products = &mut partial.column_products[..];
            partial.distance = isa.dispatch(Pull {
                constants,
                entries,
                rows,
                after,
                source,
                arriving,
                image,
                norms,
                injection,
                q,
                injection_gradient,
                column_products,
                measure,
            });
        });
        self.middle = middle;
    }
}

/// What the rows of a product with the matrix gather: the rows of `x` themselves, or those of the hyperedges, `B' x`, which go
/// to `states`.
pub(super) fn gather<'a, T: SimdReal>(
    cpu: &Cpu<T>,
    isa: Isa,
    hyperedges: Option<ToHyperedges<'a, T>>,
    stride: usize,
    x: &'a [T],
    states: &'a mut Vec<T>,
) -> Source<'a, T> {
    let Some(ToHyperedges { entries, own }) = hyperedges else {
        return Source { gathered: x, own: None };
    };
    states.resize(entries.begin.len() * stride, T::ZERO);
    let images = Parts::new(states);
    let mut nothing = vec![(); entries.chunks.len()];
    for_each_chunk(cpu, &mut nothing, |k, ()| {
        let rows = entries.chunks[k].clone();
        // SAFETY: chunks are disjoint ranges of rows.
        let image = unsafe { images.take(rows.start * stride..rows.end * stride) };
        isa.dispatch(Collect { entries, rows, stride, argument: x, image });
    });
    Source { gathered: states, own: Some((own, x)) }
}
