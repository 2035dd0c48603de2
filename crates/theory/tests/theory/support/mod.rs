//! Double-double arithmetic (about 31 digits), so that bounds can be checked by something that shares no code with them.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// `hi + lo`, unevaluated.
#[derive(Clone, Copy, Debug)]
pub struct Dd {
    hi: f64,
    lo: f64,
}

pub fn dd(x: f64) -> Dd {
    Dd { hi: x, lo: 0.0 }
}

fn exact_sum(a: f64, b: f64) -> Dd {
    let s = a + b;
    let part = s - a;
    Dd { hi: s, lo: (a - (s - part)) + (b - part) }
}

fn exact_product(a: f64, b: f64) -> Dd {
    let p = a * b;
    Dd { hi: p, lo: a.mul_add(b, -p) }
}

impl Dd {
    pub fn to_f64(self) -> f64 {
        self.hi + self.lo
    }

    pub fn abs(self) -> Dd {
        if self.hi < 0.0 { -self } else { self }
    }

    /// Halved ten times, summed as a series, squared ten times.
    pub fn exp(self) -> Dd {
        if self.hi < -600.0 {
            return dd(0.0);
        }
        let small = self * dd(1.0 / 1024.0);
        let ln2 = Dd { hi: std::f64::consts::LN_2, lo: 2.319_046_813_846_3e-17 };
        let k = (small.hi / ln2.hi).round();
        let r = small - ln2 * dd(k);
        let (mut term, mut sum) = (dd(1.0), dd(1.0));
        for i in 1..30 {
            term = term * r / dd(f64::from(i));
            sum = sum + term;
        }
        let mut result = sum * dd(2f64.powi(k as i32));
        for _ in 0..10 {
            result = result * result;
        }
        result
    }

    /// Two Newton steps on `exp`.
    pub fn ln(self) -> Dd {
        let mut x = dd(self.hi.ln());
        for _ in 0..2 {
            x = x + self * (-x).exp() - dd(1.0);
        }
        x
    }
}

impl Neg for Dd {
    type Output = Dd;
    fn neg(self) -> Dd {
        Dd { hi: -self.hi, lo: -self.lo }
    }
}

impl Add for Dd {
    type Output = Dd;
    fn add(self, b: Dd) -> Dd {
        let s = exact_sum(self.hi, b.hi);
        let t = exact_sum(self.lo, b.lo);
        let s = exact_sum(s.hi, s.lo + t.hi);
        exact_sum(s.hi, s.lo + t.lo)
    }
}

impl Sub for Dd {
    type Output = Dd;
    fn sub(self, b: Dd) -> Dd {
        self + -b
    }
}

impl Mul for Dd {
    type Output = Dd;
    fn mul(self, b: Dd) -> Dd {
        let p = exact_product(self.hi, b.hi);
        exact_sum(p.hi, p.lo + (self.hi * b.lo + self.lo * b.hi))
    }
}

impl Div for Dd {
    type Output = Dd;
    fn div(self, b: Dd) -> Dd {
        let first = self.hi / b.hi;
        let rest = self - b * dd(first);
        let second = rest.hi / b.hi;
        let rest = rest - b * dd(second);
        exact_sum(first, second) + dd(rest.hi / b.hi)
    }
}

/// The largest value of `f` on `[0, top]`: a grid, finer near zero, then zooms around its best point.
pub fn supremum(top: f64, points: u32, f: impl Fn(f64) -> Dd) -> f64 {
    let grid: Vec<f64> = (0..=points).map(|i| top * (f64::from(i) / f64::from(points)).powi(3)).collect();
    let value = |t: f64| f(t).to_f64();
    let mut best = (0..grid.len()).max_by(|&a, &b| value(grid[a]).total_cmp(&value(grid[b]))).unwrap();
    let mut grid = grid;
    for _ in 0..12 {
        let (low, high) = (grid[best.saturating_sub(1)], grid[(best + 1).min(grid.len() - 1)]);
        grid = (0..=20).map(|i| low + (high - low) * f64::from(i) / 20.0).collect();
        best = (0..grid.len()).max_by(|&a, &b| value(grid[a]).total_cmp(&value(grid[b]))).unwrap();
    }
    value(grid[best])
}
