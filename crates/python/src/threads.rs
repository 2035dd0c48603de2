//! The threads of this process, and the layers that are between two calls.
//!
//! A layer of Python or PyTorch is a function of its arguments. What makes it fast (packed weights, plans, memory) lies here
//! between two calls: whoever calls takes a layer of his kind from the shelf, the one with his parameters if it is there, and
//! puts it back. Threads that call at once take one each.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use subdeq::subdeq_engine::cpu::Buffer;
use subdeq::{Backend, Cpu, Equilibrium, Real};

use crate::error::{raise, refuse};
use crate::graph::Propagator;

/// Layers that are kept between calls; the one that was used longest ago goes first.
const IDLE: usize = 16;

/// 0 for one per core.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// Whether this process was forked in the middle of somebody's call.
static LOST: AtomicBool = AtomicBool::new(false);

/// A number type of arrays, with the shelf of its layers.
pub trait Number: Real + numpy::Element + subdeq::subdeq_engine::cpu::SimdReal {
    fn shelf() -> &'static Mutex<Shelf<Self>>
    where
        Cpu<Self>: Backend<Elem = Self, Array = Buffer<Self>>;
}

/// What lies between two calls.
pub struct Shelf<T: Number>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    device: Option<Arc<Cpu<T>>>,
    layers: Vec<(String, Equilibrium<Cpu<T>>)>,
    propagators: Vec<Propagator<T>>,
}

macro_rules! number {
    ($($t:ident $shelf:ident),*) => {$(
        static $shelf: Mutex<Shelf<$t>> =
            Mutex::new(Shelf { device: None, layers: Vec::new(), propagators: Vec::new() });
        impl Number for $t {
            fn shelf() -> &'static Mutex<Shelf<$t>> {
                &$shelf
            }
        }
    )*};
}
number!(f32 SHELF_F32, f64 SHELF_F64);

fn open<T: Number>() -> PyResult<MutexGuard<'static, Shelf<T>>>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    if LOST.load(Ordering::Relaxed) {
        return Err(refuse(
            "this process was forked while another thread was in the middle of a subdeq call, so its threads cannot be \
             relied on: start worker processes with the method `spawn` or `forkserver`",
        ));
    }
    Ok(T::shelf().lock().unwrap_or_else(PoisonError::into_inner))
}

/// The processor cores, as this process uses them.
pub fn device<T: Number>() -> PyResult<Arc<Cpu<T>>>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    let mut shelf = open::<T>()?;
    if let Some(device) = &shelf.device {
        return Ok(device.clone());
    }
    // By number, not 0: those are shared with everybody in the process and would not survive a fork.
    let made = Cpu::new(count()).map_err(|why| raise(why.into()))?;
    Ok(shelf.device.insert(Arc::new(made)).clone())
}

fn count() -> usize {
    match THREADS.load(Ordering::Relaxed) {
        0 => std::thread::available_parallelism().map_or(1, |cores| cores.get()),
        some => some,
    }
}

/// Takes a layer of that kind from the shelf, the one with these parameters if it is there.
pub fn take<T: Number>(kind: &str, parameters: &[&[T]]) -> PyResult<Option<Equilibrium<Cpu<T>>>>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    let mut shelf = open::<T>()?;
    let of_kind = |(key, _): &(String, _)| key == kind;
    let same = |(_, layer): &(String, Equilibrium<Cpu<T>>)| layer.has_parameters(parameters).unwrap_or(false);
    let found = shelf.layers.iter().rposition(|idle| of_kind(idle) && same(idle));
    let found = found.or_else(|| shelf.layers.iter().rposition(of_kind));
    Ok(found.map(|index| shelf.layers.remove(index).1))
}

/// Puts a layer back.
pub fn put_back<T: Number>(kind: &str, layer: Equilibrium<Cpu<T>>) -> PyResult<()>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    let mut shelf = open::<T>()?;
    shelf.layers.push((kind.to_owned(), layer));
    let surplus = shelf.layers.len().saturating_sub(IDLE);
    let dropped: Vec<_> = shelf.layers.drain(..surplus).collect();
    drop(shelf); // others need not wait while memory is given back
    drop(dropped);
    Ok(())
}

/// Takes a propagator that fits from the shelf.
pub fn take_propagator<T: Number>(fits: impl Fn(&Propagator<T>) -> bool) -> PyResult<Option<Propagator<T>>>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    let mut shelf = open::<T>()?;
    let found = shelf.propagators.iter().rposition(fits);
    Ok(found.map(|index| shelf.propagators.remove(index)))
}

/// Puts a propagator back.
pub fn put_propagator_back<T: Number>(propagator: Propagator<T>) -> PyResult<()>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    let mut shelf = open::<T>()?;
    shelf.propagators.push(propagator);
    let surplus = shelf.propagators.len().saturating_sub(IDLE);
    shelf.propagators.drain(..surplus);
    Ok(())
}

/// The number of threads that solves use.
#[pyfunction]
pub fn num_threads() -> usize {
    count()
}

/// Sets the number of threads that solves use from now on; 0 means one per core.
#[pyfunction]
pub fn set_num_threads(threads: usize) -> PyResult<()> {
    Cpu::<f32>::new(threads).map_err(|why| raise(why.into()))?;
    THREADS.store(threads, Ordering::Relaxed);
    empty::<f32>()?;
    empty::<f64>()
}

fn empty<T: Number>() -> PyResult<()>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    let mut shelf = open::<T>()?;
    let kept = (shelf.device.take(), mem::take(&mut shelf.layers), mem::take(&mut shelf.propagators));
    drop(shelf);
    drop(kept);
    Ok(())
}

/// For a forked child: the parent's threads are not there, so everything that knows them is left alone, and the child begins
/// anew.
#[pyfunction]
pub fn forget_after_fork() {
    forget::<f32>();
    forget::<f64>();
}

fn forget<T: Number>()
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    match T::shelf().try_lock() {
        // Dropping them would wait for threads that do not exist.
        Ok(mut shelf) => {
            mem::forget((
                shelf.device.take(),
                mem::take(&mut shelf.layers),
                mem::take(&mut shelf.propagators),
            ));
        }
        Err(_) => LOST.store(true, Ordering::Relaxed),
    }
}
