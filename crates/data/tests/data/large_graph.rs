//! The generator at full size: `cargo test --release -p subdeq-data --test data large_graph -- --ignored --nocapture`.

use std::time::Instant;

use subdeq_data::graph::BlockModel;

#[test]
#[ignore = "needs 3 GiB and about a minute"]
fn a_hundred_million_edges() {
    for edges in [1_000_000, 10_000_000, 100_000_000] {
        let start = Instant::now();
        let (matrix, _) = BlockModel::uniform((edges / 16) as u32, edges, 1).generate().unwrap();
        let found = (matrix.nnz() - matrix.rows()) / 2;
        println!("{} nodes, {found} edges in {:?}", matrix.rows(), start.elapsed());
        // The number of edges is binomial: its deviation is the square root of its mean.
        assert!((found as f64 - edges as f64).abs() < 6.0 * (edges as f64).sqrt(), "{found}");
        for i in (0..matrix.rows()).step_by(9973) {
            let (columns, _) = matrix.row(i);
            assert!(columns.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(columns.iter().all(|&j| matrix.row(j as usize).0.binary_search(&(i as u32)).is_ok()));
        }
    }
}
