//! Whole solves in one launch, state on chip, against the general path and the CPU.

use super::*;
use subdeq_engine::Injection;

fn conv(channels: usize, side: usize) -> Operator {
    Operator::Conv { channels, height: side, width: side, padding: Padding::Zero, kernel: 3 }
}

/// The shapes that there are kernels for, which this GPU can run; with the batches of the benchmarks.
fn shapes(test: &str) -> Vec<(Operator, usize)> {
    let Some(gpu) = gpu(test) else { return Vec::new() };
    let mut shapes = [1, 13, 32, 64, 87, 128].map(|n| (Operator::Dense { n }, 256)).to_vec();
    if gpu.compute_capability() == (9, 0) {
        shapes.extend([(conv(16, 28), 256), (conv(32, 28), 128), (conv(48, 32), 128), (conv(64, 64), 64)]);
    } else {
        skipped(format!("convolutions of {test} (needs compute capability 9.0)"));
    }
    shapes
}

/// The plain map, and the one with an inner injection.
fn injected(operator: Operator) -> [ShapedMap; 2] {
    let inner = |parts| subdeq_map::Parts { injection: Injection::Inner, ..parts };
    [plain(operator), changed(operator, inner)]
}

/// The same rule for a batch of one sample that the general path is needed for.
fn general(rule: Stopping) -> Stopping {
    Stopping { extent: Extent::WholeBatch, ..rule }
}

/// Samples of a problem.
fn picked(problem: &Problem, samples: &[usize]) -> Problem {
    let len = problem.map.injection_len();
    let y = samples.iter().flat_map(|&k| problem.y[k * len..][..len].to_vec()).collect();
    Problem { map: problem.map, batch: samples.len(), weights: problem.weights.clone(), y }
}

#[test]
fn fixed_points_and_gradients() {
    let mut failures = Failures::default();
    let exact = exact();
    for (operator, _) in shapes("fixed points on chip") {
        let gpu = gpu("fixed points on chip").unwrap();
        for map in injected(operator) {
            // The reference takes its time: fewer of the large ones.
            let batch = if operator.state_len() > 100_000 { 2 } else { 3 };
            let (tight, rule) = (stopping(1e-10, 500), stopping(1e-6, 500));
            let problem = contracting(map, batch, 41);
            let what = |of: &str| format!("{of}, {operator:?}, {:?}", map.equation().injection());
            let (expected, _) =
                solved(&exact, &problem, &Solver::Picard, &tight, Start::Constant(1.0)).unwrap();
            for start in [Start::Constant(1.0), Start::Constant(-0.3), Start::Constant(0.0), Start::Given] {
                let (z, reports) = solved(gpu, &problem, &Solver::Picard, &rule, start).unwrap();
                failures.small(|| what(&format!("z from {start:?}")), relative_error(&z, &expected), 1e-5);
                let one = picked(&problem, &[1]);
                let (slow, known) = solved(gpu, &one, &Solver::Picard, &general(rule), start).unwrap();
                let part = &z[slow.len()..2 * slow.len()];
                failures.small(|| what("z and the general path's"), relative_error(part, &slow), 1e-5);
                failures.holds(
                    || what(&format!("{:?}, but in general {known:?}", reports[1])),
                    alike(&reports[1..2], &known),
                );
                let converged = reports.iter().all(|r| r.converged() && r.residual <= 1e-6);
                failures.holds(|| what(&format!("{reports:?}")), converged);
                // With the same bits the general path would have been compared with itself.
                let conv = matches!(operator, Operator::Conv { .. });
                failures.holds(|| what("not on chip"), !conv || part != slow);
            }
            let v = numbers(43, expected.len());
            let (known, _) =
                differentiated(&exact, &problem, &Solver::Picard, &tight, &expected, &v).unwrap();
            let (found, reports) =
                differentiated(gpu, &problem, &Solver::Picard, &rule, &expected, &v).unwrap();
            for ((found, known), name) in found.iter().zip(&known).zip(["g", "gz", "gy", "gw"]) {
                failures.small(|| what(name), relative_error(found, known), 1e-4);
            }
            failures.holds(|| what(&format!("{reports:?}")), reports.iter().all(|r| r.converged()));
        }
    }
    failures.show();
}

