//! TLS and proxies. The certificate (and its key, which protects nothing) are in this directory.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use super::client::{Client, PATIENCE, program};
use super::endpoint::Endpoint;

const BODY: &str =
    "data: {\"choices\":[{\"delta\":{\"content\":\"over TLS\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

fn certificate_file() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agent/certificate.pem").to_owned()
}

/// The certificate that `openssl req -x509` makes for a name: authority and server in one.
fn self_signed(name: &str) -> String {
    format!("{}/tests/agent/self-signed/{name}.pem", env!("CARGO_MANIFEST_DIR"))
}

/// An endpoint behind TLS with the certificate signed by the tests' authority.
fn tls_endpoint() -> SocketAddr {
    tls_endpoint_with(&certificate_file(), concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agent/key.pem")).0
}

/// An endpoint behind TLS, HTTP/1.1 only, and how many connections were made to it.
fn tls_endpoint_with(certificate: &str, key: &str) -> (SocketAddr, Arc<AtomicUsize>) {
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};
    let certificate = CertificateDer::from_pem_file(certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::Relaxed);
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
    (address, connections)
}

/// A proxy that tunnels and forwards, sends everything to `target` and reports the first lines and the authentication.
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
fn a_proxy_tunnels_tls_and_forwards_plain_requests() {
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

    // This machine is reached without the proxy, and so is what NO_PROXY names.
    let mut client = Client::start(&[("OPENAI_BASE_URL", &endpoint.url()), ("http_proxy", &proxy_url)]);
    let session = client.session();
    assert_eq!(client.prompt(&session, "hi").text(), "plain");
    assert!(requests.try_recv().is_err());
}

#[test]
fn a_self_signed_certificate_is_trusted_when_it_is_named() {
    let prompt = |certificate: &str, env: &[(&str, &str)]| {
        let (address, connections) = tls_endpoint_with(&self_signed(certificate), &self_signed("key"));
        let url = format!("https://localhost:{}/v1", address.port());
        let env: Vec<(&str, &str)> = env.iter().copied().chain([("OPENAI_BASE_URL", url.as_str())]).collect();
        let mut client = Client::logging("warn", &env);
        let session = client.session();
        let text = client.prompt(&session, "hi").text();
        (text, connections.load(Ordering::Relaxed), client.log())
    };
    for certificate in ["localhost", "nobody"] {
        let (text, ..) = prompt(certificate, &[("OPENAI_CA_FILE", &self_signed(certificate))]);
        assert_eq!(text, "over TLS", "{certificate}");
    }
    // For another host, expired, or not configured: reported at once, and never retried.
    for (certificate, named, problem) in [
        ("elsewhere", "elsewhere", "localhost"),
        ("expired", "expired", "expired"),
        ("localhost", "nobody", "certificate"),
        ("nobody", "localhost", "certificate"),
    ] {
        let (text, connections, _) = prompt(certificate, &[("OPENAI_CA_FILE", &self_signed(named))]);
        assert!(text.starts_with("Network error connecting to https://") && text.contains(problem), "{text}");
        assert!(text.contains("OPENAI_CA_FILE can name a certificate"), "{text}");
        assert_eq!(connections, 1, "{text}");
    }
    let (text, connections, _) = prompt("localhost", &[]);
    assert!(text.contains("invalid peer certificate") && connections == 1, "{text}");
    // A user who turns verification off is warned.
    let (text, _, log) = prompt("expired", &[("OPENAI_TLS_INSECURE", "1")]);
    assert_eq!(text, "over TLS");
    assert!(log.contains("warning: OPENAI_TLS_INSECURE=1: the endpoint's certificate is not checked"), "{log}");
}

#[test]
fn a_file_without_certificates_stops_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.pem");
    let key = std::fs::read_to_string(self_signed("key")).unwrap();
    for (content, problem) in [
        ("", "has no certificate in it"),
        ("not PEM at all", "has no certificate in it"),
        (key.as_str(), "has no certificate in it"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "OPENAI_CA_FILE"),
        ("-----BEGIN CERTIFICATE-----\n&\n-----END CERTIFICATE-----\n", "OPENAI_CA_FILE"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n", "OPENAI_CA_FILE"),
    ] {
        std::fs::write(&path, content).unwrap();
        for action in ["acp", "check"] {
            let mut command = program();
            command.arg(action).env("OPENAI_CA_FILE", &path).stdin(std::process::Stdio::null());
            let output = command.output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(78), "{action} {content:?}: {said}");
            assert!(said.contains("OPENAI_CA_FILE: ") && said.contains(problem), "{said}");
        }
    }
}

#[test]
fn a_plain_endpoint_is_not_accepted_for_https() {
    // The answer of a server that takes the handshake for a request.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/v1", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::Relaxed);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n");
            let _ = stream.read(&mut [0; 1024]);
        }
    });
    let mut client = Client::start(&[("OPENAI_BASE_URL", &url)]);
    let session = client.session();
    let text = client.prompt(&session, "hi").text();
    assert!(text.ends_with("does the endpoint speak TLS?"), "{text}");
    assert_eq!(connections.load(Ordering::Relaxed), 1, "it is not tried again");
}

