//! A device that watches another one: it counts what passes between host and device, and fails when it is told to. For
//! tests of whatever is built on a device.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use subdeq_map::Parametrisation;

use crate::network::{Adam, ConvShape, Csr, LinearShape, NormPoolShape, NormState, Rows, Scaling, Update};
use crate::{
    Activation, Crop, CustomMap, CustomMaps, DataSets, Device, Dropout, EncoderShape, EngineError,
    Equilibria, GraphDropout, GraphOperator, GraphSpec, Graphs, Images, Integrate, LabelledNodes, Layers,
    NodeArray, OdeReport, OdeTolerance, Operator, Opinion, Order, Parametrise, Pass, Picks, Propagate,
    Result, SampleReport, ShapedMap, Solver, Spectra, Start, Stopping, Summary,
};

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Arrays that were allocated.
    pub allocations: u64,
    /// Calls that brought numbers from the host to the device.
    pub written: u64,
    /// Calls that brought arrays or reports from the device to the host.
    pub read: u64,
    /// Calls that brought one number to the host.
    pub scalars: u64,
    /// Summaries that were read.
    pub summaries: u64,
    /// All calls.
    pub calls: u64,
}

/// Another device, watched.
///
/// ```
/// use subdeq_engine::{Checking, Cpu, Device, EngineError};
/// let device = Checking::new(Cpu::<f32>::new(1)?);
/// device.upload(&[1.0])?;
/// assert_eq!((device.traffic().allocations, device.traffic().written, device.traffic().read), (1, 1, 0));
/// device.fail_at_allocation(0);
/// assert!(matches!(device.zeros(1), Err(EngineError::OutOfMemory { .. })));
/// # Ok::<(), EngineError>(())
/// ```
#[derive(Debug)]
pub struct Checking<D> {
    device: D,
    allocations: AtomicU64,
    written: AtomicU64,
    read: AtomicU64,
    scalars: AtomicU64,
    summaries: AtomicU64,
    calls: AtomicU64,
    /// The allocation and the call that fail, counted from now; `u64::MAX` for none.
    failing_allocation: AtomicU64,
    failing_call: AtomicU64,
}

impl<D> Checking<D> {
    /// Watches a device.
    pub fn new(device: D) -> Self {
        let zero = || AtomicU64::new(0);
        let never = || AtomicU64::new(u64::MAX);
        Self {
            device,
            allocations: zero(),
            written: zero(),
            read: zero(),
            scalars: zero(),
            summaries: zero(),
            calls: zero(),
            failing_allocation: never(),
            failing_call: never(),
        }
    }

    /// What happened so far.
    pub fn traffic(&self) -> Traffic {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            allocations: count(&self.allocations),
            written: count(&self.written),
            read: count(&self.read),
            scalars: count(&self.scalars),
            summaries: count(&self.summaries),
            calls: count(&self.calls),
        }
    }

    /// From now on the allocation after `count` others fails, once.
    pub fn fail_at_allocation(&self, count: u64) {
        let at = self.allocations.load(Ordering::Relaxed) + count;
        self.failing_allocation.store(at, Ordering::Relaxed);
    }

    /// From now on the call after `count` others fails, once.
    pub fn fail_at_call(&self, count: u64) {
        self.failing_call.store(self.calls.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    fn call(&self, name: &str) -> Result<()> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        if number == self.failing_call.load(Ordering::Relaxed) {
            return Err(EngineError::DeviceFailed(format!("it was told to fail in `{name}`")));
        }
        Ok(())
    }

    fn allocation(&self, name: &str, len: usize) -> Result<()> {
        self.call(name)?;
        let number = self.allocations.fetch_add(1, Ordering::Relaxed);
        if number == self.failing_allocation.load(Ordering::Relaxed) {
            return Err(EngineError::OutOfMemory { needed: len as u64, installed: Some(0) });
        }
        Ok(())
    }

    fn writing(&self, name: &str) -> Result<()> {
        self.written.fetch_add(1, Ordering::Relaxed);
        self.call(name)
    }

    fn reading(&self, name: &str) -> Result<()> {
        self.read.fetch_add(1, Ordering::Relaxed);
        self.call(name)
    }

    fn scalar(&self, name: &str) -> Result<()> {
        self.scalars.fetch_add(1, Ordering::Relaxed);
        self.call(name)
    }
}

