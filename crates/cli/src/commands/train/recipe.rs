//! What a training does beside plain steps.

use subdeq::Stopping;
use subdeq::model::{ClassifierSpec, CoreSpec, Lipschitz};
use subdeq::train::TrainConfig;

use crate::blocks::cores_mut;
use crate::failure::Failure;
use crate::recipe::Wishes;

/// How images are trained on; nothing of it is done if nothing is said.
///
/// What is random is a function of seed, epoch, image and entry: the same with any number of threads, on the CPU and on a GPU, and
/// in a run that goes on with --resume.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Recipe")]
pub struct RecipeOptions {
    /// Batch norm on the injection, before its ReLU if the model has one; certificates and radii are those of the network with its
    /// statistics folded in.
    #[arg(long)]
    injection_norm: bool,
    /// Height and width of the equilibrium's kernels on images: 1, 3 or 5, other ones than 3 for monotone models [default: 3].
    #[arg(long, value_name = "SIDE")]
    kernel: Option<usize>,
    /// Share of an image's numbers that a training step drops.
    #[arg(long, value_name = "P")]
    dropout_input: Option<f64>,
    /// Share of the last layer's features that a training step drops.
    #[arg(long, value_name = "P")]
    dropout_head: Option<f64>,
    /// Share of each label that is spread over all classes.
    #[arg(long, value_name = "S")]
    label_smoothing: Option<f64>,
    /// Epochs in which the learning rate rises from 0 to --lr, before the cosine.
    #[arg(long, value_name = "EPOCHS")]
    warm_up: Option<usize>,
    /// What --weight-decay is: adam's L2 term in the gradient, or a decay of every parameter by itself (adamw) [default: adam].
    #[arg(long, value_enum)]
    optimiser: Option<Optimiser>,
    /// What is done to training images: flip (left to right, every other one), cropN (moved by up to N pixels in each direction,
    /// black beyond the border), both (flip,crop4), or none [default: none; flip for tiny-imagenet].
    #[arg(long, value_name = "LIST", value_parser = Augmentation::parse)]
    augment: Option<Augmentation>,
    /// Keep the gain of the whole network, from pixels between 0 and 1 to logits (2-norms), at this number, for certified radii
    /// (`subdeq eval RUN --radii 0.5,1`): the injection an isometry, the equilibrium reflected, no batch norm. The smaller, the more
    /// is certified and the less is right; 1 to 10 for MNIST. Makes monotone-tied the model, 0.002 the learning rate and 0 the weight
    /// decay, if nothing else is said.
    #[arg(long, value_name = "GAMMA")]
    lipschitz: Option<f64>,
}

/// What a training with a bounded gain does if nothing else is said; not tuned (RESULTS.md has what they gave on MNIST).
const BOUNDED_MODEL: &str = "monotone-tied";
const BOUNDED_RATE: f64 = 2e-3;
/// What a solve's error takes from a radius is to be nothing beside it.
const BOUNDED_TOLERANCE: f64 = 1e-5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Optimiser {
    Adam,
    Adamw,
}

impl Optimiser {
    fn name(decoupled: bool) -> &'static str {
        if decoupled { "adamw" } else { "adam" }
    }
}

/// What is done to training images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Augmentation {
    flip: bool,
    crop: u16,
}

impl Augmentation {
    /// `flip`, `crop4`, `flip,crop4`, `none`.
    fn parse(text: &str) -> Result<Self, String> {
        let mut all = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| *part != "none") {
            let pixels = part.strip_prefix("crop").and_then(|pixels| pixels.parse::<u16>().ok());
            match (part, pixels) {
                ("flip", _) => all.flip = true,
                (_, Some(pixels)) if pixels > 0 => all.crop = pixels,
                _ => {
                    return Err(format!(
                        "`{part}` is nothing that is done to images: write flip, cropN (N pixels, such as crop4), both with a \
                         comma between them, or none"
                    ));
                }
            }
        }
        Ok(all)
    }

    fn name(self) -> String {
        match (self.flip, self.crop) {
            (false, 0) => "none".to_owned(),
            (true, 0) => "flip".to_owned(),
            (false, pixels) => format!("crop{pixels}"),
            (true, pixels) => format!("flip,crop{pixels}"),
        }
    }
}

