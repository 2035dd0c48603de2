//! The paper's results on images: Table 3 and the appendix table (here Table 5), test error in percent.

/// A column of the image tables: a data set and a kind of layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
#[value(rename_all = "kebab-case")]
pub enum Column {
    /// MNIST, dense layers.
    MnistDense,
    /// MNIST, convolutions.
    MnistConv,
    /// CIFAR-10, convolutions.
    Cifar10,
    /// Street View House Numbers, convolutions.
    Svhn,
    /// Tiny ImageNet, convolutions.
    TinyImagenet,
}

/// One printed result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// The model's name in this program.
    pub model: &'static str,
    /// Mean of the paper's runs.
    pub mean: f64,
    /// Their standard deviation.
    pub deviation: f64,
}

impl Published {
    /// How far a result is from the printed one, in printed standard deviations; negative is better.
    pub fn distance(&self, error: f64) -> f64 {
        (error - self.mean) / self.deviation
    }
}

const fn row(model: &'static str, mean: f64, deviation: f64) -> Published {
    Published { model, mean, deviation }
}

impl Column {
    /// All of them, as the paper orders them.
    pub const ALL: [Column; 5] =
        [Column::MnistDense, Column::MnistConv, Column::Cifar10, Column::Svhn, Column::TinyImagenet];

    /// The name on the command line and of files.
    pub fn name(self) -> &'static str {
        match self {
            Column::MnistDense => "mnist-dense",
            Column::MnistConv => "mnist-conv",
            Column::Cifar10 => "cifar10",
            Column::Svhn => "svhn",
            Column::TinyImagenet => "tiny-imagenet",
        }
    }

    /// The name for people.
    pub fn title(self) -> &'static str {
        match self {
            Column::MnistDense => "MNIST (dense)",
            Column::MnistConv => "MNIST (convolutional)",
            Column::Cifar10 => "CIFAR-10",
            Column::Svhn => "SVHN",
            Column::TinyImagenet => "Tiny ImageNet",
        }
    }

    /// The data set.
    pub fn data(self) -> &'static str {
        match self {
            Column::MnistDense | Column::MnistConv => "mnist",
            Column::Cifar10 => "cifar10",
            Column::Svhn => "svhn",
            Column::TinyImagenet => "tiny-imagenet",
        }
    }

    /// Epochs of the published program.
    pub fn epochs(self) -> usize {
        crate::recipe::usual_epochs(self.data(), self.convolutional())
    }

    /// Whether its layers are convolutions.
    pub fn convolutional(self) -> bool {
        self != Column::MnistDense
    }

    /// The column that a run belongs to, if the paper has it.
    pub fn of(data: &str, convolutional: bool) -> Option<Column> {
        Column::ALL.into_iter().find(|c| c.data() == data && c.convolutional() == convolutional)
    }

    /// The rows of Table 3.
    pub fn table3(self) -> &'static [Published] {
        match self {
            Column::MnistDense => {
                const {
                    &[
                        row("subdeq-normalized-tanh", 2.088, 0.1405),
                        row("subdeq-tanh", 1.92, 0.102),
                        row("node-relu", 2.356, 0.0689),
                        row("node-tanh", 3.296, 0.1082),
                        row("mondeq-relu", 2.056, 0.0484),
                        row("mondeq-tanh", 2.736, 0.7491),
                        row("explicit-tanh", 2.052, 0.1452),
                    ]
                }
            }
            Column::MnistConv => {
                const {
                    &[
                        row("subdeq-normalized-tanh", 1.354, 0.98),
                        row("subdeq-tanh", 0.706, 0.011),
                        row("node-relu", 1.184, 0.3845),
                        row("node-tanh", 0.826, 0.0432),
                        row("mondeq-relu", 0.654, 0.0662),
                        row("mondeq-tanh", 1.096, 0.0589),
                        row("explicit-tanh", 0.876, 0.0739),
                    ]
                }
            }
            Column::Cifar10 => {
                const {
                    &[
                        row("subdeq-normalized-tanh", 28.364, 0.377),
                        row("subdeq-tanh", 27.946, 1.7564),
                        row("node-relu", 33.58, 1.2882),
                        row("node-tanh", 28.792, 1.3343),
                        row("mondeq-relu", 24.414, 0.6521),
                        row("mondeq-tanh", 35.618, 1.1766),
                        row("explicit-tanh", 27.157, 0.4154),
                    ]
                }
            }
            Column::Svhn => {
                const {
                    &[
                        row("subdeq-normalized-tanh", 9.3562, 0.2122),
                        row("subdeq-tanh", 10.3987, 0.41296),
                        row("node-relu", 33.8253, 11.3008),
                        row("node-tanh", 22.277, 2.8740),
                        row("mondeq-relu", 11.0356, 0.319),
                        row("mondeq-tanh", 17.8849, 0.9747),
                        row("explicit-tanh", 12.7243, 0.1024),
                    ]
                }
            }
            Column::TinyImagenet => {
                const {
                    &[
                        row("subdeq-normalized-tanh", 70.1791, 0.3666),
                        row("subdeq-tanh", 74.6633, 0.1511),
                        row("mondeq-relu", 85.49, 0.2406),
                        row("explicit-tanh", 73.76, 1.4323),
                    ]
                }
            }
        }
    }

    /// The rows that the appendix table adds; its other two are those of Table 3.
    pub fn appendix(self) -> &'static [Published] {
        match self {
            Column::MnistDense => {
                const {
                    &[
                        row("subdeq-abs-normalized-tanh", 2.437, 0.0788),
                        row("subdeq-normalized-power-tanh", 2.568, 0.0495),
                        row("subdeq-power-tanh", 1.964, 0.125),
                    ]
                }
            }
            Column::MnistConv => {
                const {
                    &[
                        row("subdeq-abs-normalized-tanh", 1.829, 0.0888),
                        row("subdeq-normalized-power-tanh", 1.773, 0.1948),
                        row("subdeq-power-tanh", 1.316, 0.0459),
                    ]
                }
            }
            Column::Cifar10 => {
                const {
                    &[
                        row("subdeq-abs-normalized-tanh", 35.809, 0.5953),
                        row("subdeq-normalized-power-tanh", 33.864, 0.7469),
                        row("subdeq-power-tanh", 30.871, 0.2268),
                    ]
                }
            }
            Column::Svhn => {
                const {
                    &[
                        row("subdeq-abs-normalized-tanh", 25.3903, 3.7394),
                        row("subdeq-normalized-power-tanh", 23.4688, 4.7033),
                        row("subdeq-power-tanh", 19.4077, 0.1346),
                    ]
                }
            }
            Column::TinyImagenet => &[],
        }
    }

    /// What the paper prints for a model.
    pub fn published(self, model: &str) -> Option<&'static Published> {
        self.table3().iter().chain(self.appendix()).find(|row| row.model == model)
    }

    /// The lowest error in the paper's column.
    pub fn best(self) -> f64 {
        self.table3().iter().chain(self.appendix()).map(|row| row.mean).fold(f64::INFINITY, f64::min)
    }
}
