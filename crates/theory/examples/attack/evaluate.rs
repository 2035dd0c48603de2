//! The maps evaluated from their equations in plain floating point, sharing nothing with the library's own evaluation: what the
//! attack iterates.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use subdeq_map::{Activation, Form, Injection, Map, Operator};
use subdeq_theory::certificate::States;

/// A map with weights and one input.
pub struct System<'a> {
    map: &'a Map,
    n: usize,
    /// Row major.
    matrix: Vec<f64>,
    groups: Vec<Vec<usize>>,
    y: &'a [f64],
    states: States,
}

impl<'a> System<'a> {
    /// With the states among which fixed points count.
    pub fn new(map: &'a Map, weights: &Operator, y: &'a [f64], states: States) -> System<'a> {
        let n = weights.len();
        let matrix = weights.to_dense(n).expect("small enough");
        let norm = map.normalisation();
        let groups = norm.map_or(Vec::new(), |norm| norm.groups.members(weights).expect("such groups"));
        System { map, n, matrix, groups, y, states }
    }

    pub fn is_normalised(&self) -> bool {
        self.map.normalisation().is_some()
    }

    /// The largest oscillation of a vector within a group: Hilbert's distance of logarithms.
    pub fn oscillation(&self, logs: &[f64]) -> f64 {
        let osc = |group: &Vec<usize>| {
            let top = group.iter().map(|&i| logs[i]).fold(f64::NEG_INFINITY, f64::max);
            let bottom = group.iter().map(|&i| logs[i]).fold(f64::INFINITY, f64::min);
            top - bottom
        };
        self.groups.iter().map(osc).fold(0.0, f64::max)
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.matrix[i * self.n..(i + 1) * self.n]
    }

    /// `F(z)`.
    pub fn apply(&self, z: &[f64]) -> Vec<f64> {
        let mut out: Vec<f64> = (0..self.n).map(|i| self.entry(i, z)).collect();
        if let Some(norm) = self.map.normalisation() {
            for group in &self.groups {
                let size = norm.p.norm(&group.iter().map(|&i| out[i]).collect::<Vec<f64>>());
                group.iter().for_each(|&i| out[i] /= size);
            }
        }
        out
    }

    fn entry(&self, i: usize, z: &[f64]) -> f64 {
        let s = |u: f64| value(self.map.activation(), u);
        let row = self.row(i);
        let plus = || row.iter().zip(z).map(|(w, z)| w.max(0.0) * z).sum::<f64>();
        let minus = || row.iter().zip(z).map(|(w, z)| (-w).max(0.0) * z).sum::<f64>();
        let inner = self.map.injection() == Injection::Inner;
        let share = if let Form::Graph { teleport } = self.map.form() { teleport } else { 1.0 };
        let y = share * self.y[i];
        let core = match self.map.form() {
            Form::Single | Form::Graph { .. } => {
                let kept = if let Form::Graph { teleport } = self.map.form() { 1.0 - teleport } else { 1.0 };
                s(kept * row.iter().zip(z).map(|(w, z)| w * z).sum::<f64>() + if inner { y } else { 0.0 })
            }
            Form::Tied { margin, skew } => {
                let forth = |k: usize| self.row(k).iter().zip(z).map(|(a, z)| a * z).sum::<f64>();
                let back = |x: &dyn Fn(usize) -> f64| (0..self.n).map(|k| self.row(k)[i] * x(k)).sum::<f64>();
                let turned = forth(i) - back(&|k| z[k]);
                s((1.0 - margin) * z[i] - back(&forth) + skew * turned + if inner { y } else { 0.0 })
            }
            Form::PowerMean { .. } => unreachable!("no matrix has hyperedges, so none is drawn for them"),
            Form::SplitSign => s(plus()) - s(minus()),
            Form::Divisive { q } => s(plus() / (q + minus())),
            Form::Rational { q } => plus() / (q + plus() + minus()),
            Form::PowerRatio { p, e } => {
                return ((plus() + y + e) / (minus() + self.y[self.n + i] + e)).powf(p);
            }
            Form::Gains => {
                let signed: f64 = row.iter().zip(z).map(|(w, z)| w * s(*z)).sum();
                signed + self.map.tie() * row.iter().map(|w| (-w).max(0.0)).sum::<f64>()
            }
            Form::Monomial => s(row.iter().zip(z).map(|(w, z)| w * z.ln()).sum::<f64>().exp()),
        };
        (core + self.map.shift()).powf(self.map.power()) + if inner { 0.0 } else { y }
    }

    /// A random start among the states, mostly where the fixed points are, sometimes far away, sometimes very near zero.
    pub fn start(&self, rng: &mut ChaCha8Rng, among: States) -> Vec<f64> {
        let far = [1.0, 1.0, 1.0, 20.0, 1e-4][rng.random_range(0..5)];
        let entry = |i: usize, rng: &mut ChaCha8Rng| match among {
            States::Positive => far * (rng.random_range(0.0..2.4) + 0.5 * self.y[i].abs()) + 1e-9,
            States::Reals => far * (rng.random_range(-2.4..2.4) + 0.5 * self.y[i]),
        };
        (0..self.n).map(|i| entry(i, rng)).collect()
    }

    /// Corners of the box that holds all fixed points of a plain layer.
    pub fn corner(&self, which: usize) -> Vec<f64> {
        let side = |i: usize| match which {
            0 => 1.0,
            1 => -1.0,
            _ => {
                if i.is_multiple_of(2) {
                    1.0
                } else {
                    -1.0
                }
            }
        };
        (0..self.n).map(|i| (self.map.shift() + self.y[i] + side(i)).max(self.least())).collect()
    }

    /// Plain iteration; the last step's size is the residual.
    pub fn iterate(&self, mut z: Vec<f64>, limit: usize) -> (Vec<f64>, f64) {
        let mut residual = f64::INFINITY;
        for _ in 0..limit {
            let next = self.apply(&z);
            residual = largest(next.iter().zip(&z).map(|(a, b)| (a - b).abs() / (1.0 + a.abs())));
            z = next;
            if residual <= 1e-13 || residual.is_nan() {
                break;
            }
        }
        (z, residual)
    }

    /// Newton's method with differences, damped; a fixed point or nothing.
    pub fn newton(&self, mut z: Vec<f64>) -> Option<Vec<f64>> {
        let n = self.n;
        let defect = |z: &[f64]| -> Vec<f64> { self.apply(z).iter().zip(z).map(|(f, z)| f - z).collect() };
        let size = |g: &[f64]| largest(g.iter().map(|x| x.abs()));
        let mut g = defect(&z);
        for _ in 0..if n > 30 { 10 } else { 40 } {
            if size(&g) < 1e-12 * (1.0 + size(&z)) {
                return Some(z);
            }
            let mut a = vec![0.0; n * (n + 1)];
            for j in 0..n {
                let h = 1e-7 * (1.0 + z[j].abs());
                let kept = z[j];
                z[j] += h;
                let moved = defect(&z);
                z[j] = kept;
                for i in 0..n {
                    a[i * (n + 1) + j] = -(moved[i] - g[i]) / h;
                }
            }
            (0..n).for_each(|i| a[i * (n + 1) + n] = g[i]);
            let step = solve(&mut a, n)?;
            let mut t = 1.0;
            loop {
                let next: Vec<f64> =
                    z.iter().zip(&step).map(|(z, s)| (z + t * s).max(self.least())).collect();
                let after = defect(&next);
                if size(&after) < size(&g) {
                    (z, g) = (next, after);
                    break;
                }
                t *= 0.5;
                if t < 1e-4 {
                    return None;
                }
            }
        }
        None
    }

    /// Where only positive states count, no other is looked at.
    fn least(&self) -> f64 {
        if self.states == States::Positive { 1e-12 } else { f64::NEG_INFINITY }
    }

    /// Whether the fixed points that count include this one, well inside.
    pub fn counts(&self, z: &[f64]) -> bool {
        let inside = |z: f64| z.abs() < 1e150 && (self.states == States::Reals || z > 1e-9);
        // Where the map is steep, a small defect is not yet a small distance.
        let defect = largest(self.apply(z).iter().zip(z).map(|(f, z)| (f - z).abs() / (1.0 + z.abs())));
        let steep = 1.0 + largest(self.matrix.iter().map(|w| w.abs()));
        z.iter().all(|z| inside(*z)) && defect * steep < 1e-7
    }
}

