//! The exact equilibrium of linear propagation, `(I - (1 - t) A) Z = t f + shift`, by conjugate gradients.
//!
//! For a symmetric `A` with eigenvalues in `[-1, 1]` the matrix is positive definite with condition `(2 - t)/t`, so that
//! the error falls by about `1 - 2 sqrt(t/2)` per step instead of `1 - t`. Each channel is a system of its own; all
//! share the sparse products.

use std::ops::Range;

use super::adjacency::{Edges, Entries};
use super::chunks::for_each_chunk;
use super::node_matrix::NodeMatrix;
use super::part::Halo;
use super::passes::{Hyperedges, gathering};
use super::product::isa_for;
use super::propagate::Source;
use super::propagation::Propagation;
use crate::cpu::isa::Vectorised;
use crate::cpu::parts::Parts;
use crate::cpu::simd::{Lanes, SimdReal};
use crate::{EngineError, Outcome, Result, SampleReport};

/// Residuals that have not become smaller for this long count as stagnated: the number type allows no more.
const PATIENCE: usize = 8;

impl<T: SimdReal> Propagation<T> {
    /// Solves `Z = F(Z; f)` of a linear map over a symmetric matrix to a relative residual of `tolerance`
    /// (`|b - M Z| / |b|` in every channel, `M = I - (1 - t) A`). The error is at most `1/t` times that where
    /// `|A|_2 <= 1`.
    pub fn solve_linear(
        &mut self,
        edges: &Edges<'_, T>,
        f: &NodeMatrix<T>,
        tolerance: f64,
        max_iterations: usize,
        z: &mut NodeMatrix<T>,
    ) -> Result<SampleReport> {
        self.check_linear(edges, &[("the injection", f), ("the state", z)])?;
        // F(0; f) is the right-hand side.
        self.apply(edges, None, f, None, z)?;
        self.conjugate_gradient(edges, tolerance, max_iterations, z)
    }

    /// The gradient for `f`, given the gradient `v` for the solution of [`Propagation::solve_linear`].
    pub fn adjoint_linear(
        &mut self,
        edges: &Edges<'_, T>,
        v: &NodeMatrix<T>,
        tolerance: f64,
        max_iterations: usize,
        gradient: &mut NodeMatrix<T>,
    ) -> Result<SampleReport> {
        self.check_linear(edges, &[("the gradient", v), ("the result", gradient)])?;
        let teleport = self.passes.constants.teleport;
        gradient.copy_from(v);
        gradient.padded_mut().iter_mut().for_each(|x| *x *= teleport);
        self.conjugate_gradient(edges, tolerance, max_iterations, gradient)
    }

    fn check_linear(&self, edges: &Edges<'_, T>, matrices: &[(&'static str, &NodeMatrix<T>)]) -> Result<()> {
        self.check(edges, matrices)?;
        if !self.map.is_linear() {
            return Err(EngineError::Invalid("conjugate gradients solve linear propagation only".into()));
        }
        if !edges.is_symmetric() {
            return Err(EngineError::Invalid(
                "conjugate gradients need a symmetric matrix (no dropped edges): use Picard iteration".into(),
            ));
        }
        Ok(())
    }

    /// `z` holds the right-hand side and then the solution.
    fn conjugate_gradient(
        &mut self,
        edges: &Edges<'_, T>,
        tolerance: f64,
        max_iterations: usize,
        z: &mut NodeMatrix<T>,
    ) -> Result<SampleReport> {
        let stride = z.stride();
        let mut system = System {
            isa: isa_for(self.cpu.isa(), stride),
            cpu: self.cpu.clone(),
            edges: *edges,
            middle: Vec::new(),
            halo: Halo::default(),
            keep: self.passes.constants.keep,
            stride,
            partials: vec![vec![0.0; stride]; edges.forward.chunks.len()],
        };
        let mut residual = z.clone();
        let mut direction = z.clone();
        let mut image = NodeMatrix::<T>::zeros(z.nodes(), z.channels());
        let sizes = system.products(residual.padded(), residual.padded());
        z.padded_mut().fill(T::ZERO);
        let mut squares = sizes.clone();
        let mut report = SampleReport { residual: relative(&squares, &sizes), ..SampleReport::default() };
        let (mut best, mut since) = (f64::INFINITY, 0);
        loop {
            let ended = if !report.residual.is_finite() {
                Some(Outcome::NotFinite)
            } else if report.residual <= tolerance {
                Some(Outcome::Converged)
            } else if since >= PATIENCE {
                Some(Outcome::Stagnated)
            } else if report.iterations as usize >= max_iterations {
                Some(Outcome::IterationLimit)
            } else {
                None
            };
            if let Some(outcome) = ended {
                return Ok(SampleReport { outcome, ..report });
            }
            let curvature = system.apply(direction.padded(), image.padded_mut());
            let step = quotients::<T>(&squares, &curvature);
            let next = system.advance(
                &step,
                direction.padded(),
                image.padded(),
                z.padded_mut(),
                residual.padded_mut(),
            );
            let ratio = quotients::<T>(&next, &squares);
            system.update_direction(&ratio, residual.padded(), direction.padded_mut());
            squares = next;
            report.iterations += 1;
            report.residual = relative(&squares, &sizes);
            (best, since) = if report.residual < best { (report.residual, 0) } else { (best, since + 1) };
        }
    }
}

