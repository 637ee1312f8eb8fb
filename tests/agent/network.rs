//! TLS and proxies. The certificate (and its key, which protects nothing) lie beside this file.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use super::client::{Client, PATIENCE};
use super::endpoint::Endpoint;

const BODY: &str =
    "data: {\"choices\":[{\"delta\":{\"content\":\"over TLS\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

fn certificate_file() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agent/certificate.pem").to_owned()
}

/// An endpoint behind TLS, HTTP/1.1 only.
fn tls_endpoint() -> SocketAddr {
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};
    let certificate = CertificateDer::from_pem_slice(include_bytes!("certificate.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("key.pem")).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let config = config.clone();
            std::thread::spawn(move || {
                let connection = rustls::ServerConnection::new(config).unwrap();
                let mut tls = BufReader::new(rustls::StreamOwned::new(connection, stream));
                let (mut length, mut line) = (0, String::new());
                while tls.read_line(&mut line).is_ok_and(|count| count > 2) {
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    line.clear();
                }
                let mut body = vec![0; length];
                if length == 0 || tls.read_exact(&mut body).is_err() {
                    return;
                }
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", BODY.len());
                let _ = tls.get_mut().write_all(format!("{head}{BODY}").as_bytes());
                let _ = tls.get_mut().flush();
            });
        }
    });
    address
}

/// A proxy that knows both ways, sends everything to `target` and tells the first lines and the authentication.
fn proxy(target: SocketAddr) -> (SocketAddr, Receiver<(String, Option<String>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, requests) = channel();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let seen = seen.clone();
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).is_ok_and(|count| count == 1) {
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap();
                let first = head.lines().next().unwrap_or_default().to_owned();
                let auth = head.lines().find_map(|line| {
                    line.to_ascii_lowercase().starts_with("proxy-authorization").then(|| line.to_owned())
                });
                let _ = seen.send((first.clone(), auth));
                let mut server = TcpStream::connect(target).unwrap();
                match first.starts_with("CONNECT ") {
                    true => client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap(),
                    false => server.write_all(head.as_bytes()).unwrap(),
                }
                let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                let _ = std::io::copy(&mut server, &mut client);
            });
        }
    });
    (address, requests)
}

#[test]
fn tls_works_with_a_certificate_that_is_trusted_and_only_then() {
    let address = tls_endpoint();
    let url = format!("https://localhost:{}/v1", address.port());
    let mut client = Client::start(&[("OPENAI_BASE_URL", &url), ("OPENAI_CA_FILE", &certificate_file())]);
    let session = client.session();
    assert_eq!(client.prompt(&session, "hi").text(), "over TLS");
    let mut client = Client::start(&[("OPENAI_BASE_URL", &url), ("SSL_CERT_FILE", &certificate_file())]);
    let session = client.session();
    assert_eq!(client.prompt(&session, "hi").text(), "over TLS");
    let mut client = Client::start(&[("OPENAI_BASE_URL", &url), ("OPENAI_MAX_RETRIES", "0")]);
    let session = client.session();
    let text = client.prompt(&session, "hi").text();
    assert!(text.starts_with("Network error connecting to https://") && text.contains("certificate"), "{text}");
}

#[test]
fn a_proxy_tunnels_tls_and_forwards_what_is_plain() {
    let (address, requests) = proxy(tls_endpoint());
    let proxy_url = format!("http://user:pass@{address}");
    let mut client = Client::start(&[
        ("OPENAI_BASE_URL", "https://model.test/v1"),
        ("OPENAI_CA_FILE", &certificate_file()),
        ("HTTPS_PROXY", &proxy_url),
    ]);
    let session = client.session();
    assert_eq!(client.prompt(&session, "hi").text(), "over TLS");
    let (first, auth) = requests.recv_timeout(PATIENCE).unwrap();
    assert_eq!(first, "CONNECT model.test:443 HTTP/1.1");
    assert!(auth.unwrap().ends_with("Basic dXNlcjpwYXNz"));

    let endpoint = Endpoint::saying(&["plain"]);
    let (address, requests) = proxy(endpoint.address);
    let proxy_url = format!("http://user:pass@{address}");
    let mut client = Client::start(&[("OPENAI_BASE_URL", "http://model.test/v1"), ("http_proxy", &proxy_url)]);
    let session = client.session();
    assert_eq!(client.prompt(&session, "hi").text(), "plain");
    let (first, auth) = requests.recv_timeout(PATIENCE).unwrap();
    assert_eq!(first, "POST http://model.test/v1/chat/completions HTTP/1.1");
    assert!(auth.unwrap().ends_with("Basic dXNlcjpwYXNz"));

    // This machine is asked without the proxy, and so is what NO_PROXY names.
    let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("http_proxy", &proxy_url)]);
    let session = client.session();
    assert_eq!(client.prompt(&session, "hi").text(), "plain");
    assert!(requests.try_recv().is_err());
}
