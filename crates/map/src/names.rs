//! Maps by the names that the paper, the theory and the program give them.

use crate::{Activation, BadMap, Form, Groups, Layout, Map, PNorm, Parametrisation, Parts, WeightClass};

impl Map {
    /// The names that [`Map::named`] understands: the paper's models, then the sound ones.
    pub const NAMES: [&'static str; 29] = [
        "subdeq-tanh",
        "subdeq-normalized-tanh",
        "subdeq-abs-normalized-tanh",
        "subdeq-normalized-power-tanh",
        "subdeq-power-tanh",
        "mondeq-relu",
        "mondeq-tanh",
        "appnp",
        "appnp-tanh",
        "appnp-normalized-tanh",
        "appnp-tanh-2",
        "appnp-normalized-tanh-2",
        "appnp-projected",
        "appnp-projected-tanh",
        "hyper-appnp",
        "hyper-appnp-tanh",
        "hyper-power",
        "monotone",
        "monotone-product",
        "monotone-tied",
        "monotone-tanh",
        "excitatory",
        "row-signed",
        "split-sign",
        "divisive",
        "rational",
        "power-ratio",
        "gains",
        "monomial",
    ];

    /// The teleport probability of the graph models unless one is given.
    pub const TELEPORT: f64 = 0.1;

    /// The power of `hyper-power`'s means unless one is given.
    pub const MEAN_POWER: f64 = 2.0;

    /// The radius of the balls that rows of the projected graph models lie in.
    pub const RADIUS: f64 = 1.0;

    /// Whether a name is that of a graph's map.
    #[must_use]
    pub fn is_of_graph(name: &str) -> bool {
        Map::NAMES.contains(&name) && (name.contains("appnp") || name.starts_with("hyper-"))
    }

    /// The map of that name, with the constants that the models of that name are trained with. `subdeq-power-tanh` is what
    /// the authors' program computes; the printed `tanh(W z)^0.99 + y` is not a number wherever `(W z)_i < 0`. The weights of
    /// `monotone-tied` are `A`, with `b = 1`.
    ///
    /// # Errors
    /// A name that is not one of [`Map::NAMES`].
    pub fn named(name: &str, layout: Layout) -> Result<Map, BadMap> {
        use Activation::{Identity, Relu, Softsign, Tanh};
        let normalised = |map: Map| map.normalised(PNorm::Inf, Groups::of_layout(layout));
        let absolute = |map: Map| normalised(map.inner()?.for_weights(WeightClass::Nonnegative)?);
        let monotone = |s| Map::single(s, 0.0)?.inner()?.for_weights(WeightClass::Monotone { margin: 0.0 });
        let graph = |s, shift| Map::of_form(Form::Graph { teleport: Map::TELEPORT }, s, shift);
        let ball = |s| graph(s, 0.0)?.projected(Groups::GraphRows, Map::RADIUS);
        let columns = |map: Map| map.normalised(PNorm::Inf, Groups::GraphColumns);
        match name {
            "subdeq-tanh" => Map::single(Tanh, 1.2),
            "subdeq-normalized-tanh" => normalised(Map::single(Tanh, 1.603)?),
            "subdeq-abs-normalized-tanh" => absolute(Map::single(Tanh, 1.2)?),
            "subdeq-normalized-power-tanh" => absolute(Map::single(Tanh, 0.0)?.with_power(0.99)?),
            "subdeq-power-tanh" => {
                Map::single(Tanh, 1.01)?.with_power(if layout == Layout::Dense { 0.999 } else { 0.9999 })
            }
            "mondeq-relu" | "monotone" | "monotone-product" => monotone(Relu),
            "mondeq-tanh" | "monotone-tanh" => monotone(Tanh),
            "monotone-tied" => {
                let form = Form::Tied { margin: 1.0, skew: Parametrisation::FIRST_SKEW };
                Map::of_form(form, Relu, 0.0)?.inner()
            }
            "appnp" | "hyper-appnp" => graph(Identity, 0.0),
            "hyper-appnp-tanh" => graph(Tanh, 0.0),
            "hyper-power" => {
                let form = Form::PowerMean { teleport: Map::TELEPORT, p: Map::MEAN_POWER };
                Map::of_form(form, Identity, 0.0)
            }
            "appnp-projected" => ball(Identity),
            "appnp-projected-tanh" => ball(Tanh),
            "appnp-tanh" => graph(Tanh, 1.2),
            "appnp-normalized-tanh" => columns(graph(Tanh, 1.2)?),
            "appnp-tanh-2" => graph(Tanh, 1.2)?.inner(),
            "appnp-normalized-tanh-2" => columns(graph(Tanh, 1.2)?.inner()?),
            "excitatory" => Map::single(Tanh, 1.2)?.for_weights(WeightClass::Nonnegative),
            "row-signed" => Map::single(Softsign, 1.2)?.for_weights(WeightClass::RowSigned),
            "split-sign" => Map::split_sign(Softsign, 1.2),
            "divisive" => Map::of_form(Form::Divisive { q: 1.0 }, Tanh, 0.4),
            "rational" => Map::of_form(Form::Rational { q: 1.0 }, Softsign, 0.14),
            "power-ratio" => Map::of_form(Form::PowerRatio { p: 0.49, e: 1.0 }, Identity, 0.0),
            "gains" => Map::gains(Softsign, 0.2),
            "monomial" => Map::of_form(Form::Monomial, Tanh, 1.2),
            "node-relu" | "node-tanh" | "explicit-tanh" => {
                Err(BadMap::new(format!("`{name}` is not an equilibrium: it has no fixed point to certify")))
            }
            _ => Err(BadMap::new(format!("there is no map `{name}`; known are {}", Map::NAMES.join(", ")))),
        }
    }

    /// `W+ s(P z) - W- s(N z) + tie (W- 1) + y + shift` (A3') with the usual tie.
    ///
    /// # Errors
    /// An activation or a shift that makes no sense.
    pub fn gains(activation: Activation, shift: f64) -> Result<Map, BadMap> {
        let plain = Parts::from(Map::of_form(Form::Gains, activation, shift)?);
        Map::try_from(Parts { tie: Map::usual_tie(activation), ..plain })
    }
}
