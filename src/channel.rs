//! An unbounded queue between threads with a single receiver. The standard library's has three flavours, each of which
//! is compiled for every message type: with eight types they were a sixtieth of the program.

use std::collections::VecDeque;
use std::iter::from_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The receiver is gone.
#[derive(Debug)]
pub(crate) struct Gone;

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    waiting: VecDeque<T>,
    senders: usize,
    is_received: bool,
}

impl<T> Shared<T> {
    /// No operation under the lock can panic half-way.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending end. When the last sender is dropped, the receiver is told after it has received all messages.
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// The receiving end, in FIFO order.
pub(crate) struct Receiver<T>(Arc<Shared<T>>);

/// Both ends of a new queue.
pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = State { waiting: VecDeque::new(), senders: 1, is_received: true };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    /// # Errors
    /// The receiver is gone; the message is dropped.
    pub(crate) fn send(&self, message: T) -> Result<(), Gone> {
        let mut state = self.0.lock();
        if !state.is_received {
            drop(state);
            drop(message);
            return Err(Gone);
        }
        state.waiting.push_back(message);
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().senders -= 1;
        self.0.changed.notify_one();
    }
}

impl<T> Receiver<T> {
    /// The next message, if one is there.
    pub(crate) fn try_recv(&self) -> Option<T> {
        self.0.lock().waiting.pop_front()
    }

    /// The next message; waits up to `patience` for one.
    pub(crate) fn recv_timeout(&self, patience: Duration) -> Option<T> {
        self.wait(Instant::now().checked_add(patience))
    }

    /// The messages available now.
    pub(crate) fn try_iter(&self) -> impl Iterator<Item = T> {
        from_fn(|| self.try_recv())
    }

    /// All messages, until all senders are gone.
    pub(crate) fn iter(&self) -> impl Iterator<Item = T> {
        from_fn(|| self.wait(None))
    }

    fn wait(&self, until: Option<Instant>) -> Option<T> {
        let mut state = self.0.lock();
        loop {
            if let Some(message) = state.waiting.pop_front() {
                return Some(message);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if state.senders == 0 || left == Some(Duration::ZERO) {
                return None;
            }
            state = match left {
                Some(left) => {
                    let waited = self.0.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_received = false;
        let left = std::mem::take(&mut state.waiting);
        drop(state);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn messages_of_each_sender_come_in_order_and_none_is_lost() {
        let (sender, receiver) = channel();
        let threads: Vec<_> = (0..4)
            .map(|of| {
                let sender = sender.clone();
                thread::spawn(move || (0..1000).for_each(|number| sender.send((of, number)).unwrap()))
            })
            .collect();
        drop(sender);
        let mut next = [0; 4];
        for (of, number) in receiver.iter() {
            assert_eq!(number, next[of]);
            next[of] += 1;
        }
        assert_eq!(next, [1000; 4]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn a_waiting_receiver_learns_that_the_last_sender_has_gone() {
        let (sender, receiver) = channel::<()>();
        let thread = thread::spawn(move || receiver.iter().count());
        let other = sender.clone();
        drop(sender);
        other.send(()).unwrap();
        drop(other);
        assert_eq!(thread.join().unwrap(), 1);
    }

    #[test]
    fn a_wait_ends_at_its_timeout_and_a_try_at_once() {
        let (sender, receiver) = channel();
        assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), None::<u8>);
        assert_eq!(receiver.try_recv(), None);
        sender.send(1).unwrap();
        sender.send(2).unwrap();
        assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Some(1));
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn messages_without_a_receiver_are_dropped_or_refused() {
        let (sender, receiver) = channel();
        let message = Arc::new(());
        sender.send(Arc::clone(&message)).unwrap();
        drop(receiver);
        assert_eq!(Arc::strong_count(&message), 1);
        assert!(sender.send(Arc::clone(&message)).is_err());
        assert_eq!(Arc::strong_count(&message), 1);
    }
}
