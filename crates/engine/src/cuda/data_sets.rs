//! Images on a GPU: bytes, labels, and a table that standardises them.

use super::Cuda;
use super::gpu::{Grid, Memory};
use super::kernel::launch;
use super::memory::{CudaIntegers, Known, picked};
use crate::cpu::packed::check_len;
use crate::{Crop, DataSets, Dropout, EngineError, Images, MIRRORED, Order, Picks, Result};

/// A set of labelled images in a GPU's memory.
#[derive(Debug)]
pub struct CudaImages {
    pixels: Memory<u8>,
    labels: Memory<u32>,
    table: Memory<f32>,
    count: usize,
    shape: [usize; 3],
    classes: usize,
}

impl DataSets for Cuda {
    type Images = CudaImages;

    fn images(&self, images: &Images, classes: usize) -> Result<CudaImages> {
        if let Some(index) = images.labels().iter().position(|&label| label as usize >= classes) {
            return Err(EngineError::Invalid(format!(
                "the label of image {index} is {}, but there are {classes} classes, numbered from 0",
                images.label(index)
            )));
        }
        Ok(CudaImages {
            pixels: Memory::upload(&self.gpu, images.pixels())?,
            labels: Memory::upload(&self.gpu, images.labels())?,
            table: Memory::upload(&self.gpu, images.table().as_flattened())?,
            count: images.len(),
            shape: images.shape(),
            classes,
        })
    }

    fn gather(
        &self,
        images: &CudaImages,
        picks: Picks<'_, CudaIntegers>,
        crop: Crop,
        order: Order,
        x: &mut Memory<f32>,
        labels: &mut CudaIntegers,
    ) -> Result<()> {
        let [channels, height, width] = images.shape;
        let len = channels * height * width;
        let count = picked(&picks, images.count)?;
        let [crop, crop_key] = crop.constants();
        check_len("the images of a batch", x.len(), count * len)?;
        check_len("the labels of a batch", labels.memory.len(), count)?;
        if count == 0 {
            return Ok(());
        }
        // Labels beyond the batch are still those of before.
        labels.known = Known::Below(labels.known.bound().max(images.classes as u32));
        launch!(
            self.gpu,
            "gather_images",
            Grid::entries(count * len),
            &images.pixels,
            &images.labels,
            &images.table,
            picks.list.memory.at(picks.range.start),
            count as u32,
            channels as u32,
            height as u32,
            width as u32,
            order == Order::ChannelsLast,
            crop,
            crop_key,
            x,
            &mut labels.memory,
        )
    }

    fn drop_entries(
        &self,
        len: usize,
        picks: Picks<'_, CudaIntegers>,
        dropout: &Dropout,
        x: &mut Memory<f32>,
    ) -> Result<()> {
        let rows = picked(&picks, MIRRORED as usize)?;
        check_len("the rows of a batch", x.len(), rows * len)?;
        if rows * len == 0 {
            return Ok(());
        }
        let [key, threshold] = dropout.constants();
        let list = picks.list.memory.at(picks.range.start);
        let scale = dropout.scale() as f32;
        launch!(
            self.gpu,
            "drop_entries",
            Grid::entries(rows * len),
            list,
            rows,
            len,
            key,
            threshold,
            scale,
            x
        )
    }
}