/// The largest `|r| / |b|` of a channel; channels with `b = 0` are solved by zero.
fn relative(squares: &[f64], sizes: &[f64]) -> f64 {
    let channels = squares.iter().zip(sizes).filter(|(_, size)| **size != 0.0);
    channels
        .map(|(square, size)| (square / size).sqrt())
        .fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a })
}

/// Quotients by channel, zero where a channel is solved.
fn quotients<T: SimdReal>(a: &[f64], b: &[f64]) -> Vec<T> {
    a.iter().zip(b).map(|(a, b)| T::from_f64(if *b > 0.0 { a / b } else { 0.0 })).collect()
}

struct System<'a, T: SimdReal> {
    cpu: crate::cpu::Cpu<T>,
    isa: crate::cpu::Isa,
    edges: Edges<'a, T>,
    /// The states of hyperedges.
    middle: Vec<T>,
    /// What travels between processes.
    halo: Halo<T>,
    keep: T,
    stride: usize,
    partials: Vec<Vec<f64>>,
}

impl<T: SimdReal> System<'_, T> {
    fn span(&self, chunk: usize) -> Range<usize> {
        let rows = &self.edges.forward.chunks[chunk];
        rows.start * self.stride..rows.end * self.stride
    }

    /// Has every chunk worked on; what each adds up goes to its own place.
    fn each(&mut self, work: impl Fn(&Self, usize, &mut [f64]) + Sync + Send) {
        let mut partials = std::mem::take(&mut self.partials);
        let this = &*self;
        for_each_chunk(&this.cpu, &mut partials, |k, sums| work(this, k, sums));
        self.partials = partials;
    }

    /// What all chunks added up, in their order.
    fn total(&self) -> Vec<f64> {
        let mut total = vec![0.0; self.stride];
        if let Some(part) = self.edges.part {
            part.add_up(self.partials.iter().map(|sums| &sums[..]), &mut total);
            return total;
        }
        for sums in &self.partials {
            total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
        }
        total
    }

    /// `x . y` by channel.
    fn products(&mut self, x: &[T], y: &[T]) -> Vec<f64> {
        self.each(|this, k, sums| {
            let span = this.span(k);
            this.isa.dispatch(Products { x: &x[span.clone()], y: &y[span], stride: this.stride, sums });
        });
        self.total()
    }

    /// `image = x - (1 - t) A x`; returns `x . image` by channel.
    fn apply(&mut self, x: &[T], image: &mut [T]) -> Vec<f64> {
        let images = Parts::new(image);
        let (cpu, isa, keep, stride, edges) = (&self.cpu, self.isa, self.keep, self.stride, self.edges);
        let (entries, partials) = (edges.forward, &mut self.partials);
        let room = (&mut self.middle, &mut self.halo);
        gathering(cpu, isa, &edges, stride, (Some(x), Hyperedges::Sum), room, &mut |source, takes| {
            let Some(source) = source else { return };
            for_each_chunk(cpu, partials, |k, sums| {
                if !takes(k) {
                    return;
                }
                let rows = entries.chunks[k].clone();
                // SAFETY: chunks are disjoint ranges of rows.
                let image = unsafe { images.take(rows.start * stride..rows.end * stride) };
                isa.dispatch(Apply { entries, rows, keep, stride, source, x, image, sums });
            });
        });
        self.total()
    }

    /// `z += step * direction`, `residual -= step * image`; returns the new `residual . residual` by channel.
    fn advance(
        &mut self,
        step: &[T],
        direction: &[T],
        image: &[T],
        z: &mut [T],
        residual: &mut [T],
    ) -> Vec<f64> {
        let (zs, residuals) = (Parts::new(z), Parts::new(residual));
        self.each(|this, k, sums| {
            let span = this.span(k);
            // SAFETY: as above.
            let (z, residual) = unsafe { (zs.take(span.clone()), residuals.take(span.clone())) };
            let (direction, image) = (&direction[span.clone()], &image[span]);
            this.isa.dispatch(Advance { step, direction, image, z, residual });
            this.isa.dispatch(Products { x: residual, y: residual, stride: this.stride, sums });
        });
        self.total()
    }

    /// `direction = residual + ratio * direction`.
    fn update_direction(&mut self, ratio: &[T], residual: &[T], direction: &mut [T]) {
        let directions = Parts::new(direction);
        self.each(|this, k, _| {
            let span = this.span(k);
            // SAFETY: as above.
            let direction = unsafe { directions.take(span.clone()) };
            this.isa.dispatch(UpdateDirection { ratio, residual: &residual[span], direction });
        });
    }
}