/// At the tolerance of training: what is called converged is, by the general path's own measure.
#[test]
fn a_rough_tolerance_is_kept() {
    let mut failures = Failures::default();
    for (operator, batch) in shapes("rough tolerances on chip") {
        let gpu = gpu("rough tolerances on chip").unwrap();
        for map in injected(operator) {
            let problem = contracting(map, batch.min(8), 47);
            for tolerance in [1e-2, 1e-3, 1e-4, 1e-5] {
                let rule = stopping(tolerance, 200);
                let start = Start::Constant(1.0);
                let (z, reports) = solved(gpu, &problem, &Solver::Picard, &rule, start).unwrap();
                let mut plan = planned(gpu, &problem);
                let (before, y) = (up(gpu, &z), up(gpu, &problem.y));
                let (mut after, mut seen) =
                    (gpu.zeros(z.len()).unwrap(), gpu.reports(problem.batch).unwrap());
                gpu.apply(&mut plan, problem.batch, &before, &y, &mut after).unwrap();
                let len = operator.state_len();
                gpu.compare(len, problem.batch, 1, &rule, &before, &after, &mut seen).unwrap();
                let mut residuals = vec![SampleReport::default(); problem.batch];
                gpu.read_reports(&seen, &mut residuals).unwrap();
                for (report, next) in reports.iter().zip(&residuals) {
                    let what =
                        || format!("{operator:?} to {tolerance}: {report:?}, one further {}", next.residual);
                    failures.holds(
                        what,
                        report.converged() && report.residual <= tolerance && next.residual <= tolerance,
                    );
                }
            }
        }
    }
    failures.show();
}

#[test]
fn a_fixed_number_of_applications() {
    let mut failures = Failures::default();
    let exact = exact();
    for (operator, _) in shapes("applications on chip") {
        let gpu = gpu("applications on chip").unwrap();
        for map in injected(operator) {
            let batch = if operator.state_len() > 100_000 { 1 } else { 3 };
            let problem = contracting(map, batch, 53);
            let v = numbers(54, batch * operator.state_len());
            for (most, allowed) in [(1, 1e-5), (2, 1e-3), (7, 1e-3)] {
                if most == 7 && operator.state_len() == 1 {
                    continue; // one unit is at its fixed point by then, to the last bit
                }
                let rule = stopping(0.0, most);
                let start = Start::Constant(1.0);
                let what = |of: &str| format!("{of} after {most}, {operator:?}");
                let (z, reports) = solved(gpu, &problem, &Solver::Picard, &rule, start).unwrap();
                let (expected, known) = solved(&exact, &problem, &Solver::Picard, &rule, start).unwrap();
                failures.small(|| what("z"), relative_error(&z, &expected), allowed);
                let (gradients, adjoint) =
                    differentiated(gpu, &problem, &Solver::Picard, &rule, &expected, &v).unwrap();
                let (right, adjoint_known) =
                    differentiated(&exact, &problem, &Solver::Picard, &rule, &expected, &v).unwrap();
                failures.small(|| what("g"), relative_error(&gradients[0], &right[0]), 1e-3);
                for (a, b) in reports.iter().chain(&adjoint).zip(known.iter().chain(&adjoint_known)) {
                    failures.holds(
                        || what(&format!("{a:?}, on the CPU {b:?}")),
                        (a.iterations, a.outcome) == (b.iterations, b.outcome),
                    );
                    let error = (a.residual - b.residual).abs();
                    failures.small(|| what("the residual"), error, 1e-3 * b.residual + 5e-7);
                }
            }
        }
    }
    failures.show();
}

#[test]
fn bits_are_those_of_a_sample_alone() {
    let mut failures = Failures::default();
    for (operator, batch) in shapes("independence on chip") {
        let gpu = gpu("independence on chip").unwrap();
        for map in injected(operator) {
            // Samples that take different numbers of iterations.
            let mut few = contracting(map, 5, 61);
            let len = map.injection_len();
            few.y.iter_mut().enumerate().for_each(|(i, y)| *y *= 0.1 + (i / len) as f64);
            let picks: Vec<usize> = (0..batch).map(|k| (k * k + k / 7) % 5).collect();
            let rule = stopping(1e-4, 200);
            let v = numbers(62, 5 * len);
            // Answers, gradients, reports.
            let of = |samples: &[usize]| {
                let problem = picked(&few, samples);
                let start = Start::Constant(1.0);
                let (z, reports) = solved(gpu, &problem, &Solver::Picard, &rule, start).unwrap();
                let v: Vec<f64> = samples.iter().flat_map(|&k| v[k * len..][..len].to_vec()).collect();
                let (gradients, adjoint) =
                    differentiated(gpu, &problem, &Solver::Picard, &rule, &z, &v).unwrap();
                (z, gradients[0].clone(), reports, adjoint)
            };
            let whole = of(&picks);
            failures.holds(|| format!("other bits in another run, {operator:?}"), of(&picks) == whole);
            let alone: Vec<_> = (0..5).map(|k| of(&[k])).collect();
            for (position, &k) in picks.iter().enumerate() {
                let at = position * len..(position + 1) * len;
                let one = &alone[k];
                let same = whole.0[at.clone()] == one.0
                    && whole.1[at] == one.1
                    && (whole.2[position], whole.3[position]) == (one.2[0], one.3[0]);
                failures.holds(|| format!("sample {k} at {position} of {batch}, {operator:?}"), same);
            }
            let three = of(&picks[1..4]);
            failures.holds(
                || format!("a batch of three, {operator:?}"),
                three.0 == whole.0[len..4 * len] && three.1 == whole.1[len..4 * len],
            );
        }
    }
    failures.show();
}