/// Methods that count themselves by `$how` and then ask the device.
macro_rules! watched {
    ($($how:ident: fn $name:ident(&self $(, $argument:ident: $type:ty)* $(,)?) -> $result:ty;)*) => {$(
        fn $name(&self $(, $argument: $type)*) -> $result {
            self.$how(stringify!($name))?;
            self.device.$name($($argument),*)
        }
    )*};
}

impl<D: Device> Device for Checking<D> {
    type Elem = D::Elem;
    type Array = D::Array;
    type Integers = D::Integers;
    type Tally = D::Tally;

    fn name(&self) -> String {
        format!("{}, watched", self.device.name())
    }

    fn memory(&self) -> Option<u64> {
        self.device.memory()
    }

    fn steps_per_summary(&self) -> usize {
        self.device.steps_per_summary()
    }

    fn zeros(&self, len: usize) -> Result<D::Array> {
        self.allocation("zeros", len)?;
        self.device.zeros(len)
    }

    fn upload(&self, host: &[D::Elem]) -> Result<D::Array> {
        self.writing("upload")?;
        self.allocation("upload", host.len())?;
        self.device.upload(host)
    }

    fn integers(&self, host: &[u32]) -> Result<D::Integers> {
        self.writing("integers")?;
        self.allocation("integers", host.len())?;
        self.device.integers(host)
    }

    fn tally(&self) -> Result<D::Tally> {
        self.allocation("tally", 1)?;
        self.device.tally()
    }

    fn finish(&self, tally: &mut D::Tally) -> Result<Summary> {
        self.summaries.fetch_add(1, Ordering::Relaxed);
        self.call("finish")?;
        self.device.finish(tally)
    }

    watched! {
        writing: fn write(&self, array: &mut D::Array, at: usize, host: &[D::Elem]) -> Result<()>;
        writing: fn write_finite(&self, what: &'static str, array: &mut D::Array, host: &[D::Elem]) -> Result<()>;
        writing: fn write_integers(&self, array: &mut D::Integers, host: &[u32]) -> Result<()>;
        reading: fn read(&self, array: &D::Array, at: usize, host: &mut [D::Elem]) -> Result<()>;
        call: fn fill(&self, len: usize, value: f64, x: &mut D::Array) -> Result<()>;
        call: fn copy(&self, len: usize, x: &D::Array, y: &mut D::Array) -> Result<()>;
        call: fn copy_rows(&self, rows: usize, len: usize, from: Rows<&D::Array>, to: Rows<&mut D::Array>) -> Result<()>;
        call: fn gather_rows(&self, len: usize, from: &D::Array, picks: Picks<'_, D::Integers>, to: &mut D::Array) -> Result<()>;
        call: fn scatter_rows(&self, len: usize, from: &D::Array, picks: Picks<'_, D::Integers>, to: &mut D::Array) -> Result<()>;
    }
}

impl<D: Equilibria> Equilibria for Checking<D> {
    type Plan = D::Plan;
    type Reports = D::Reports;

    fn plan(&self, map: &ShapedMap, batch: usize) -> Result<D::Plan> {
        self.allocation("plan", batch)?;
        self.device.plan(map, batch)
    }

    fn reports(&self, batch: usize) -> Result<D::Reports> {
        self.allocation("reports", batch)?;
        self.device.reports(batch)
    }

    watched! {
        call: fn load(&self, plan: &mut D::Plan, weights: &[&D::Array]) -> Result<()>;
        reading: fn read_reports(&self, reports: &D::Reports, host: &mut [SampleReport]) -> Result<()>;
        call: fn count(&self, pass: Pass, batch: usize, reports: &D::Reports, tally: &mut D::Tally) -> Result<()>;
        call: fn apply(&self, plan: &mut D::Plan, batch: usize, z: &D::Array, y: &D::Array, out: &mut D::Array) -> Result<()>;
        call: fn compare(
            &self, state_len: usize, batch: usize, iterations: u32, stopping: &Stopping, before: &D::Array, after: &D::Array,
            reports: &mut D::Reports,
        ) -> Result<()>;
        call: fn solve(
            &self, plan: &mut D::Plan, batch: usize, y: &D::Array, solver: &Solver, stopping: &Stopping, start: Start,
            z: &mut D::Array, reports: &mut D::Reports,
        ) -> Result<()>;
        call: fn adjoint(
            &self, plan: &mut D::Plan, batch: usize, z: &D::Array, y: &D::Array, v: &D::Array, solver: &Solver,
            stopping: &Stopping, g: &mut D::Array, reports: &mut D::Reports,
        ) -> Result<()>;
        call: fn pullback(
            &self, plan: &mut D::Plan, batch: usize, z: &D::Array, y: &D::Array, g: &D::Array, gz: Option<&mut D::Array>,
            gy: &mut D::Array, gw: &mut [D::Array],
        ) -> Result<()>;
        call: fn implicit_gradient(
            &self, plan: &mut D::Plan, batch: usize, z: &D::Array, y: &D::Array, v: &D::Array, solver: &Solver,
            stopping: &Stopping, g: &mut D::Array, reports: &mut D::Reports, gy: &mut D::Array, gw: &mut [D::Array],
        ) -> Result<()>;
    }
}

impl<D: Parametrise> Parametrise for Checking<D> {
    type Weights = D::Weights;

    fn weights(&self, map: &ShapedMap, parametrisation: Parametrisation) -> Result<D::Weights> {
        self.allocation("weights", map.weight_len(0))?;
        self.device.weights(map, parametrisation)
    }

    fn weight_arrays<'a>(&self, weights: &'a D::Weights) -> &'a [D::Array] {
        self.device.weight_arrays(weights)
    }

    fn tied_shift<'a>(&self, weights: &'a D::Weights) -> Option<&'a D::Array> {
        self.device.tied_shift(weights)
    }

    watched! {
        call: fn make_weights(&self, weights: &mut D::Weights, free: &[&D::Array]) -> Result<()>;
        call: fn pull_parameters(
            &self, weights: &mut D::Weights, free: &[&D::Array], gradients: &[D::Array], tied: Option<&D::Array>,
            free_gradients: &mut [&mut D::Array],
        ) -> Result<()>;
    }
}

