//! Where the nodes of a small graph are drawn: Fruchterman and Reingold's springs, the same picture every time.

/// Sweeps over all pairs of nodes.
const SWEEPS: usize = 400;
/// Pull towards the middle, so that parts that nothing holds together stay in the picture.
const GRAVITY: f64 = 0.05;

/// Positions in the unit square. Quadratic in the number of nodes.
pub fn springs(nodes: usize, edges: &[(u32, u32)]) -> Vec<[f64; 2]> {
    // The wanted distance between neighbours, if nodes filled a square of side one.
    let wanted = 1.0 / (nodes.max(1) as f64).sqrt();
    // A spiral with the golden angle: no two nodes start in one place or on one line.
    let mut places: Vec<[f64; 2]> = (0..nodes)
        .map(|k| {
            let (radius, angle) = (wanted * (k as f64 + 0.5).sqrt() / 2.0, 2.399_963 * k as f64);
            [radius * angle.cos(), radius * angle.sin()]
        })
        .collect();
    for sweep in 0..SWEEPS {
        let mut forces: Vec<[f64; 2]> = places.iter().map(|p| p.map(|x| -GRAVITY * x)).collect();
        for i in 0..nodes {
            for j in 0..i {
                let (gap, distance) = between(places[i], places[j]);
                push(&mut forces, (i, j), gap, wanted * wanted / (distance * distance));
            }
        }
        for &(i, j) in edges.iter().filter(|(i, j)| i != j) {
            let (i, j) = (i as usize, j as usize);
            let (gap, distance) = between(places[i], places[j]);
            push(&mut forces, (i, j), gap, -distance / wanted);
        }
        // Steps shrink as the picture settles.
        let most = 0.1 * (1.0 - sweep as f64 / SWEEPS as f64);
        for (place, force) in places.iter_mut().zip(&forces) {
            let size = force[0].hypot(force[1]).max(f64::MIN_POSITIVE);
            let step = size.min(most) / size;
            *place = [place[0] + step * force[0], place[1] + step * force[1]];
        }
    }
    into_unit_square(places)
}

/// From `b` to `a`, and how far; never quite zero.
fn between(a: [f64; 2], b: [f64; 2]) -> ([f64; 2], f64) {
    let gap = [a[0] - b[0], a[1] - b[1]];
    (gap, gap[0].hypot(gap[1]).max(1e-6))
}

fn push(forces: &mut [[f64; 2]], (i, j): (usize, usize), gap: [f64; 2], strength: f64) {
    for axis in 0..2 {
        forces[i][axis] += strength * gap[axis];
        forces[j][axis] -= strength * gap[axis];
    }
}

/// Moves and scales evenly, four decimals.
fn into_unit_square(places: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    let extent = |axis: usize| {
        let coordinates = places.iter().map(|place| place[axis]);
        coordinates.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
    };
    let (x, y) = (extent(0), extent(1));
    let side = (x.1 - x.0).max(y.1 - y.0).max(f64::MIN_POSITIVE);
    let fit = |value: f64, (low, high): (f64, f64)| {
        let centred = 0.5 + (value - (low + high) / 2.0) / side;
        (centred * 1e4).round() / 1e4
    };
    places.into_iter().map(|place| [fit(place[0], x), fit(place[1], y)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_drawn_nearer_than_strangers() {
        // Two cliques of five, joined by one edge, and a node that knows nobody.
        let clique = |first: u32| (0..5).flat_map(move |i| (0..i).map(move |j| (first + i, first + j)));
        let edges: Vec<(u32, u32)> = clique(0).chain(clique(5)).chain([(0, 5)]).collect();
        let places = springs(11, &edges);
        assert_eq!(places, springs(11, &edges));
        assert!(places.iter().flatten().all(|x| (0.0..=1.0).contains(x)), "{places:?}");
        let mean = |pairs: &mut dyn Iterator<Item = (usize, usize)>| {
            let distances: Vec<f64> = pairs.map(|(i, j)| between(places[i], places[j]).1).collect();
            distances.iter().sum::<f64>() / distances.len() as f64
        };
        let near = mean(&mut clique(0).map(|(i, j)| (i as usize, j as usize)));
        let far = mean(&mut (0..5).flat_map(|i| (5..10).map(move |j| (i, j))));
        assert!(near < far / 2.0, "{near} {far}");
        assert_eq!(springs(0, &[]), Vec::<[f64; 2]>::new());
        assert_eq!(springs(1, &[(0, 0)]), vec![[0.5, 0.5]]);
    }
}