#[test]
fn every_way_to_end_on_chip() {
    let mut failures = Failures::default();
    for (operator, _) in shapes("ends on chip") {
        let gpu = gpu("ends on chip").unwrap();
        let start = Start::Constant(1.0);
        for map in injected(operator) {
            let problem = contracting(map, 3, 71);
            let len = map.injection_len();
            // At a tolerance of 0 the residual goes down to rounding, and may become 0.
            let (_, reports) = solved(gpu, &problem, &Solver::Picard, &stopping(0.0, 400), start).unwrap();
            let at_rounding = reports
                .iter()
                .all(|r| matches!(r.outcome, Outcome::Stagnated | Outcome::Converged) && r.residual < 1e-6);
            failures.holds(|| format!("tolerance 0, {operator:?}: {reports:?}"), at_rounding);
            // Expanding weights: tanh keeps the state bounded, and nothing settles. (A few units may, all of them saturated.)
            if len >= 64 {
                let mut wild = picked(&problem, &[0, 1, 2]);
                wild.weights[0].iter_mut().for_each(|w| *w *= 40.0);
                let (z, reports) = solved(gpu, &wild, &Solver::Picard, &stopping(1e-4, 60), start).unwrap();
                let limited =
                    reports.iter().all(|r| r.outcome == Outcome::IterationLimit && r.iterations == 60);
                failures.holds(|| format!("wild weights, {operator:?}: {reports:?}"), limited);
                failures.holds(|| format!("wild weights, {operator:?}"), z.iter().all(|x| x.is_finite()));
            }
            let v = numbers(72, 3 * len);
            let z = vec![0.5; 3 * len];
            for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let outcomes =
                    |reports: &[SampleReport]| reports.iter().map(|r| r.outcome).collect::<Vec<_>>();
                let one = [Outcome::Converged, Outcome::NotFinite, Outcome::Converged];
                let rule = stopping(1e-4, 100);
                let mut given = picked(&problem, &[0, 1, 2]);
                given.y[2 * len - 1] = bad;
                let (_, reports) = solved(gpu, &given, &Solver::Picard, &rule, start).unwrap();
                let first = reports[1].iterations == 1 && reports[1].residual.is_nan();
                failures.holds(
                    || format!("{bad} injected, {operator:?}: {reports:?}"),
                    outcomes(&reports) == one && first,
                );
                let mut driven = v.clone();
                driven[len] = bad;
                let (_, reports) =
                    differentiated(gpu, &problem, &Solver::Picard, &rule, &z, &driven).unwrap();
                failures.holds(
                    || format!("{bad} in v, {operator:?}: {reports:?}"),
                    outcomes(&reports) == one && reports[1].iterations == 1,
                );
                given.y[2 * len - 1] = 0.0;
                given.weights[0][0] = bad;
                let (_, reports) = solved(gpu, &given, &Solver::Picard, &rule, start).unwrap();
                let (_, adjoint) = differentiated(gpu, &given, &Solver::Picard, &rule, &z, &v).unwrap();
                let none = reports.iter().chain(&adjoint).all(|r| r.outcome == Outcome::NotFinite);
                failures.holds(|| format!("a weight of {bad}, {operator:?}: {reports:?}"), none);
            }
            let mut plan = planned(gpu, &problem);
            let (y, mut z) = (up(gpu, &problem.y), gpu.zeros(3 * len).unwrap());
            let mut reports = gpu.reports(3).unwrap();
            let rule = stopping(1e-4, 100);
            let none = gpu.solve(&mut plan, 0, &y, &Solver::Picard, &rule, start, &mut z, &mut reports);
            let sentence = none.map_or_else(|error| error.to_string(), |()| "no error".into());
            failures.holds(|| sentence.clone(), sentence.contains("a batch of 0 samples"));
        }
    }
    failures.show();
}
