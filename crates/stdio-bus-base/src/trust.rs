//! Which certificates of servers are believed: the bundled roots, the system's, and those of a file.
//!
//! A certificate of the file that the server itself presents is believed as it stands, since whoever made it with
//! `openssl req -x509` made an authority and a server in one, which webpki takes for a mistake. It must be within its
//! time, and where it names hosts, name this one.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// Believes the bundled authorities, the system's, and these certificates. What cannot be read of the system's is told
/// to `unreadable`.
///
/// # Errors
/// One of the certificates cannot be used, and why.
pub fn authorities(
    own: Vec<CertificateDer<'static>>,
    mut unreadable: impl FnMut(&dyn Display),
) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        unreadable(error);
    }
    roots.add_parsable_certificates(native.certs);
    if own.is_empty() {
        return Ok(builder()?.with_root_certificates(roots).with_no_client_auth());
    }
    for certificate in &own {
        roots.add(certificate.clone()).map_err(|error| error.to_string())?;
    }
    let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| error.to_string())?;
    let believer = Believer::new(Belief::Own { authorities, own });
    Ok(builder()?.dangerous().with_custom_certificate_verifier(believer).with_no_client_auth())
}

/// Believes whoever answers.
///
/// # Errors
/// TLS cannot be used here, and why.
pub fn anyone() -> Result<ClientConfig, String> {
    let believer = Believer::new(Belief::Anyone);
    Ok(builder()?.dangerous().with_custom_certificate_verifier(believer).with_no_client_auth())
}

/// The certificates of a PEM file.
///
/// # Errors
/// The path and what is wrong with the file.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unusable = |problem: &dyn Display| format!("{}: {problem}", path.display());
    let text = std::fs::read(path).map_err(|error| unusable(&error))?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let read = read.map_err(|error| unusable(&error))?;
    match read.is_empty() {
        true => Err(unusable(&"has no certificate in it (-----BEGIN CERTIFICATE-----)")),
        false => Ok(read),
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, String> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())
}

/// Believes more than webpki does, and checks the handshake itself all the same.
#[derive(Debug)]
struct Believer {
    belief: Belief,
    algorithms: WebPkiSupportedAlgorithms,
}

#[derive(Debug)]
enum Belief {
    /// Whoever answers.
    Anyone,
    /// The usual authorities, and some certificates as they stand.
    Own { authorities: Arc<WebPkiServerVerifier>, own: Vec<CertificateDer<'static>> },
}

impl Believer {
    fn new(belief: Belief) -> Arc<Self> {
        Arc::new(Self { belief, algorithms: provider().signature_verification_algorithms })
    }
}

impl ServerCertVerifier for Believer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Belief::Own { authorities, own } = &self.belief else { return Ok(ServerCertVerified::assertion()) };
        let verdict = authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match &verdict {
            // What webpki says after it has looked at the time, and before it looks at the name.
            Err(Error::InvalidCertificate(CertificateError::Other(_) | CertificateError::UnknownIssuer))
                if own.iter().any(|own| own == end_entity) =>
            {
                let parsed = ParsedCertificate::try_from(end_entity)?;
                match rustls::client::verify_server_name(&parsed, server_name) {
                    Ok(()) => Ok(ServerCertVerified::assertion()),
                    // It names nobody, as openssl makes it by default.
                    Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. }))
                        if presented.is_empty() =>
                    {
                        Ok(ServerCertVerified::assertion())
                    }
                    Err(error) => Err(error),
                }
            }
            _ => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
