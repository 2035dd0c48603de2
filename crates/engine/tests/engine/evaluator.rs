//! What the kernels compute is what the equation says: random maps, weights and inputs against [`subdeq_map::Map::evaluate`].

use crate::common::*;
use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use subdeq_engine::cpu::Buffer;
use subdeq_engine::cpu::SimdReal;
use subdeq_engine::{
    Activation, Cpu, Device, Equilibria, Form, Injection, Operator, PNorm, Padding, SampleReport, ShapedMap,
};
use subdeq_map::{Map as Equation, Normalisation, Operator as Weights, Parts, WeightClass};

fn activations() -> impl Strategy<Value = Activation> {
    prop_oneof![
        Just(Activation::Tanh),
        Just(Activation::Sigmoid),
        (0.3..3.0).prop_map(|beta| Activation::Softplus { beta }),
        Just(Activation::Softsign),
        (-1.0..0.0, 0.1..2.0).prop_map(|(lo, hi)| Activation::HardTanh { lo, hi }),
        Just(Activation::Relu),
        (-0.5..1.5).prop_map(|slope| Activation::LeakyRelu { slope }),
        Just(Activation::Identity),
    ]
}

fn operators() -> impl Strategy<Value = Operator> {
    let conv =
        (1usize..4, 1usize..6, 1usize..6, any::<bool>()).prop_map(|(channels, height, width, wraps)| {
            // A torus at least as wide as the kernel.
            let (padding, least) = if wraps { (Padding::Circular, 3) } else { (Padding::Zero, 1) };
            Operator::Conv {
                channels,
                height: height.max(least),
                width: width.max(least),
                padding,
                kernel: 3,
            }
        });
    prop_oneof![(1usize..9).prop_map(|n| Operator::Dense { n }), conv]
}

/// An equation for an operator: any that the engine has kernels for.
fn equations(operator: Operator) -> impl Strategy<Value = Equation> {
    let forms = prop_oneof![
        4 => Just(Form::Single),
        1 => Just(Form::SplitSign),
        1 => (0.1..2.0).prop_map(|q| Form::Divisive { q }),
        1 => (0.1..2.0).prop_map(|q| Form::Rational { q }),
        1 => (0.1..2.0, 0.1..2.0).prop_map(|(p, e)| Form::PowerRatio { p, e }),
        1 => Just(Form::Gains),
    ];
    let norms = prop_oneof![
        2 => Just(None),
        1 => Just(Some(PNorm::Inf)),
        1 => prop_oneof![Just(1.0), Just(2.0), 1.0..6.0].prop_map(|p| Some(PNorm::Finite(p))),
    ];
    let powers = prop_oneof![2 => Just(1.0), 1 => 0.3..3.0];
    (forms, activations(), any::<bool>(), -0.5..2.0, powers, 0.0..1.5, norms).prop_map(
        move |(form, activation, inner, shift, power, tie, norm)| {
            let single = form == Form::Single;
            let activation = match form {
                Form::Rational { .. } => Activation::Softsign,
                Form::PowerRatio { .. } => Activation::Identity,
                _ => activation,
            };
            Equation::try_from(Parts {
                form,
                activation,
                injection: if single && inner { Injection::Inner } else { Injection::Outer },
                shift: if matches!(form, Form::PowerRatio { .. }) { 0.0 } else { shift },
                power: if single { power } else { 1.0 },
                tie: if form == Form::Gains { tie } else { 0.0 },
                weights: WeightClass::Any,
                normalisation: norm.map(|p| Normalisation { p, groups: groups(&operator) }),
                projection: None,
            })
            .unwrap()
        },
    )
}

fn signs(w: &[f64]) -> [Vec<f64>; 2] {
    [w.iter().map(|w| w.max(0.0)).collect(), w.iter().map(|w| (-w).max(0.0)).collect()]
}

/// The evaluator's order (channel after channel) of what the engine stores pixel after pixel; injections of the power ratio come
/// as two states.
fn planes(operator: &Operator, x: &[f64]) -> Vec<f64> {
    let Operator::Conv { channels, height, width, .. } = *operator else { return x.to_vec() };
    let pixels = height * width;
    let state = |x: &[f64]| (0..channels * pixels).map(|i| x[i % pixels * channels + i / pixels]).collect();
    x.chunks_exact(channels * pixels).flat_map(|x| -> Vec<f64> { state(x) }).collect()
}

/// One problem for both: the engine's arrays, and the evaluator's operators.
struct Case {
    problem: Problem,
    w: Weights,
    hidden: Option<Weights>,
    z: Vec<f64>,
}