/// The largest number; not a number if there is one that is none.
pub fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |top: f64, x| if x <= top { top } else { x })
}

fn value(s: Activation, u: f64) -> f64 {
    match s {
        Activation::Tanh => u.tanh(),
        Activation::Softsign => u / (1.0 + u.abs()),
        Activation::Relu => u.max(0.0),
        other => other.value(u),
    }
}

/// Gauss elimination on `[A | b]`.
fn solve(a: &mut [f64], n: usize) -> Option<Vec<f64>> {
    let m = n + 1;
    for k in 0..n {
        let pivot = (k..n).max_by(|&i, &j| a[i * m + k].abs().total_cmp(&a[j * m + k].abs()))?;
        if a[pivot * m + k].abs() <= 1e-300 || a[pivot * m + k].is_nan() {
            return None;
        }
        (0..m).for_each(|j| a.swap(k * m + j, pivot * m + j));
        for i in k + 1..n {
            let factor = a[i * m + k] / a[k * m + k];
            (k..m).for_each(|j| a[i * m + j] -= factor * a[k * m + j]);
        }
    }
    let mut x = vec![0.0; n];
    for i in (0..n).rev() {
        let sum: f64 = (i + 1..n).map(|j| a[i * m + j] * x[j]).sum();
        x[i] = (a[i * m + n] - sum) / a[i * m + i];
    }
    x.iter().all(|x| x.is_finite()).then_some(x)
}