impl<D: Spectra> Spectra for Checking<D> {
    watched! {
        scalar: fn splitting_rate(&self, operator: &Operator, w: &D::Array, step: f64, frequencies: usize) -> Result<f64>;
        scalar: fn norm_bound(&self, operator: &Operator, w: &D::Array) -> Result<f64>;
    }
}

impl<D: Layers> Layers for Checking<D> {
    watched! {
        call: fn linear(
            &self, shape: LinearShape, x: &D::Array, w: &D::Array, b: &D::Array, rectified: bool, y: &mut D::Array,
        ) -> Result<()>;
        call: fn linear_backward(
            &self, shape: LinearShape, x: &D::Array, w: &D::Array, rectified: Option<&D::Array>, gy: &mut D::Array,
            gx: Option<&mut D::Array>, gw: &mut D::Array, gb: &mut D::Array,
        ) -> Result<()>;
        call: fn convolution(
            &self, shape: ConvShape, x: &D::Array, w: &D::Array, b: &D::Array, rectified: bool, y: &mut D::Array,
        ) -> Result<()>;
        call: fn convolution_backward(
            &self, shape: ConvShape, x: &D::Array, w: &D::Array, rectified: Option<&D::Array>, gy: &mut D::Array,
            gx: Option<&mut D::Array>, gw: &mut D::Array, gb: &mut D::Array,
        ) -> Result<()>;
        call: fn relu(&self, len: usize, x: &mut D::Array) -> Result<()>;
        call: fn relu_backward(&self, len: usize, y: &D::Array, g: &mut D::Array) -> Result<()>;
        call: fn tanh(&self, len: usize, x: &mut D::Array) -> Result<()>;
        call: fn tanh_backward(&self, len: usize, y: &D::Array, g: &mut D::Array) -> Result<()>;
        call: fn norm_pool_train(
            &self, shape: NormPoolShape, x: &D::Array, scaling: Scaling<&D::Array>, state: &mut NormState<D::Array>,
            y: &mut D::Array,
        ) -> Result<()>;
        call: fn norm_pool_eval(
            &self, shape: NormPoolShape, x: &D::Array, scaling: Scaling<&D::Array>, state: &NormState<D::Array>,
            y: &mut D::Array,
        ) -> Result<()>;
        call: fn norm_pool_backward(
            &self, shape: NormPoolShape, x: &D::Array, scale: &D::Array, state: &NormState<D::Array>, gy: &D::Array,
            gx: &mut D::Array, gradients: Scaling<&mut D::Array>,
        ) -> Result<()>;
        call: fn average_pool(&self, shape: NormPoolShape, x: &D::Array, y: &mut D::Array) -> Result<()>;
        call: fn average_pool_backward(&self, shape: NormPoolShape, gy: &D::Array, gx: &mut D::Array) -> Result<()>;
        call: fn norm_sums(&self, shape: NormPoolShape, first: usize, x: &D::Array, sums: &mut [f64]) -> Result<()>;
        call: fn norm_pool_given(
            &self, shape: NormPoolShape, x: &D::Array, scaling: Scaling<&D::Array>, state: &mut NormState<D::Array>,
            y: &mut D::Array,
        ) -> Result<()>;
        call: fn norm_gradient_sums(
            &self, shape: NormPoolShape, first: usize, state: &NormState<D::Array>, gy: &D::Array, sums: &mut [f64],
        ) -> Result<()>;
        call: fn norm_pool_pull(
            &self, shape: NormPoolShape, of: usize, x: &D::Array, scale: &D::Array, state: &NormState<D::Array>, gy: &D::Array,
            sums: &[f64], gx: &mut D::Array, gradients: Scaling<&mut D::Array>,
        ) -> Result<()>;
        call: fn cross_entropy_part(
            &self, samples: Range<usize>, of: usize, classes: usize, smoothing: f64, logits: &D::Array, labels: &D::Integers,
            gradient: &mut D::Array, tally: &mut D::Tally,
        ) -> Result<()>;
        call: fn adam(&self, adam: &Adam, updates: &mut [Update<'_, D::Array>]) -> Result<()>;
        call: fn axpy(&self, len: usize, a: f64, x: &D::Array, y: &mut D::Array) -> Result<()>;
        call: fn add_to_rows(&self, rows: usize, cols: usize, b: &D::Array, x: &mut D::Array) -> Result<()>;
        call: fn sum_rows(&self, rows: usize, cols: usize, x: &D::Array, sums: &mut D::Array) -> Result<()>;
    }
}

impl<D: Integrate> Integrate for Checking<D> {
    type OdePlan = D::OdePlan;
    type OdeReports = D::OdeReports;

    fn ode_plan(&self, operator: Operator, activation: Activation, batch: usize) -> Result<D::OdePlan> {
        self.allocation("ode_plan", batch)?;
        self.device.ode_plan(operator, activation, batch)
    }

    fn ode_reports(&self, batch: usize) -> Result<D::OdeReports> {
        self.allocation("ode_reports", batch)?;
        self.device.ode_reports(batch)
    }

    watched! {
        call: fn ode_load(&self, plan: &mut D::OdePlan, w: &D::Array) -> Result<()>;
        reading: fn read_ode_reports(&self, reports: &D::OdeReports, host: &mut [OdeReport]) -> Result<()>;
        call: fn ode_count(&self, batch: usize, reports: &D::OdeReports, tally: &mut D::Tally) -> Result<()>;
        call: fn integrate(
            &self, plan: &mut D::OdePlan, batch: usize, start: &D::Array, tolerance: &OdeTolerance, end: &mut D::Array,
            reports: &mut D::OdeReports,
        ) -> Result<()>;
        call: fn integrate_adjoint(
            &self, plan: &mut D::OdePlan, batch: usize, v: &D::Array, gradient: &mut D::Array, gw: &mut D::Array,
        ) -> Result<()>;
    }
}

impl<D: DataSets> DataSets for Checking<D> {
    type Images = D::Images;

    fn images(&self, images: &Images, classes: usize) -> Result<D::Images> {
        self.writing("images")?;
        self.allocation("images", images.pixels().len())?;
        self.device.images(images, classes)
    }

    watched! {
        call: fn gather(
            &self, images: &D::Images, picks: Picks<'_, D::Integers>, crop: Crop, order: Order, x: &mut D::Array,
            labels: &mut D::Integers,
        ) -> Result<()>;
        call: fn drop_entries(
            &self, len: usize, picks: Picks<'_, D::Integers>, dropout: &Dropout, x: &mut D::Array,
        ) -> Result<()>;
    }
}

impl<D: Graphs> Graphs for Checking<D> {
    type Graph = D::Graph;
    type Encoder = D::Encoder;
    type GraphPlan = D::GraphPlan;

    fn graph(&self, operator: GraphOperator<D::Elem>, features: Csr<D::Elem>) -> Result<D::Graph> {
        self.writing("graph")?;
        self.allocation("graph", operator.entries())?;
        self.device.graph(operator, features)
    }

    fn operator<'a>(&self, graph: &'a D::Graph) -> &'a GraphOperator<D::Elem> {
        self.device.operator(graph)
    }