/// Name of an option, what is asked for, and what a run has.
pub type Asked = (&'static str, Option<String>, String);

impl RecipeOptions {
    /// What is asked for where a gain is to be bounded and nothing else is said.
    pub fn wishes(&self, wishes: Wishes) -> Wishes {
        if self.lipschitz.is_none() {
            return wishes;
        }
        Wishes {
            model: wishes.model.or_else(|| Some(BOUNDED_MODEL.to_owned())),
            rate: wishes.rate.or(Some(BOUNDED_RATE)),
            weight_decay: wishes.weight_decay.or(Some(0.0)),
            ..wishes
        }
    }

    /// Puts what was asked for into a config.
    pub fn apply(&self, config: &mut TrainConfig) -> Result<(), Failure> {
        let TrainConfig { recipe, data, model, .. } = config;
        model.injection_norm |= self.injection_norm;
        model.deeper.iter_mut().for_each(|block| block.injection_norm |= self.injection_norm);
        if let Some(side) = self.kernel {
            set_kernel(model, side)?;
        }
        recipe.dropout_input = self.dropout_input.unwrap_or(recipe.dropout_input);
        recipe.dropout_head = self.dropout_head.unwrap_or(recipe.dropout_head);
        recipe.label_smoothing = self.label_smoothing.unwrap_or(recipe.label_smoothing);
        recipe.warm_up = self.warm_up.unwrap_or(recipe.warm_up);
        recipe.decoupled_decay |= self.optimiser == Some(Optimiser::Adamw);
        if let Some(Augmentation { flip, crop }) = self.augment {
            (data.flips, recipe.crop) = (flip, crop);
        }
        if let Some(gain) = self.lipschitz {
            let deviation = data.deviation.iter().fold(f64::INFINITY, |least, &d| least.min(d));
            model.lipschitz = Some(Lipschitz { gain, per_pixel: 1.0 / deviation });
            let forward = Stopping::relative(BOUNDED_TOLERANCE);
            cores_mut(model).for_each(|core| {
                if let CoreSpec::Equilibrium { stopping, .. } = core {
                    stopping.rule = forward.rule;
                }
            });
        }
        if model.lipschitz.is_some() && !self.injection_norm {
            // Blocks have one if nothing is said.
            model.injection_norm = false;
            model.deeper.iter_mut().for_each(|block| block.injection_norm = false);
        }
        config.check().map_err(Failure::usage)
    }

    /// What was asked for beside what a run has.
    pub fn asked(&self, stored: &TrainConfig) -> Vec<Asked> {
        let TrainConfig { recipe, data, model, .. } = stored;
        let share = |share: Option<f64>| share.map(|share| share.to_string());
        let augmentation = Augmentation { flip: data.flips, crop: recipe.crop };
        vec![
            (
                "--injection-norm",
                self.injection_norm.then(|| "true".to_owned()),
                model.injection_norm.to_string(),
            ),
            (
                "--kernel",
                self.kernel.map(|side| side.to_string()),
                kernel_of(&model.core).map_or("nothing".to_owned(), |side| side.to_string()),
            ),
            ("--dropout-input", share(self.dropout_input), recipe.dropout_input.to_string()),
            ("--dropout-head", share(self.dropout_head), recipe.dropout_head.to_string()),
            ("--label-smoothing", share(self.label_smoothing), recipe.label_smoothing.to_string()),
            ("--warm-up", self.warm_up.map(|epochs| epochs.to_string()), recipe.warm_up.to_string()),
            (
                "--optimiser",
                self.optimiser.map(|it| Optimiser::name(it == Optimiser::Adamw).to_owned()),
                Optimiser::name(recipe.decoupled_decay).to_owned(),
            ),
            ("--augment", self.augment.map(Augmentation::name), augmentation.name()),
            (
                "--lipschitz",
                share(self.lipschitz),
                model.lipschitz.map_or("nothing".to_owned(), |bound| bound.gain.to_string()),
            ),
        ]
    }

    /// An option that was given, if one was.
    pub fn given(&self) -> Option<&'static str> {
        let given = [
            ("--injection-norm", self.injection_norm),
            ("--kernel", self.kernel.is_some()),
            ("--dropout-input", self.dropout_input.is_some()),
            ("--dropout-head", self.dropout_head.is_some()),
            ("--label-smoothing", self.label_smoothing.is_some()),
            ("--warm-up", self.warm_up.is_some()),
            ("--optimiser", self.optimiser.is_some()),
            ("--augment", self.augment.is_some()),
            ("--lipschitz", self.lipschitz.is_some()),
        ];
        given.into_iter().find_map(|(option, given)| given.then_some(option))
    }
}

/// Gives the equilibria of a convolutional model kernels of that side.
fn set_kernel(model: &mut ClassifierSpec, side: usize) -> Result<(), Failure> {
    if model.pool.is_none() {
        return Err(Failure::usage(
            "a dense model has no kernels: leave --kernel out, or ask for --arch conv",
        ));
    }
    for core in cores_mut(model) {
        let CoreSpec::Equilibrium { architecture, .. } = core else {
            return Err(Failure::usage(format!(
                "`{}` has no equilibrium with kernels: leave --kernel out",
                core.name()
            )));
        };
        *architecture = architecture.clone().with_kernel(side).map_err(Failure::usage)?;
    }
    Ok(())
}

fn kernel_of(core: &CoreSpec) -> Option<usize> {
    match core {
        CoreSpec::Equilibrium { architecture, .. } => Some(architecture.kernel()),
        _ => None,
    }
}

/// What a config does beside plain steps, in words; nothing if nothing.
pub fn in_words(config: &TrainConfig) -> Option<String> {
    let TrainConfig { recipe, data, model, .. } = config;
    let augmentation = Augmentation { flip: data.flips, crop: recipe.crop };
    let parts = [
        kernel_of(&model.core).filter(|&side| side != 3).map(|side| format!("{side}x{side} kernels")),
        model.injection_norm.then(|| "batch norm on the injection".to_owned()),
        (recipe.dropout_input > 0.0).then(|| format!("dropout {} on the input", recipe.dropout_input)),
        (recipe.dropout_head > 0.0).then(|| format!("dropout {} before the head", recipe.dropout_head)),
        (recipe.label_smoothing > 0.0).then(|| format!("label smoothing {}", recipe.label_smoothing)),
        (recipe.warm_up > 0).then(|| format!("warm-up over {} epochs", recipe.warm_up)),
        recipe.decoupled_decay.then(|| "AdamW".to_owned()),
        (augmentation != Augmentation::default()).then(|| augmentation.name()),
        model.lipschitz.map(|bound| format!("a gain of at most {} from pixels to logits", bound.gain)),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn augmentations_are_read_and_named() {
        for text in ["none", "flip", "crop4", "flip,crop12"] {
            assert_eq!(Augmentation::parse(text).unwrap().name(), text);
        }
        assert_eq!(Augmentation::parse("crop2, flip").unwrap().name(), "flip,crop2");
        for wrong in ["", "flips", "crop", "crop0", "crop-1", "crop99999", "flip;crop4"] {
            let why = Augmentation::parse(wrong).unwrap_err();
            assert!(why.contains("write flip, cropN"), "{why}");
        }
    }
}
