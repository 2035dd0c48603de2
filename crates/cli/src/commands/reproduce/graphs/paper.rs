//! What the paper prints for its graph experiments: accuracies in percent, mean and standard deviation of five runs.

/// The graphs, smallest first.
pub const GRAPHS: [&str; 5] = ["cora-cit", "cora-author", "citeseer", "pubmed", "dblp"];

/// The graph's name in the paper.
pub fn title(graph: &str) -> &'static str {
    match graph {
        "cora-cit" => "Cora citation",
        "cora-author" => "Cora author",
        "citeseer" => "CiteSeer",
        "pubmed" => "PubMed",
        "dblp" => "DBLP",
        _ => "?",
    }
}

/// A cell of a table: graph, model, mean, standard deviation.
pub type Cell = (&'static str, &'static str, f64, f64);

/// Table 4: teleport probability 0.1.
pub const TABLE4: [Cell; 15] = [
    ("cora-cit", "appnp", 80.2027, 1.9557),
    ("cora-cit", "appnp-normalized-tanh", 73.3905, 2.3818),
    ("cora-cit", "appnp-tanh", 72.2369, 2.3013),
    ("cora-author", "appnp", 70.834, 2.1591),
    ("cora-author", "appnp-normalized-tanh", 73.3437, 1.8252),
    ("cora-author", "appnp-tanh", 72.5175, 2.4537),
    ("citeseer", "appnp", 62.8625, 1.4477),
    ("citeseer", "appnp-normalized-tanh", 62.66078, 1.8676),
    ("citeseer", "appnp-tanh", 62.1564, 1.479),
    ("pubmed", "appnp", 77.45168, 1.4433),
    ("pubmed", "appnp-normalized-tanh", 78.5827, 0.9741),
    ("pubmed", "appnp-tanh", 77.103, 1.251),
    ("dblp", "appnp", 88.8095, 0.2866),
    ("dblp", "appnp-normalized-tanh", 89.4007, 0.3619),
    ("dblp", "appnp-tanh", 86.87046, 0.3851),
];

/// The appendix's table: teleport probability chosen on the validation nodes.
pub const TABLE6: [Cell; 25] = [
    ("cora-cit", "appnp", 76.3835, 0.7716),
    ("cora-cit", "appnp-normalized-tanh", 73.4996, 0.952),
    ("cora-cit", "appnp-normalized-tanh-2", 68.978, 0.6919),
    ("cora-cit", "appnp-tanh", 74.621, 3.2222),
    ("cora-cit", "appnp-tanh-2", 75.3079, 3.1284),
    ("cora-author", "appnp", 69.2128, 2.7963),
    ("cora-author", "appnp-normalized-tanh", 69.5713, 1.3922),
    ("cora-author", "appnp-normalized-tanh-2", 68.1995, 2.2836),
    ("cora-author", "appnp-tanh", 68.6672, 2.8515),
    ("cora-author", "appnp-tanh-2", 67.8878, 2.7859),
    ("citeseer", "appnp", 60.9079, 1.3739),
    ("citeseer", "appnp-normalized-tanh", 59.5334, 1.1373),
    ("citeseer", "appnp-normalized-tanh-2", 59.8739, 1.6284),
    ("citeseer", "appnp-tanh", 61.2358, 1.2669),
    ("citeseer", "appnp-tanh-2", 60.4035, 1.4294),
    ("pubmed", "appnp", 75.9526, 0.76875),
    ("pubmed", "appnp-normalized-tanh", 76.9303, 0.777),
    ("pubmed", "appnp-normalized-tanh-2", 75.0607, 0.70495),
    ("pubmed", "appnp-tanh", 77.9957, 1.0701),
    ("pubmed", "appnp-tanh-2", 77.2589, 0.8646),
    ("dblp", "appnp", 89.1939, 0.2812),
    ("dblp", "appnp-normalized-tanh", 89.545, 0.0526),
    ("dblp", "appnp-normalized-tanh-2", 86.9683, 0.1177),
    ("dblp", "appnp-tanh", 89.4138, 0.269),
    ("dblp", "appnp-tanh-2", 89.661, 0.212),
];

/// Teleport probabilities that the appendix chooses from.
pub const TELEPORTS: [f64; 6] = [0.05, 0.1, 0.3, 0.5, 0.7, 0.9];
