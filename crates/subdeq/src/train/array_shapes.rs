//! The shapes of a classifier's arrays, which follow from their names and lengths.

/// Arrays by name and shape.
pub type ArrayShapes = Vec<(String, Vec<usize>)>;

/// The shapes of arrays by name and length, of a model on images (with 3x3 kernels, those of an equation 1x1 or 5x5 as well) or on
/// vectors.
///
/// A layer has as many outputs as its bias has numbers; the weights of an equation are square, between the outputs of the injection
/// before it. Everything else is one number per output.
#[must_use]
pub fn array_shapes(sizes: &[(String, u64)], images: bool) -> ArrayShapes {
    let length = |name: &str| sizes.iter().find(|(given, _)| given == name).map(|&(_, len)| len as usize);
    let shape = |name: &str, len: usize| {
        // `block2.core.weight`: a place, a layer, a part.
        let (layer, part) = name.rsplit_once('.')?;
        let (place, kind) = layer.rsplit_once('.').map_or(("", layer), |(place, kind)| (place, kind));
        let beside =
            |layer: &str| if place.is_empty() { layer.to_owned() } else { format!("{place}.{layer}") };
        let rows = match (kind, part) {
            ("core", "weight" | "a" | "b" | "gain") => length(&beside("injection0.bias"))?,
            (_, "weight") => length(&format!("{layer}.bias"))?,
            _ => return None,
        };
        let columns = len.checked_div(rows).filter(|&columns| columns * rows == len)?;
        match kind {
            "core" if columns == rows && (part == "gain" || !images) => Some(vec![rows, rows]),
            "core" => {
                let side = (columns / rows).isqrt();
                (columns == side * side * rows).then(|| vec![rows, rows, side, side])
            }
            "head" => Some(vec![rows, columns]),
            _ if images => Some(vec![rows, columns / 9, 3, 3]),
            _ => Some(vec![rows, columns]),
        }
    };
    let shaped = |(name, len): &(String, u64)| {
        let len = *len as usize;
        (name.clone(), shape(name, len).unwrap_or_else(|| vec![len]))
    };
    sizes.iter().map(shaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_follow_from_names() {
        let sizes = |arrays: &[(&str, u64)]| -> Vec<(String, u64)> {
            arrays.iter().map(|&(name, len)| (name.to_owned(), len)).collect()
        };
        let arrays = sizes(&[
            ("core.a", 4 * 4 * 9),
            ("core.b", 1),
            ("core.gain", 16),
            ("injection0.weight", 4 * 3 * 9),
            ("injection0.bias", 4),
            ("injection0.norm.scale", 4),
            ("block2.core.weight", 25 * 25),
            ("block2.injection0.weight", 5 * 4 * 9),
            ("block2.injection0.bias", 5),
            ("head.weight", 2 * 45),
            ("head.bias", 2),
            ("norm.running_mean", 5),
        ]);
        let expected: [&[usize]; 12] = [
            &[4, 4, 3, 3],
            &[1],
            &[4, 4],
            &[4, 3, 3, 3],
            &[4],
            &[4],
            &[5, 5, 5, 5],
            &[5, 4, 3, 3],
            &[5],
            &[2, 45],
            &[2],
            &[5],
        ];
        for ((name, shape), expected) in array_shapes(&arrays, true).into_iter().zip(expected) {
            assert_eq!(shape, expected, "{name}");
        }
        let dense = sizes(&[("injection0.weight", 4 * 27), ("injection0.bias", 4), ("core.weight", 16)]);
        let shapes: Vec<Vec<usize>> =
            array_shapes(&dense, false).into_iter().map(|(_, shape)| shape).collect();
        assert_eq!(shapes, [vec![4, 27], vec![4], vec![4, 4]]);
    }
}