#[test]
fn a_proxy_whose_port_does_not_exist_stops_the_start() {
    for (name, url) in [("HTTPS_PROXY", "https://model.test/v1"), ("http_proxy", "http://model.test/v1")] {
        for action in ["acp", "check"] {
            let mut command = program();
            command.arg(action).env("OPENAI_BASE_URL", url).env(name, "http://user:pass-word@127.0.0.1:70000");
            let output = command.stdin(std::process::Stdio::null()).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(78), "{said}");
            assert!(said.contains("the port of a proxy") && !said.contains("pass-word"), "{said}");
        }
    }
}

/// A server that gives this answer to every connection once it was asked something, and how many there were.
fn answering(answer: &'static [u8]) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, connections) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = connections.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer);
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            });
        }
    });
    (address, connections)
}

/// The chat's text of a prompt in this environment.
fn text_of(env: &[(&str, &str)]) -> String {
    let mut client = Client::start(env);
    let session = client.session();
    client.prompt(&session, "hi").text()
}

#[test]
fn a_proxy_that_opens_no_tunnel_is_named_with_its_status_and_a_remedy() {
    let url = "https://model.test/v1";
    for (answer, credentials, words, tries) in [
        (
            &b"HTTP/1.1 407 Proxy Authentication Required\r\nproxy-authenticate: Basic\r\n\r\n"[..],
            "",
            "asks for a user and a password (HTTP 407): write user:password@ before its host in HTTPS_PROXY",
            1,
        ),
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
            "user:wrong-pass@",
            "refuses the user or the password that HTTPS_PROXY has for it (HTTP 407)",
            1,
        ),
        (
            b"HTTP/1.1 403 Forbidden\r\ncontent-length: 4\r\n\r\nno!\n",
            "",
            "opens no tunnel to model.test:443 (HTTP 403 Forbidden): check HTTPS_PROXY, or name the host in NO_PROXY if it \
             can be reached without a proxy",
            1,
        ),
        (
            b"HTTP/1.1 502 Bad Gateway\r\n\r\n",
            "",
            "opens no tunnel to model.test:443 (HTTP 502 Bad Gateway): check HTTPS_PROXY, or name the host in NO_PROXY if \
             it can be reached without a proxy",
            2,
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "", "does not answer in HTTP: check HTTPS_PROXY", 1),
        (b"", "", "closed the connection when it was asked for a tunnel to model.test:443", 2),
    ] {
        let (address, connections) = answering(answer);
        let proxy = format!("http://{credentials}{address}");
        let text = text_of(&[("OPENAI_BASE_URL", url), ("HTTPS_PROXY", &proxy), ("OPENAI_MAX_RETRIES", "1")]);
        assert_eq!(text, format!("Network error connecting to {url}/chat/completions: the proxy {address} {words}"));
        assert_eq!(connections.load(Ordering::Relaxed), tries, "{text}");
    }
}

#[test]
fn a_proxy_that_cannot_be_reached_is_named() {
    let (free, _keeps_it) = crate::ports::unused();
    let (url, proxy) = ("http://model.test/v1", format!("http://{free}"));
    let text = text_of(&[("OPENAI_BASE_URL", url), ("http_proxy", &proxy), ("OPENAI_MAX_RETRIES", "0")]);
    let words = format!("the proxy {free} cannot be reached: ");
    assert!(text.starts_with(&format!("Network error connecting to {url}/chat/completions: {words}")), "{text}");
}

#[test]
fn a_status_of_a_forwarding_proxy_is_reported_with_the_proxy() {
    let url = "http://model.test/v1";
    let (address, _) = answering(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n");
    let proxy = format!("http://{address}");
    let text = text_of(&[("OPENAI_BASE_URL", url), ("http_proxy", &proxy), ("OPENAI_MAX_RETRIES", "0")]);
    assert_eq!(
        text,
        format!(
            "Server error (HTTP 502) from {url}/chat/completions. The request was forwarded by the proxy {address}, which \
             may have answered in place of the endpoint: NO_PROXY names hosts that are reached without it."
        )
    );
}

#[test]
fn a_server_that_speaks_http_2_only_over_tls_is_named_and_not_asked_again() {
    // TLS's answer to a client that offers no protocol of the server's: alert 120, no_application_protocol.
    let (address, connections) = answering(&[0x15, 3, 3, 0, 2, 2, 120]);
    let text = text_of(&[("OPENAI_BASE_URL", &format!("https://{address}/v1"))]);
    assert!(text.ends_with("; the server speaks HTTP/2 only, and this agent HTTP/1.1"), "{text}");
    assert_eq!(connections.load(Ordering::Relaxed), 1, "{text}");
}
