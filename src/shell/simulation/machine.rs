//! A daemon on a seeded kernel, for the simulations of the shell.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

use super::workers::Children;
use crate::bus::port::ListenerId;
use crate::config::{Config, Listen};
use crate::shell::admin::Admin;
use crate::shell::descriptors::Allowance;
use crate::shell::http::exchange::OPERATORS;
use crate::shell::listen::Listening;
use crate::shell::listeners::Acceptor;
use crate::shell::log;
use crate::shell::loop_handle::LoopHandle;
use crate::shell::reload::{Reloads, Source};
use crate::shell::signals::{SignalPipe, Signals};
use crate::shell::turn::Shell;
use crate::testing::Random;
use crate::testing::kernel::{Kernel, Wires, inode};

/// A daemon on a seeded kernel, and the peers' ends.
pub(super) struct Machine {
    pub(super) shell: Shell<Kernel>,
    pub(super) wires: Rc<RefCell<Wires>>,
    pub(super) children: Rc<RefCell<Children>>,
    /// The listening sockets for clients by listener, and for operators, if there is one.
    pub(super) doors: Vec<i32>,
    pub(super) admin_door: Option<i32>,
    pub(super) stop: UnixStream,
}

impl Machine {
    /// A daemon that listens, with descriptors for a limited number of connections, if not for all.
    pub(super) fn new(
        seed: u64,
        config: Config,
        allowance: Allowance,
        has_admin: bool,
        descriptors: Option<usize>,
    ) -> Self {
        log::forget();
        let wires = Rc::new(RefCell::new(Wires::default()));
        let pair = || {
            let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
            ours.set_nonblocking(true).and(theirs.set_nonblocking(true)).expect("it is a socket");
            (ours, theirs)
        };
        let ((children_ours, bell), (stop_ours, stop)) = (pair(), pair());
        let children = Rc::new(RefCell::new(Children {
            random: Random::new(seed ^ 0x5eed),
            workers: Vec::new(),
            dead: VecDeque::new(),
            started: VecDeque::new(),
            bell,
            next_pid: 1000,
            is_kind: false,
        }));
        let listens = config.listeners.iter().take_while(|listener| !matches!(listener.listen, Listen::Stdio));
        let sockets: Vec<OwnedFd> = listens.map(|_| pair().0.into()).collect();
        let doors: Vec<i32> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        let of_clients: Vec<_> = sockets
            .into_iter()
            .enumerate()
            .map(|(at, socket)| {
                let mut listening = Listening::nowhere(socket, "a seed", ListenerId::at(at));
                listening.is_inherited = seed.is_multiple_of(3);
                Acceptor::new(listening, &config.listeners)
            })
            .collect();
        let (loop_handle, messages) = LoopHandle::new(pair().0.into());
        let [children_bell, stop_bell] = [children_ours, stop_ours].map(|pipe| SignalPipe::new(pipe.into()));
        let signals = Signals {
            children: children_bell,
            messages,
            loop_handle,
            stop: stop_bell,
            hangup: None,
            reopen: Arc::default(),
            has_terminal: false,
        };
        let kernel = Kernel::new(seed, Rc::clone(&wires));
        wires.borrow_mut().most_open.extend(descriptors.map(|most| (doors[0], most)));
        wires.borrow_mut().steady = vec![signals.children.pipe.as_raw_fd(), signals.stop.pipe.as_raw_fd()];
        let of_admin: Option<OwnedFd> = has_admin.then(|| pair().0.into());
        let admin_door = of_admin.as_ref().map(AsRawFd::as_raw_fd);
        let of_admin = of_admin.map(|socket| Listening::nowhere(socket, "a seed", OPERATORS));
        let of_admin = of_admin.map(|listening| Acceptor::new(listening, &config.listeners));
        let acceptors: Vec<_> = of_clients.into_iter().chain(of_admin).collect();
        let admin = Admin::new(&config, &acceptors);
        let children_of_shell = Box::new(Rc::clone(&children));
        let source = Source { again: None, inherited: Arc::default() };
        let reloads = Reloads::new(source, Arc::new(config));
        let mut shell = Shell::new(reloads, kernel, children_of_shell, signals, allowance, acceptors, admin);
        shell.start_listening(None);
        Self { shell, wires, children, doors, admin_door, stop }
    }

    /// Connects to a listening socket: the peer's end, and the inode of the daemon's.
    pub(super) fn connects(&self, door: i32) -> (UnixStream, u64) {
        let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
        ours.set_nonblocking(true).expect("it is a socket");
        let inode = inode(&theirs);
        self.wires.borrow_mut().connecting.entry(door).or_default().push_back(theirs.into());
        (ours, inode)
    }
}
