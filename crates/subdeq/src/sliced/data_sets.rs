//! The samples of a batch that are this rank's.

use std::sync::atomic::Ordering;

use subdeq_engine::{Backend, Crop, DataSets, Dropout, Images, Order, Picks};

use super::memory::inner;
use super::{Engine, Sliced};

impl<D: Backend<Elem = f32>> Sliced<D> {
    /// Those of some samples that are this rank's.
    pub(super) fn own_picks<'a>(&self, picks: &Picks<'a, D::Integers>) -> Picks<'a, D::Integers> {
        let (start, own) = (picks.range.start, self.cut.share(picks.range.len()));
        Picks { list: picks.list, range: start + own.start..start + own.end }
    }
}

impl<D: Backend<Elem = f32>> DataSets for Sliced<D> {
    type Images = D::Images;

    inner! {
        fn images(&self, images: &Images, classes: usize) -> Engine<D::Images>;
    }

    fn gather(
        &self,
        images: &D::Images,
        picks: Picks<'_, D::Integers>,
        crop: Crop,
        order: Order,
        x: &mut D::Array,
        labels: &mut D::Integers,
    ) -> Engine<()> {
        self.batch.store(picks.range.len(), Ordering::Relaxed);
        match self.own_picks(&picks) {
            picks if picks.range.is_empty() => Ok(()),
            picks => self.noting(self.device.gather(images, picks, crop, order, x, labels)),
        }
    }

    fn drop_entries(
        &self,
        len: usize,
        picks: Picks<'_, D::Integers>,
        dropout: &Dropout,
        x: &mut D::Array,
    ) -> Engine<()> {
        match self.own_picks(&picks) {
            picks if picks.range.is_empty() => Ok(()),
            picks => self.noting(self.device.drop_entries(len, picks, dropout, x)),
        }
    }
}
