//! A company of threads: what processes do together, within one, for tests.

use std::any::Any;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::Company;

type Message = Box<dyn Any + Send>;

/// One of several threads.
pub(crate) struct Thread {
    rank: usize,
    to: Vec<Mutex<Sender<Message>>>,
    from: Vec<Mutex<Receiver<Message>>>,
}

/// So many threads that can talk to each other.
pub(crate) fn threads(size: usize) -> Vec<Thread> {
    let mut from: Vec<Vec<Mutex<Receiver<Message>>>> = (0..size).map(|_| Vec::new()).collect();
    let mut to: Vec<Vec<Mutex<Sender<Message>>>> = (0..size).map(|_| Vec::new()).collect();
    for sender in &mut to {
        for receiver in &mut from {
            let (give, take) = channel();
            sender.push(Mutex::new(give));
            receiver.push(Mutex::new(take));
        }
    }
    to.into_iter().zip(from).enumerate().map(|(rank, (to, from))| Thread { rank, to, from }).collect()
}

impl Thread {
    fn send<M: Send + 'static>(&self, to: usize, message: M) {
        self.to[to].lock().unwrap().send(Box::new(message)).unwrap();
    }

    fn receive<M: 'static>(&self, from: usize) -> M {
        *self.from[from]
            .lock()
            .unwrap()
            .recv()
            .unwrap()
            .downcast()
            .expect("all say the same in the same order")
    }
}

impl<T: Copy + Send + 'static> Company<T> for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.to.len()
    }

    fn lists(&self, give: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
        give.into_iter().enumerate().for_each(|(to, list)| self.send(to, list));
        (0..self.from.len()).map(|from| self.receive(from)).collect()
    }

    fn exchange(
        &self,
        give: &[(usize, &[T])],
        take: &mut [(usize, &mut [T])],
        meanwhile: &mut (dyn FnMut() + Send),
    ) {
        give.iter().for_each(|(to, numbers)| self.send(*to, numbers.to_vec()));
        meanwhile();
        for (from, numbers) in take {
            numbers.copy_from_slice(&self.receive::<Vec<T>>(*from));
        }
    }

    fn gather(&self, mine: &[f64], counts: &[usize]) -> Vec<f64> {
        (0..self.to.len()).for_each(|to| self.send(to, mine.to_vec()));
        let received: Vec<Vec<f64>> = (0..self.from.len()).map(|from| self.receive(from)).collect();
        assert_eq!(received.iter().map(Vec::len).collect::<Vec<usize>>(), counts);
        received.concat()
    }

    fn broadcast(&self, from: usize, numbers: &mut [T]) {
        if from == self.rank {
            (0..self.to.len()).filter(|&to| to != from).for_each(|to| self.send(to, numbers.to_vec()));
        } else {
            numbers.copy_from_slice(&self.receive::<Vec<T>>(from));
        }
    }

    fn relay(&self, baton: &mut [f64], work: &mut dyn FnMut(&mut [f64])) {
        let last = self.to.len() - 1;
        if self.rank > 0 {
            baton.copy_from_slice(&self.receive::<Vec<f64>>(self.rank - 1));
        }
        work(baton);
        if self.rank < last {
            self.send(self.rank + 1, baton.to_vec());
            baton.copy_from_slice(&self.receive::<Vec<f64>>(last));
        } else {
            (0..last).for_each(|to| self.send(to, baton.to_vec()));
        }
    }

    fn failure(&self) -> Option<String> {
        None
    }
}
