//! `--blocks 64,128,128`: the widths of a network's blocks, and what is not said about them.

use subdeq::Layout;
use subdeq::model::{BlockSpec, ClassifierSpec, CoreSpec};

use crate::failure::Failure;

/// Images whose sides are smaller are not made smaller still: 3x3 kernels need as much.
const SMALLEST_SIDE: usize = 6;

/// Widths of blocks, the first one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks(Vec<usize>);

impl Blocks {
    /// `64,128,128`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let widths: Result<Vec<usize>, _> = text.split(',').map(|width| width.trim().parse()).collect();
        match widths {
            Ok(widths) if !widths.contains(&0) => Ok(Self(widths)),
            _ => Err("write the width of each block with commas between them, such as 64,128,128".to_owned()),
        }
    }

    /// Those of a model.
    pub fn of(model: &ClassifierSpec) -> Self {
        let deeper = model.deeper.iter().map(|block| block.hidden);
        Self(std::iter::once(model.hidden).chain(deeper).collect())
    }

    /// Makes a model one of these blocks: injections with batch norm, all but the first with a stride of 2 where that divides the
    /// sides of what they read, and what the last block has pooled by `window`, or to as many cells as the window `usual` of a model
    /// of one block leaves.
    pub fn apply(&self, model: &mut ClassifierSpec, window: Option<usize>, usual: usize) {
        let Some((&first, others)) = self.0.split_first() else { return };
        let conv = model.pool.is_some();
        let (mut height, mut width) = (model.height, model.width);
        let cells = (height.min(width) / usual.max(1)).max(1);
        model.hidden = first;
        model.injection_norm = true;
        model.deeper.clear();
        for &hidden in others {
            let halved = conv && height % 2 == 0 && width % 2 == 0 && height.min(width) >= SMALLEST_SIDE;
            let stride = if halved { 2 } else { 1 };
            (height, width) = (height / stride, width / stride);
            let block = BlockSpec {
                hidden,
                stride,
                pool: conv.then_some(1),
                injection_norm: true,
                core: model.core.clone(),
            };
            model.deeper.push(block);
        }
        if conv {
            let last = Some(window.unwrap_or(height.min(width).div_ceil(cells)));
            match model.deeper.last_mut() {
                Some(block) => (model.pool, block.pool) = (Some(1), last),
                None => model.pool = last,
            }
        }
    }
}

impl std::fmt::Display for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let widths: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&widths.join(","))
    }
}

/// The cores of all blocks.
pub fn cores_mut(model: &mut ClassifierSpec) -> impl Iterator<Item = &mut CoreSpec> {
    std::iter::once(&mut model.core).chain(model.deeper.iter_mut().map(|block| &mut block.core))
}

/// The pooling window in front of the head.
pub fn last_window(model: &ClassifierSpec) -> Option<usize> {
    model.deeper.last().map_or(model.pool, |block| block.pool)
}

/// Changes it.
pub fn set_last_window(model: &mut ClassifierSpec, window: usize) {
    match model.deeper.last_mut() {
        Some(block) => block.pool = Some(window),
        None => model.pool = Some(window),
    }
}

/// Refuses to make vectors of a network's images, or images of its vectors: its blocks would be others.
pub fn keep_layout(model: &ClassifierSpec, layout: Layout) -> Result<(), Failure> {
    let before = if model.pool.is_some() { Layout::Conv } else { Layout::Dense };
    if layout != before && !model.deeper.is_empty() {
        return Err(Failure::usage(
            "--arch is another than that of the config's blocks: say them anew with --blocks",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use subdeq::Init;

    fn model(side: usize, pool: Option<usize>) -> ClassifierSpec {
        let layout = if pool.is_some() { Layout::Conv } else { Layout::Dense };
        ClassifierSpec {
            height: side,
            width: side,
            channels: 1,
            hidden: 7,
            pool,
            injection_norm: false,
            classes: 2,
            core: CoreSpec::named("monotone-tied", layout).unwrap(),
            init: Init::Release,
            deeper: Vec::new(),
            lipschitz: None,
        }
    }

    #[test]
    fn blocks_halve_images_while_they_can() {
        let made = |side, window| {
            let mut model = model(side, Some(6));
            Blocks::parse("8, 16,16,4").unwrap().apply(&mut model, window, side / 4);
            let deeper: Vec<_> = model.deeper.iter().map(|b| (b.hidden, b.stride, b.pool)).collect();
            assert!(model.injection_norm && (model.hidden, model.pool) == (8, Some(1)));
            assert_eq!(Blocks::of(&model).to_string(), "8,16,16,4");
            deeper
        };
        assert_eq!(made(28, None), [(16, 2, Some(1)), (16, 2, Some(1)), (4, 1, Some(2))]);
        assert_eq!(made(32, Some(2)), [(16, 2, Some(1)), (16, 2, Some(1)), (4, 2, Some(2))]);
        assert_eq!(made(8, None), [(16, 2, Some(1)), (16, 1, Some(1)), (4, 1, Some(1))]);
        let mut dense = model(8, None);
        Blocks::parse("8,16").unwrap().apply(&mut dense, None, 1);
        assert_eq!((dense.pool, dense.deeper[0].pool, dense.deeper[0].stride), (None, None, 1));
        for wrong in ["", "8,", "8,0", "8;16", "-1"] {
            assert!(Blocks::parse(wrong).unwrap_err().contains("64,128,128"), "{wrong}");
        }
    }
}
