//! Images on the CPU: the host's own, shared.

use crate::cpu::Cpu;
use crate::cpu::buffer::Buffer;
use crate::cpu::memory::picked;
use crate::cpu::packed::check_len;
use crate::{DataSets, EngineError, Images, Order, Picks, Result};

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
                    images.standardise(pick.sample, pick.mirrored, order, x);
                });
                Ok(())
            }
        }
    )*};
}
data_sets!(f32, f64);
