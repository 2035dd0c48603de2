//! A small graph, its nodes coloured by what the model says about them.

use std::fmt::Write as _;

use super::run::{Drawing, Run};
use crate::chart::{PALETTE, escape};

const SIDE: f64 = 560.0;
const MARGIN: f64 = 24.0;

pub fn draw(html: &mut String, run: &Run) {
    let Some(drawing) = &run.graph else { return };
    let names = run.evaluation.as_ref().map_or(&[][..], |e| &e.class_names);
    let wrong = drawing.nodes.iter().filter(|n| n.label != n.prediction).count();
    let _ = writeln!(
        html,
        "<h2>Graph</h2>\n<div class=\"card\">{}<p class=\"muted\">{} nodes coloured by the class they are given; a ring in the true class's colour \
         marks the {wrong} that are wrong.</p></div>",
        to_svg(drawing, names),
        drawing.nodes.len()
    );
}

fn to_svg(drawing: &Drawing, names: &[String]) -> String {
    let range = |of: &dyn Fn(usize) -> f64| {
        let values = || (0..drawing.nodes.len()).map(of);
        (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max))
    };
    let (x, y) = (range(&|k| drawing.nodes[k].x), range(&|k| drawing.nodes[k].y));
    // One scale for both directions: the picture keeps its proportions. A single node needs none.
    let extent = (x.1 - x.0).max(y.1 - y.0);
    let scale = if extent > 1e-9 { (SIDE - 2.0 * MARGIN) / extent } else { 0.0 };
    let place = |k: usize| {
        let node = &drawing.nodes[k];
        (MARGIN + (node.x - x.0) * scale, MARGIN + (node.y - y.0) * scale)
    };
    let height = if drawing.nodes.is_empty() { SIDE } else { 2.0 * MARGIN + (y.1 - y.0) * scale };
    let mut svg = format!("<svg viewBox=\"0 0 {SIDE} {height:.1}\" role=\"img\">\n");
    for &(a, b) in &drawing.edges {
        let ((ax, ay), (bx, by)) = (place(a), place(b));
        let _ = writeln!(
            svg,
            "<line x1=\"{ax:.1}\" y1=\"{ay:.1}\" x2=\"{bx:.1}\" y2=\"{by:.1}\" stroke=\"currentColor\" stroke-opacity=\"0.25\"/>"
        );
    }
    let colour = |class: u32| PALETTE[class as usize % PALETTE.len()];
    let name = |class: u32| {
        let known = names.get(class as usize).cloned();
        escape(&known.unwrap_or_else(|| format!("class {class}")))
    };
    for (k, node) in drawing.nodes.iter().enumerate() {
        let (cx, cy) = place(k);
        let ring = if node.label == node.prediction {
            String::new()
        } else {
            format!(" stroke=\"{}\" stroke-width=\"4\"", colour(node.label))
        };
        let _ = writeln!(
            svg,
            "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"8\" fill=\"{}\"{ring}><title>node {k}: {} (is {})</title></circle>",
            colour(node.prediction),
            name(node.prediction),
            name(node.label)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::super::run::Node;
    use super::*;

    #[test]
    fn one_node_or_none_is_a_picture_too() {
        let node = |x| Node { x, y: 1.0, label: 0, prediction: 1 };
        for nodes in [vec![], vec![node(0.0)], vec![node(0.0), node(1e-3)]] {
            let edges = if nodes.len() > 1 { vec![(0, 1)] } else { vec![] };
            let svg = to_svg(&Drawing { nodes, edges }, &["<b>".into()]);
            assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<b>"), "{svg}");
        }
    }
}
