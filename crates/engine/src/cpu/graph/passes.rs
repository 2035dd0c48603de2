//! Whole passes over the nodes: chunks on all threads, partial results merged in their order.

use super::adjacency::{Edges, Entries, ToHyperedges};
use super::chunks::for_each_chunk;
use super::part::{Halo, Part};
use super::power_mean::{CollectMeans, Power, Slopes, Use};
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
    /// Their power means at the state that is pulled back through.
    means: Vec<T>,
    /// What travels between processes.
    halo: Halo<T>,
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
            means: Vec::new(),
            halo: Halo::default(),
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

    /// What all chunks measured, if anybody asked: other processes are waited for only then.
    fn merged(&self, chunks: usize, part: Option<&Part<T>>, measured: bool) -> Distance {
        let distances = self.partials[..chunks].iter().map(|partial| partial.distance);
        if let (Some(part), true) = (part, measured) {
            return part.merge(distances);
        }
        let mut total = Distance::EMPTY;
        distances.for_each(|distance| total.merge(distance));
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
        let (cpu, partials) = (&self.cpu, &mut self.partials[..chunks.len()]);
        let (images, row_norms) = (Parts::new(image), Parts::new(row_norms));
        let room = (&mut self.middle, &mut self.halo);
        let gathered = (argument, constants.power.map_or(Hyperedges::Sum, Hyperedges::Means));
        gathering(cpu, isa, edges, constants.stride, gathered, room, &mut |source, takes| {
            for_each_chunk(cpu, partials, |k, partial| {
                if !takes(k) {
                    return;
                }
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
        });
        let part = edges.part;
        if constants.finish.by_column() {
            norms.fill(T::ZERO);
            for partial in &self.partials[..chunks.len()] {
                norms.iter_mut().zip(&partial.column_tops).for_each(|(norm, &top)| *norm = norm.max(top));
            }
            if let Some(part) = part {
                part.largest(norms);
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
        self.merged(chunks.len(), part, measure.is_some() && argument.is_some())
    }

    /// Prepares pulls back through this image.
    pub fn prepare_pull(&mut self, edges: &Edges<'_, T>, image: &[T]) {
        if self.constants.finish.by_column() {
            self.tops.find(image, &self.constants);
            if let Some(part) = edges.part {
                self.tops.count_together(part);
            }
        }
        if let (Some(power), Some(hyperedges)) = (self.constants.power, edges.hyperedges) {
            let (stride, means) = (self.constants.stride, Some((power, Use::Divisor)));
            collect(&self.cpu, self.isa, hyperedges.entries, stride, (image, means), &mut self.means);
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
        let measured = measure.is_some() && after.is_some();
        let mut distance = self.merged(chunks, edges.part, measured);
        if constants.finish.by_column() {
            let partials = self.partials[..chunks].iter().map(|partial| &partial.column_products[..]);
            match edges.part {
                Some(part) => part.add_up(partials, &mut self.column_products),
                None => {
                    self.column_products.fill(0.0);
                    for partial in partials {
                        let sums = self.column_products.iter_mut().zip(partial);
                        sums.for_each(|(sum, part)| *sum += part);
                    }
                }
            }
            let (tops, products) = (&self.tops, &self.column_products[..]);
            let mut correction =
                TopCorrection { constants, image, norms, injection, products, after, q, injection_gradient };
            distance.merge(match edges.part {
                Some(part) if measured => part.relay(|so_far| tops.correct(&mut correction, so_far)),
                _ => {
                    let mut so_far = Distance::EMPTY;
                    tops.correct(&mut correction, &mut so_far);
                    so_far
                }
            });
        }
        distance
    }

    /// `gradient += (1 - t) A^T after`, where the first step was taken from `start`; `scratch` is overwritten.
    pub fn pull_start(
        &mut self,
        edges: &Edges<'_, T>,
        start: &[T],
        after: &[T],
        scratch: &mut [T],
        gradient: &mut [T],
    ) {
        let constants = Constants {
            teleport: T::ONE,
            tanh: false,
            inner: false,
            finish: Finish::Plain,
            ..self.constants
        };
        self.prepare_pull(edges, start);
        let step = Step { image: start, norms: &[], injection: after };
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
        let (cpu, partials) = (&self.cpu, &mut self.partials[..chunks.len()]);
        let (qs, gradients) = (Parts::new(q), injection_gradient.map(Parts::new));
        let room = (&mut self.middle, &mut self.halo);
        let slopes = |power| Hyperedges::Slopes(Slopes { power, state: image, means: &self.means });
        let gathered = (after, constants.power.map_or(Hyperedges::Sum, slopes));
        gathering(cpu, isa, edges, constants.stride, gathered, room, &mut |source, takes| {
            for_each_chunk(cpu, partials, |k, partial| {
                if !takes(k) {
                    return;
                }
                let rows = chunks[k].clone();
                let span = constants.span(&rows);
                // SAFETY: chunks are disjoint ranges of rows.
                let (q, injection_gradient) = unsafe {
                    (qs.take(span.clone()), gradients.as_ref().map(|gradients| gradients.take(span)))
                };
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
        });
    }
}

/// Work on chunks that gather from a source, `None` where there is nothing to gather; the second argument says which chunks it is
/// for.
pub(super) type Work<'a, T> = dyn FnMut(Option<Source<'_, T>>, &(dyn Fn(usize) -> bool + Sync)) + Send + 'a;

/// What hyperedges make of what their nodes give them, where nodes are joined by hyperedges.
#[derive(Clone, Copy)]
pub(super) enum Hyperedges<'a, T> {
    /// Its sum.
    Sum,
    /// Its power mean, times the number of nodes.
    Means(Power<T>),
    /// Its sum, which goes back to the nodes through the slopes of power means.
    Slopes(Slopes<'a, T>),
}

/// Has every chunk worked on once, with what it gathers of `x`: all at once, or as [`Part::gather`] says.
pub(super) fn gathering<T: SimdReal>(
    cpu: &Cpu<T>,
    isa: Isa,
    edges: &Edges<'_, T>,
    stride: usize,
    (x, made): (Option<&[T]>, Hyperedges<'_, T>),
    (middle, halo): (&mut Vec<T>, &mut Halo<T>),
    work: &mut Work<'_, T>,
) {
    match (x, edges.part) {
        (None, _) => work(None, &|_| true),
        (Some(x), None) => {
            work(Some(gather(cpu, isa, edges.hyperedges, stride, (x, made), middle)), &|_| true)
        }
        (Some(x), Some(part)) => {
            part.gather(halo, stride, x, &mut |source, takes| work(Some(source), takes));
        }
    }
}

/// What the rows of a product with the matrix gather: the rows of `x` themselves, or those of the hyperedges, `B' x` or power means
/// of it, which go to `states`.
fn gather<'a, T: SimdReal>(
    cpu: &Cpu<T>,
    isa: Isa,
    hyperedges: Option<ToHyperedges<'a, T>>,
    stride: usize,
    (x, made): (&'a [T], Hyperedges<'a, T>),
    states: &'a mut Vec<T>,
) -> Source<'a, T> {
    let Some(ToHyperedges { entries, own }) = hyperedges else {
        return Source { gathered: x, own: None, slopes: None };
    };
    let (means, slopes) = match made {
        Hyperedges::Sum => (None, None),
        Hyperedges::Means(power) => (Some((power, Use::Passed)), None),
        Hyperedges::Slopes(slopes) => (None, Some(slopes)),
    };
    collect(cpu, isa, entries, stride, (x, means), states);
    Source { gathered: states, own: Some((own, x)), slopes }
}

/// The way from nodes to hyperedges, one row of `states` for each: sums, or power means.
fn collect<T: SimdReal>(
    cpu: &Cpu<T>,
    isa: Isa,
    entries: Entries<'_, T>,
    stride: usize,
    (argument, means): (&[T], Option<(Power<T>, Use)>),
    states: &mut Vec<T>,
) {
    states.resize(entries.begin.len() * stride, T::ZERO);
    let images = Parts::new(states);
    let mut nothing = vec![(); entries.chunks.len()];
    for_each_chunk(cpu, &mut nothing, |k, ()| {
        let rows = entries.chunks[k].clone();
        // SAFETY: chunks are disjoint ranges of rows.
        let image = unsafe { images.take(rows.start * stride..rows.end * stride) };
        match means {
            None => isa.dispatch(Collect { entries, rows, stride, argument, image }),
            Some((power, wanted)) => {
                isa.dispatch(CollectMeans { power, wanted, entries, rows, stride, argument, image });
            }
        }
    });
}
