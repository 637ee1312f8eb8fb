//! The kinds of files that stdin and stdout may be, which are left unchanged.

use super::*;

#[test]
fn the_flags_of_the_inherited_files_stay_as_they_are() {
    let daemon = Daemon::unix();
    let (input, editor) = pipe();
    let (output, stdout) = pipe();
    let mut command = Bridge::command(&daemon.address());
    command.stdin(input.try_clone().expect("a descriptor")).stdout(stdout.try_clone().expect("a descriptor"));
    let mut bridge = Bridge::from(command);
    let mut peer = daemon.accept();
    let before = (flags(&input, 0), flags(&stdout, 0));
    assert_eq!((before.0 | before.1) & libc::O_NONBLOCK, 0);
    let line = b"{\"id\":1,\"method\":\"m\"}\n";
    let mut editor = File::from(editor);
    editor.write_all(line).expect("the pipe has room");
    let mut seen = vec![0; line.len()];
    peer.read_exact(&mut seen).expect("the line arrives");
    peer.write_all(line).expect("the bridge reads");
    Reader::new(File::from(output)).exactly(line.len());
    assert_eq!((flags(&input, 0), flags(&stdout, 0)), before, "while it runs");
    drop(editor);
    drop(peer);
    assert_eq!(bridge.code(), Some(1));
    assert_eq!((flags(&input, 0), flags(&stdout, 0)), before, "after its end");
}

#[test]
fn files_made_nonblocking_by_another_process_are_waited_for() {
    let daemon = Daemon::unix();
    // Node.js gives its children socket pairs.
    for sockets in [false, true] {
        let ((input, editor), (output, stdout)) = if sockets {
            let (first, second) = (UnixStream::pair().expect("sockets"), UnixStream::pair().expect("sockets"));
            ((first.0.into(), first.1.into()), (second.0.into(), second.1.into()))
        } else {
            (pipe(), pipe())
        };
        flags(&input, libc::O_NONBLOCK);
        flags(&stdout, libc::O_NONBLOCK);
        let mut command = Bridge::command(&daemon.address());
        command.stdin(input).stdout(stdout);
        let mut bridge = Bridge::from(command);
        let peer = daemon.accept();
        let (up, down) = (lines(2 << 20, 4), lines(2 << 20, 5));
        let sender = send_all(peer.copy(), down.clone());
        let mut received = Reader::new(peer.copy());
        let (sent, expected) = (up.clone(), up.len());
        let writer = std::thread::spawn(move || File::from(editor).write_all(&sent));
        let mut shown = Reader::new(File::from(output));
        assert!(shown.exactly(down.len()) == down);
        assert!(received.exactly(expected) == up);
        sender.join().expect("the daemon said it all");
        writer.join().expect("no panic").expect("the editor said it all");
        assert_eq!(received.rest(), b"");
        peer.end_output();
        assert_eq!(bridge.code(), Some(1), "none of the requests was answered");
    }
}

#[test]
fn stdin_and_stdout_may_be_regular_files() {
    let daemon = Daemon::tcp();
    let directory = tempfile::tempdir().expect("a directory");
    let (input, output) = (directory.path().join("input"), directory.path().join("output"));
    let up = lines(300_000, 6);
    std::fs::write(&input, &up).expect("the disk has room");
    std::fs::write(&output, "before\n").expect("the disk has room");
    let mut command = Bridge::command(&daemon.address());
    let appended = File::options().append(true).open(&output).expect("it is there");
    command.stdin(File::open(&input).expect("it is there")).stdout(appended);
    let mut bridge = Bridge::from(command);
    let mut peer = daemon.accept();
    let mut received = Vec::new();
    peer.read_to_end(&mut received).expect("the end of the file is the end of stdin");
    assert!(received == up);
    let down = lines(300_000, 7);
    peer.write_all(&down).expect("the bridge reads");
    drop(peer);
    assert_eq!(bridge.code(), Some(1), "none of the requests was answered");
    let seen = std::fs::read(&output).expect("it is there");
    assert!(seen.starts_with(&[b"before\n", &down[..]].concat()), "{} bytes were written", seen.len());
}

#[test]
fn stdin_may_be_a_terminal() {
    let daemon = Daemon::unix();
    let (mut keyboard, terminal) = terminal();
    let mut command = Bridge::command(&daemon.address());
    command.stdin(terminal);
    let mut bridge = Bridge::from(command);
    let mut peer = daemon.accept();
    keyboard.write_all(b"{\"method\":\"m\"}\n").expect("the terminal takes it");
    let mut seen = [0; 15];
    peer.read_exact(&mut seen).expect("the line arrives");
    assert_eq!(&seen, b"{\"method\":\"m\"}\n");
    // Control-D at the start of a line ends the input.
    keyboard.write_all(&[4]).expect("the terminal takes it");
    assert_eq!(peer.read(&mut seen).expect("the end arrives"), 0);
    drop(peer);
    assert_eq!(bridge.code(), Some(0));
}
