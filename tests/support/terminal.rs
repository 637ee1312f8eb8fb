//! Pseudo-terminals.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// A new terminal: the user's end, and the end of programs.
pub fn terminal() -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("there are terminals");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("it is new");
    let name = ptsname(&master, Vec::new()).expect("it has a name").into_string().expect("a path");
    let terminal = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(name);
    (master.into(), terminal.expect("it can be opened"))
}
