//! The coefficients of Dormand and Prince's method of order 5 with an embedded error estimate.

/// Stages that the solution is made of; the seventh (the first of the next step) only serves the error estimate.
pub(crate) const STAGES: usize = 6;

/// `A[i][j]`: stage `i` is taken at `z + h sum_j A[i][j] k_j`. The last row gives the solution of order 5.
pub(crate) const A: [[f64; STAGES]; STAGES + 1] = [
    [0.0; 6],
    [1.0 / 5.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [3.0 / 40.0, 9.0 / 40.0, 0.0, 0.0, 0.0, 0.0],
    [44.0 / 45.0, -56.0 / 15.0, 32.0 / 9.0, 0.0, 0.0, 0.0],
    [19372.0 / 6561.0, -25360.0 / 2187.0, 64448.0 / 6561.0, -212.0 / 729.0, 0.0, 0.0],
    [9017.0 / 3168.0, -355.0 / 33.0, 46732.0 / 5247.0, 49.0 / 176.0, -5103.0 / 18656.0, 0.0],
    [35.0 / 384.0, 0.0, 500.0 / 1113.0, 125.0 / 192.0, -2187.0 / 6784.0, 11.0 / 84.0],
];

/// The solution of order 5 minus that of order 4, as a combination of the seven stages.
pub(crate) const ERROR: [f64; STAGES + 1] =
    [71.0 / 57600.0, 0.0, -71.0 / 16695.0, 71.0 / 1920.0, -17253.0 / 339200.0, 22.0 / 525.0, -1.0 / 40.0];

#[cfg(test)]
mod tests {
    use super::{A, ERROR, STAGES};

    /// The conditions of order on which a slip in a coefficient would show.
    #[test]
    fn order_conditions() {
        let c: Vec<f64> = A.iter().map(|row| row.iter().sum()).collect();
        let nodes = [0.0, 0.2, 0.3, 0.8, 8.0 / 9.0, 1.0, 1.0];
        for (c, node) in c.iter().zip(nodes) {
            assert!((c - node).abs() < 1e-14, "{c} {node}");
        }
        for power in 0..5 {
            let sum: f64 = (0..STAGES).map(|j| A[STAGES][j] * c[j].powi(power)).sum();
            assert!((sum - 1.0 / f64::from(power + 1)).abs() < 1e-14, "order {}", power + 1);
        }
        for power in 0..4 {
            let sum: f64 = (0..=STAGES).map(|j| ERROR[j] * c[j].powi(power)).sum();
            assert!(sum.abs() < 1e-15, "error estimate, order {}: {sum}", power + 1);
        }
        let nested: f64 = (0..STAGES)
            .flat_map(|i| (0..STAGES).map(move |j| (i, j)))
            .map(|(i, j)| A[STAGES][i] * A[i][j] * c[j])
            .sum();
        assert!((nested - 1.0 / 6.0).abs() < 1e-14);
    }
}