impl Case {
    fn draw(operator: Operator, equation: Equation, seed: u64) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let map = ShapedMap::new(operator, equation).unwrap();
        let units = operator.units();
        let weights = |entries: Vec<f64>| match operator {
            Operator::Dense { n } => Weights::dense(n, entries),
            Operator::Conv { channels, height, width, padding, .. } => {
                Weights::conv(channels, height, width, padding, entries)
            }
        };
        let square = random(rng, operator.weight_len(), -1.0, 1.0);
        let (arrays, w, hidden) = match equation.form() {
            Form::Single => (vec![square.clone()], square, None),
            Form::Gains => {
                let gains = random(rng, units * units, -1.0, 1.0);
                // 1x1: the middle taps.
                let taps = operator.taps();
                let mut wide = vec![0.0; square.len()];
                gains.iter().enumerate().for_each(|(at, &gain)| wide[at * taps + taps / 2] = gain);
                (signs(&gains).into_iter().chain(signs(&square)).collect(), wide, Some(square))
            }
            _ => (signs(&square).to_vec(), square, None),
        };
        let signed = matches!(equation.form(), Form::Single | Form::SplitSign | Form::Gains);
        let least = if signed { -1.0 } else { 0.0 };
        let z = random(rng, operator.state_len(), least, 1.5);
        let y = random(rng, map.injection_len(), if signed { -0.3 } else { 0.0 }, 1.0);
        let hidden = hidden.map(|entries| weights(entries).unwrap());
        Self { problem: Problem { map, batch: 1, weights: arrays, y }, w: weights(w).unwrap(), hidden, z }
    }

    fn evaluate(&self, equation: Equation) -> Result<Vec<f64>, subdeq_map::Undefined> {
        let operator = self.problem.map.operator();
        let (z, y) = (planes(&operator, &self.z), planes(&operator, &self.problem.y));
        equation.evaluate(&self.w, self.hidden.as_ref(), &z, &y)
    }

    /// `F(z; y)` by the kernels, in the evaluator's order. The tie is the layer's business: it goes to the injection.
    fn apply<T: SimdReal>(&self, cpu: &Cpu<T>) -> Vec<f64>
    where
        Cpu<T>: Equilibria<Elem = T, Array = Buffer<T>, Reports = Vec<SampleReport>>,
    {
        let map = &self.problem.map;
        let (operator, tie) = (map.operator(), map.equation().tie());
        let mut plan = cpu.plan(map, 1).unwrap();
        load(cpu, &mut plan, &self.problem);
        let mut y = self.problem.y.clone();
        if tie != 0.0 {
            let units = operator.units();
            let inhibition = self.problem.weights[1].chunks_exact(units);
            let sums: Vec<f64> = inhibition.map(|row| tie * row.iter().sum::<f64>()).collect();
            y.iter_mut().enumerate().for_each(|(at, y)| *y += sums[at % units]);
        }
        let mut out = cpu.zeros(self.z.len()).unwrap();
        let (z, y) = (cpu.upload(&convert::<T>(&self.z)).unwrap(), cpu.upload(&convert::<T>(&y)).unwrap());
        cpu.apply(&mut plan, 1, &z, &y, &mut out).unwrap();
        planes(&operator, &out.iter().map(|x| x.to_f64()).collect::<Vec<f64>>())
    }

    /// How much larger than the rounding of one number the difference may be: what is summed up, what a power or a
    /// quotient makes of it, and the division by a small norm.
    fn condition(&self) -> f64 {
        let equation = self.problem.map.equation();
        let plain = Equation::try_from(Parts { normalisation: None, ..equation.into() }).unwrap();
        let f = self.evaluate(plain).unwrap_or_default();
        let top = |x: &[f64]| x.iter().fold(1.0f64, |m, x| m.max(x.abs()));
        let mut condition = 8.0 + self.problem.weights.iter().flatten().map(|w| w.abs()).sum::<f64>();
        condition *= top(&f);
        if equation.power() != 1.0 {
            let base = Equation::try_from(Parts { normalisation: None, power: 1.0, ..equation.into() });
            let outer = equation.injection() == Injection::Outer;
            let y = planes(&self.problem.map.operator(), &self.problem.y);
            let base = self.evaluate(base.unwrap()).unwrap();
            let steepest = base.iter().zip(&y).fold(1.0f64, |m, (base, y)| {
                let base = if outer { base - y } else { *base };
                m.max(equation.power() * base.powf(equation.power() - 1.0))
            });
            condition *= steepest;
        }
        if let Some(norm) = equation.normalisation() {
            for group in norm.groups.members(&self.w).unwrap() {
                let members: Vec<f64> = group.iter().map(|&i| f[i]).collect();
                condition = condition.max(condition / norm.p.norm(&members).powi(2));
            }
        }
        condition
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn kernels_and_equation_agree(
        (operator, equation) in operators().prop_flat_map(|on| (Just(on), equations(on))),
        seed in any::<u64>(),
    ) {
        let case = Case::draw(operator, equation, seed);
        let double = case.apply(&Cpu::<f64>::new(1).unwrap());
        match case.evaluate(equation) {
            Err(undefined) => {
                // A group of zeros, or a power of a negative number: no kernel may make a number of it.
                let y = double[undefined.entry];
                prop_assert!(!y.is_finite(), "{equation} is undefined: {undefined}, but the kernels say {y}");
            }
            Ok(exact) => {
                let condition = case.condition();
                let single = case.apply(&Cpu::<f32>::new(1).unwrap());
                for (found, epsilon) in [(double, f64::EPSILON), (single, f64::from(f32::EPSILON))] {
                    for (i, (found, exact)) in found.iter().zip(&exact).enumerate() {
                        let error = (found - exact).abs();
                        prop_assert!(
                            error <= 8.0 * epsilon * condition || condition * epsilon > 1e-3,
                            "{equation} on {operator:?}, entry {i}: {found} by the kernels, {exact} by the equation \
                             (condition {condition:e})"
                        );
                    }
                }
            }
        }
    }
}
