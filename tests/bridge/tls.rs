//! A load balancer in front of a daemon: TLS to the bridge, and plain bytes to the test. The certificates beside this
//! file are of an authority that only these tests know; their keys protect nothing.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use rustls::{ServerConfig, ServerConnection};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;

use super::{Bridge, Reader};

pub fn file(name: &str) -> String {
    format!("{}/tests/bridge/tls/{name}.pem", env!("CARGO_MANIFEST_DIR"))
}

/// Terminates TLS for a listener at `plain`, and returns its address.
pub fn front(plain: SocketAddr) -> SocketAddr {
    front_at("127.0.0.1", plain)
}

fn front_at(address: &str, plain: SocketAddr) -> SocketAddr {
    let certificate = CertificateDer::from_pem_file(file("certificate")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(file("key")).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![certificate], key));
    let config = Arc::new(config.expect("they go together"));
    let listener = TcpListener::bind((address, 0)).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    // The threads end with their connections, and the first one with the test.
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
            std::thread::spawn(move || pass_on(connection, client, plain));
        }
    });
    address
}

fn pass_on(connection: ServerConnection, mut client: TcpStream, plain: SocketAddr) {
    let tls = Arc::new(Mutex::new(connection));
    tls.lock().expect("no panic").set_buffer_limit(None);
    let server = TcpStream::connect(plain).expect("the test listens");
    let (mut from_server, mut to_client) =
        (server.try_clone().expect("a descriptor"), client.try_clone().expect("one"));
    let theirs = Arc::clone(&tls);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = from_server.read(&mut buffer).unwrap_or(0);
            let mut tls = theirs.lock().expect("no panic");
            match count {
                0 => tls.send_close_notify(),
                _ => tls.writer().write_all(&buffer[..count]).expect("there is no limit"),
            }
            if flush(&mut tls, &mut to_client).is_err() || count == 0 {
                let _ = to_client.shutdown(Shutdown::Write);
                return;
            }
        }
    });
    // However a connection ends, it ends the one to the server.
    let _ = take_in(&tls, &mut client, &server);
    let _ = server.shutdown(Shutdown::Both);
    let _ = client.shutdown(Shutdown::Both);
}

fn take_in(tls: &Mutex<ServerConnection>, client: &mut TcpStream, mut server: &TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = client.read(&mut buffer)?;
        let mut rest = &buffer[..count];
        let mut plain = Vec::new();
        while !rest.is_empty() {
            let mut tls = tls.lock().expect("no panic");
            let read = tls.read_tls(&mut rest)?;
            let state = tls.process_new_packets();
            flush(&mut tls, client)?;
            let state = state.map_err(std::io::Error::other)?;
            let opened = plain.len();
            plain.resize(opened + state.plaintext_bytes_to_read(), 0);
            tls.reader().read_exact(&mut plain[opened..])?;
            if read == 0 {
                break;
            }
        }
        server.write_all(&plain)?;
        if count == 0 {
            return Ok(());
        }
    }
}

fn flush(tls: &mut ServerConnection, client: &mut TcpStream) -> std::io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(client)?;
    }
    Ok(())
}

/// The error for a request that cannot reach the daemon, and the log.
fn told(url: &str, arguments: &[String]) -> (String, String) {
    let mut command = Bridge::command(url);
    command.args(arguments);
    let mut bridge = Bridge::from(command);
    let mut stdout = Reader::new(bridge.child.stdout.take().expect("stdout is a pipe"));
    bridge.send(b"{\"id\":1,\"method\":\"initialize\"}\n");
    let error: Value = stdout.message();
    assert_eq!((&error["id"], &error["error"]["data"]["reason"]), (&1.into(), &"daemon_unreachable".into()));
    bridge.end_input();
    assert_eq!(bridge.code(), Some(1));
    (error["error"]["message"].as_str().expect("a message").to_owned(), bridge.stderr.text())
}

#[test]
fn a_certificate_is_trusted_only_for_its_host_and_from_a_trusted_authority() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = front(listener.local_addr().expect("it is bound")).port();
    let with = |name: &str| vec!["--ca-file".to_owned(), file(name)];
    let other = format!("{}/crates/openai-agent/tests/agent/self-signed/elsewhere.pem", env!("CARGO_MANIFEST_DIR"));
    for arguments in [vec![], vec!["--ca-file".to_owned(), other]] {
        let (message, log) = told(&format!("wss://localhost:{port}/acp"), &arguments);
        assert!(message.contains("UnknownIssuer"), "{message}");
        assert!(log.contains("--ca-file FILE"), "{log}");
    }
    // All of 127.0.0.0/8 is this machine, but the certificate is for one of its addresses.
    let elsewhere = front_at("127.0.0.2", listener.local_addr().expect("it is bound"));
    let (message, log) = told(&format!("wss://{elsewhere}/acp"), &with("authority"));
    assert!(message.contains("TLS") && log.contains("for other names"), "{message} {log}");
    let (_, log) = told(&format!("wss://localhost:{port}/acp"), &with("key"));
    assert!(log.contains("--ca-file /") && log.contains("no certificate in it"), "{log}");
    let (_, log) = told(&format!("wss://localhost:{port}/acp"), &with("missing"));
    assert!(log.contains("missing.pem: No such file"), "{log}");
}

#[test]
fn unexpected_tls_and_missing_tls_are_distinguished() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let plain = listener.local_addr().expect("it is bound");
    let port = front(plain).port();
    let (message, log) = told(&format!("ws://localhost:{port}/acp"), &[]);
    assert!(message.contains("not HTTP") && log.contains("wss:// if it speaks TLS"), "{message} {log}");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let plain = listener.local_addr().expect("it is bound");
    let server = std::thread::spawn(move || {
        let mut socket = listener.accept().expect("a connection").0;
        let _ = socket.read(&mut [0; 16]);
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let (message, log) = told(&format!("wss://{plain}/acp"), &[]);
    assert!(message.contains("TLS") && log.contains("something else than TLS"), "{message} {log}");
    server.join().expect("it has answered");
}
