//! Images on the CPU: the host's own, shared.

use crate::cpu::Cpu;
use crate::cpu::buffer::Buffer;
use crate::cpu::memory::picked;
use crate::cpu::packed::check_len;
use crate::{Crop, DataSets, Dropout, EngineError, Images, MIRRORED, Order, Picks, Result, View};

macro_rules! data_sets {
    ($($t:ident),*) => {$(
        impl DataSets for Cpu<$t> {
            type Images = Images;

            fn images(&self, images: &Images, classes: usize) -> Result<Images> {
                match images.labels().iter().position(|&label| label as usize >= classes) {
                    None => Ok(images.clone()),
                    Some(index) => Err(EngineError::Invalid(format!(
                        "the label of image {index} is {}, but there are {classes} classes, numbered from 0",
                        images.label(index)
                    ))),
                }
            }

            fn gather(
                &self,
                images: &Images,
                picks: Picks<'_, Vec<u32>>,
                crop: Crop,
                order: Order,
                x: &mut Buffer<$t>,
                labels: &mut Vec<u32>,
            ) -> Result<()> {
                let len = images.image_len();
                let picked = picked(&picks, images.len())?;
                check_len("the images of a batch", x.len(), picked.len() * len)?;
                check_len("the labels of a batch", labels.len(), picked.len())?;
                let places = x.chunks_exact_mut(len).zip(labels);
                self.team().for_each(picked.zip(places), |(pick, (x, label))| {
                    *label = images.label(pick.sample);
                    let view = View { mirrored: pick.mirrored, shift: crop.shift(pick.sample as u32) };
                    images.standardise(pick.sample, view, order, x);
                });
                Ok(())
            }

            fn drop_entries(
                &self,
                len: usize,
                picks: Picks<'_, Vec<u32>>,
                dropout: &Dropout,
                x: &mut Buffer<$t>,
            ) -> Result<()> {
                let picked = picked(&picks, MIRRORED as usize)?;
                check_len("the rows of a batch", x.len(), picked.len() * len)?;
                let scale = dropout.scale() as $t;
                self.team().for_each(picked.zip(x.chunks_exact_mut(len.max(1))), |(pick, x)| {
                    for (column, x) in x.iter_mut().enumerate() {
                        *x = if dropout.keeps(pick.sample as u32, column as u32) { *x * scale } else { 0.0 };
                    }
                });
                Ok(())
            }
        }
    )*};
}
data_sets!(f32, f64);
