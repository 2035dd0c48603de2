//! A layer of the form `F(z) = phi(W z + y') + y''`, entry by entry `phi(u) = (s(u) + shift)^power`: what the closing
//! tests, the boxes and the search for several fixed points see of a map.

use subdeq_map::{Activation, Form, Injection, Map, Operator};

use crate::activation::Enclosure;
use crate::certificate::Scope;
use crate::interval::Interval;
use crate::operator::Products;

/// The scalar response `phi(u) = (s(u) + shift)^power`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    activation: Activation,
    shift: f64,
    power: f64,
}

impl Response {
    /// The response of a map whose weights enter as `s(W z)`; `None` for the other forms.
    pub(crate) fn of(map: &Map) -> Option<Response> {
        (map.form() == Form::Single).then_some(Response {
            activation: map.activation(),
            shift: map.shift(),
            power: map.power(),
        })
    }

    pub(crate) fn activation(&self) -> Activation {
        self.activation
    }

    /// Whether `phi = s + shift`, so that its slopes are those of `s`.
    pub(crate) fn is_plain(&self) -> bool {
        self.power == 1.0
    }

    pub(crate) fn value(&self, u: f64) -> f64 {
        let base = self.activation.value(u) + self.shift;
        if self.is_plain() { base } else { base.powf(self.power) }
    }

    /// `{phi(u) : u in on}`, rounded outward; everything where a base of the power may be negative.
    pub(crate) fn enclose(&self, on: Interval) -> Interval {
        let base = self.base(on);
        if self.is_plain() {
            base
        } else if base.lo >= 0.0 {
            base.powf(self.power)
        } else {
            Interval::ALL
        }
    }

    /// `{phi'(u) : u in on}` and every secant slope there, rounded outward.
    pub(crate) fn slope(&self, on: Interval) -> Interval {
        let slope = self.activation.slopes(on);
        if self.is_plain() {
            return slope;
        }
        let base = self.base(on);
        // Whatever the exponent: a power of a negative number is not one of these maps.
        if !(base.lo > LEAST_BASE) {
            return Interval::ALL;
        }
        Interval::point(self.power) * base.powf(self.power - 1.0) * slope
    }

    fn base(&self, on: Interval) -> Interval {
        self.activation.enclose(on) + Interval::point(self.shift)
    }

    /// Whether `phi` never decreases, so that all its secant slopes are `>= 0`.
    pub(crate) fn is_increasing(&self) -> bool {
        self.activation.is_increasing() && (self.is_plain() || self.slope(Interval::ALL).lo >= 0.0)
    }
}

/// A layer with its weights and the range of its inputs.
pub(crate) struct Layer<'a> {
    pub(crate) operator: &'a Operator,
    pub(crate) response: Response,
    /// Added to the preactivation.
    pub(crate) inner: Inputs<'a>,
    /// Added to the response.
    pub(crate) outer: Inputs<'a>,
}

/// The inputs that are added in one place, if any are.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a>(Option<&'a Scope>);

impl Inputs<'_> {
    pub(crate) fn at(self, i: usize) -> Interval {
        self.0.map_or(Interval::point(0.0), |scope| scope.entry(i))
    }
}

impl<'a> Layer<'a> {
    /// The layer of a map, or `None` where its form is not `phi(W z + y') + y''`.
    pub(crate) fn new(map: &Map, operator: &'a Operator, scope: &'a Scope) -> Option<Layer<'a>> {
        let response = Response::of(map)?;
        let (inner, outer) = match map.injection() {
            Injection::Inner => (Inputs(Some(scope)), Inputs(None)),
            Injection::Outer => (Inputs(None), Inputs(Some(scope))),
        };
        Some(Layer { operator, response, inner, outer })
    }

    pub(crate) fn len(&self) -> usize {
        self.operator.len()
    }

    /// `out = F(z)` in plain floating point, before any normalisation, for one input.
    pub(crate) fn apply(&self, z: &[f64], out: &mut [f64]) {
        self.operator.apply(z, out);
        for (i, out) in out.iter_mut().enumerate() {
            *out = self.response.value(*out + self.inner.at(i).lo) + self.outer.at(i).lo;
        }
    }

    /// The box that `F` maps everything into; `None` where it is not bounded.
    pub(crate) fn image_of_everything(&self) -> Option<(Vec<f64>, Vec<f64>)> {
        let range = self.response.enclose(Interval::ALL);
        let (mut lower, mut upper) = (Vec::with_capacity(self.len()), Vec::with_capacity(self.len()));
        for i in 0..self.len() {
            let ends = range + self.outer.at(i);
            if !(ends.lo.is_finite() && ends.hi.is_finite()) {
                return None;
            }
            lower.push(ends.lo);
            upper.push(ends.hi);
        }
        Some((lower, upper))
    }
}

/// A base of a power that is smaller is not told apart from zero.
const LEAST_BASE: f64 = 1e-290;

/// Slope bounds never fall below this: a zero would make the scaled tests divide by zero, a larger bound is still one.
pub(crate) const LEAST_SLOPE: f64 = 1e-200;
