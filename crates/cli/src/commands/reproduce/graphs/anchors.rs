//! What others report on the same hypergraphs and divisions of their nodes: mean test accuracies in percent.

/// A method and its accuracies, in the order of [`GRAPHS`].
pub struct Anchor {
    /// Its name.
    pub name: &'static str,
    /// Its accuracies.
    pub accuracies: [f64; 5],
}

/// The hypergraphs that these figures are about: co-citation without the citing papers, as in HyperGCN's files.
pub const GRAPHS: [&str; 5] =
    ["hypergcn-cora-cit", "hypergcn-citeseer", "hypergcn-pubmed", "cora-author", "dblp"];
/// The co-citation hypergraphs with the citing papers, as the SubDEQ authors have them: nobody else's figures are about these.
pub const WITH_CITING: [&str; 3] = ["cora-cit", "citeseer", "pubmed"];

/// On 50 / 25 / 25 % of the nodes, at random. The first is the one to beat.
pub const HALF: [Anchor; 3] = [
    Anchor { name: "HyperND", accuracies: [79.2, 72.6, 86.7, 80.6, 90.4] },
    Anchor { name: "AllSetTransformer", accuracies: [78.6, 73.1, 88.7, 83.6, 91.5] },
    Anchor { name: "ED-HNN", accuracies: [80.3, 73.7, 89.0, 84.0, 91.9] },
];

/// On HyperGCN's ten divisions.
pub const GIVEN: [Anchor; 1] = [Anchor { name: "UniGNN", accuracies: [70.2, 63.8, 74.7, 75.3, 88.8] }];

/// The name for people.
pub fn title(graph: &str) -> &'static str {
    match graph {
        "hypergcn-cora-cit" => "Cora co-citation",
        "hypergcn-citeseer" => "CiteSeer co-citation",
        "hypergcn-pubmed" => "PubMed co-citation",
        "cora-author" => "Cora co-authorship",
        "dblp" => "DBLP co-authorship",
        "cora-cit" => "Cora, citing papers too",
        "citeseer" => "CiteSeer, citing papers too",
        "pubmed" => "PubMed, citing papers too",
        _ => "?",
    }
}