    fn features<'a>(&self, graph: &'a D::Graph) -> &'a Csr<D::Elem> {
        self.device.features(graph)
    }

    fn encoder(&self, shape: EncoderShape, arrays: [&[D::Elem]; 4]) -> Result<D::Encoder> {
        self.writing("encoder")?;
        self.allocation("encoder", arrays[0].len())?;
        self.device.encoder(shape, arrays)
    }

    fn graph_plan(&self, spec: &GraphSpec, graph: &D::Graph) -> Result<D::GraphPlan> {
        self.allocation("graph_plan", spec.shape.classes)?;
        self.device.graph_plan(spec, graph)
    }

    watched! {
        reading: fn read_encoder(&self, encoder: &D::Encoder) -> Result<[Vec<D::Elem>; 4]>;
        call: fn penalise(
            &self, penalty: f64, encoder: &D::Encoder, gradient: &mut D::Encoder, tally: &mut D::Tally,
        ) -> Result<()>;
        call: fn encoder_adam(
            &self, adam: &Adam, encoder: &mut D::Encoder, gradient: &D::Encoder, moments: &mut [D::Encoder; 2],
        ) -> Result<()>;
        call: fn inject(&self, plan: &mut D::GraphPlan, graph: &D::Graph, encoder: &D::Encoder) -> Result<()>;
        scalar: fn propagate(
            &self, plan: &mut D::GraphPlan, graph: &D::Graph, encoder: &D::Encoder, dropout: Option<GraphDropout>,
            how: &Propagate,
        ) -> Result<Option<SampleReport>>;
        call: fn node_loss(
            &self, plan: &mut D::GraphPlan, nodes: &LabelledNodes<D::Integers>, tally: &mut D::Tally,
        ) -> Result<()>;
        call: fn form_opinion(&self, plan: &mut D::GraphPlan, opinion: Opinion) -> Result<()>;
        call: fn opinion_loss(
            &self, plan: &mut D::GraphPlan, rows: &D::Integers, weight: f64, tally: &mut D::Tally,
        ) -> Result<()>;
        scalar: fn propagate_backward(
            &self, plan: &mut D::GraphPlan, graph: &D::Graph, encoder: &D::Encoder, dropout: Option<GraphDropout>,
            how: &Propagate, gradient: &mut D::Encoder,
        ) -> Result<Option<SampleReport>>;
        call: fn count_nodes(
            &self, plan: &D::GraphPlan, nodes: &LabelledNodes<D::Integers>, with_loss: bool, tally: &mut D::Tally,
        ) -> Result<()>;
        reading: fn read_nodes(&self, plan: &D::GraphPlan, which: NodeArray) -> Result<Vec<D::Elem>>;
    }
}

impl<D: CustomMaps> CustomMaps for Checking<D> {
    watched! {
        call: fn solve_custom(
            &self, map: &dyn CustomMap<D::Elem>, batch: usize, solver: &Solver, stopping: &Stopping, start: Start,
            z: &mut [D::Elem], reports: &mut [SampleReport],
        ) -> Result<()>;
        call: fn adjoint_custom(
            &self, map: &dyn CustomMap<D::Elem>, batch: usize, z: &[D::Elem], v: &[D::Elem], solver: &Solver,
            stopping: &Stopping, g: &mut [D::Elem], reports: &mut [SampleReport],
        ) -> Result<()>;
    }
}
