//! Which server certificates are trusted: the bundled roots, the system's, and those of a file.
//!
//! A certificate of the file that the server itself presents is trusted as it is, since `openssl req -x509` makes an
//! authority and a server in one, which webpki rejects. It must be within its validity period and, if it names hosts,
//! name this one.

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

/// Trusts the bundled authorities, the system's, and these certificates. Unreadable system certificates are reported to
/// `unreadable`.
///
/// # Errors
/// Which of the certificates cannot be used, and why.
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
    let verifier = Verifier::new(TrustedRoots::Own { authorities, own });
    Ok(builder()?.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Trusts any server.
///
/// # Errors
/// Why TLS cannot be used here.
pub fn anyone() -> Result<ClientConfig, String> {
    let verifier = Verifier::new(TrustedRoots::Anyone);
    Ok(builder()?.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Reads the certificates of a PEM file.
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

/// Trusts more than webpki does, but still checks the handshake itself.
#[derive(Debug)]
struct Verifier {
    trust: TrustedRoots,
    algorithms: WebPkiSupportedAlgorithms,
}

#[derive(Debug)]
enum TrustedRoots {
    /// Any server.
    Anyone,
    /// The usual authorities, and some certificates as they are.
    Own { authorities: Arc<WebPkiServerVerifier>, own: Vec<CertificateDer<'static>> },
}

impl Verifier {
    fn new(trust: TrustedRoots) -> Arc<Self> {
        Arc::new(Self { trust, algorithms: provider().signature_verification_algorithms })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let TrustedRoots::Own { authorities, own } = &self.trust else { return Ok(ServerCertVerified::assertion()) };
        let verdict = authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match &verdict {
            // What webpki returns after checking the time and before checking the name.
            Err(Error::InvalidCertificate(CertificateError::Other(_) | CertificateError::UnknownIssuer))
                if own.iter().any(|own| own == end_entity) =>
            {
                let parsed = ParsedCertificate::try_from(end_entity)?;
                match rustls::client::verify_server_name(&parsed, server_name) {
                    Ok(()) => Ok(ServerCertVerified::assertion()),
                    // It names no host, as openssl makes it by default.
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