/// Rows added up in the working precision before their sum goes to `f64`.
const FLUSH: usize = 64;

struct Products<'a, T> {
    x: &'a [T],
    y: &'a [T],
    stride: usize,
    sums: &'a mut [f64],
}

impl<T: SimdReal> Vectorised<T> for Products<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        self.sums.fill(0.0);
        let block = FLUSH * self.stride;
        for (x, y) in self.x.chunks(block).zip(self.y.chunks(block)) {
            for at in (0..self.stride).step_by(V::N) {
                let mut sum = V::zero();
                for k in (at..x.len()).step_by(self.stride) {
                    sum = V::load(&x[k..]).fma(V::load(&y[k..]), sum);
                }
                let mut lanes = [T::ZERO; 16];
                sum.store(&mut lanes);
                for (total, part) in self.sums[at..at + V::N].iter_mut().zip(lanes) {
                    *total += part.to_f64();
                }
            }
        }
    }
}

struct Apply<'a, T> {
    entries: Entries<'a, T>,
    rows: Range<usize>,
    keep: T,
    stride: usize,
    source: Source<'a, T>,
    x: &'a [T],
    image: &'a mut [T],
    sums: &'a mut [f64],
}

impl<T: SimdReal> Vectorised<T> for Apply<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { entries, rows, keep, stride, source, x, image, sums } = self;
        for (row, out) in rows.clone().zip(image.chunks_exact_mut(stride)) {
            // SAFETY: as in `Propagate`.
            unsafe { source.row_product::<V>(&entries, row, stride, out) };
            for at in (0..stride).step_by(V::N) {
                let own = V::load(&x[row * stride + at..]);
                (own - V::load(&out[at..]) * V::splat(keep)).store(&mut out[at..]);
            }
        }
        let x = &x[rows.start * stride..rows.end * stride];
        Products { x, y: image, stride, sums }.run::<V>();
    }
}

struct Advance<'a, T> {
    step: &'a [T],
    direction: &'a [T],
    image: &'a [T],
    z: &'a mut [T],
    residual: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Advance<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let stride = self.step.len();
        for row in (0..self.z.len()).step_by(stride) {
            for at in (0..stride).step_by(V::N) {
                let (step, k) = (V::load(&self.step[at..]), row + at);
                step.fma(V::load(&self.direction[k..]), V::load(&self.z[k..])).store(&mut self.z[k..]);
                let less = V::load(&self.residual[k..]) - step * V::load(&self.image[k..]);
                less.store(&mut self.residual[k..]);
            }
        }
    }
}

struct UpdateDirection<'a, T> {
    ratio: &'a [T],
    residual: &'a [T],
    direction: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for UpdateDirection<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let stride = self.ratio.len();
        for row in (0..self.direction.len()).step_by(stride) {
            for at in (0..stride).step_by(V::N) {
                let k = row + at;
                let turned = V::load(&self.ratio[at..])
                    .fma(V::load(&self.direction[k..]), V::load(&self.residual[k..]));
                turned.store(&mut self.direction[k..]);
            }
        }
    }
}
