//! TLS for a connection: encrypts and decrypts bytes. Its only I/O is to read certificates.
//!
//! Without the feature `tls` the type has no values, and the command line has refused `wss://` and `https://`.

/// A TLS error of the peer, with a remedy.
#[derive(Debug)]
pub(super) struct TlsError {
    /// What is wrong.
    pub what: String,
    pub remedy: String,
}

pub(super) use imp::{Tls, TlsTrust};

#[cfg(feature = "tls")]
mod imp {
    use std::io::{self, Read, Write};
    use std::path::Path;
    use std::sync::Arc;

    use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, Error};
    use rustls_pki_types::ServerName;

    use super::TlsError;
    use crate::trust;

    /// The server name of TLS connections, and the trusted authorities.
    pub(in crate::commands::daemon::bridge) struct TlsTrust(Arc<ClientConfig>, ServerName<'static>);

    /// The client's end of a TLS connection.
    pub(in crate::commands::daemon::bridge) struct Tls(Box<ClientConnection>);

    impl TlsTrust {
        /// For connections to this host, whose certificate has to be signed by a usual authority or one in this file.
        ///
        /// # Errors
        /// The file cannot be used, or the host is not valid in a certificate.
        pub(in crate::commands::daemon::bridge) fn new(host: &str, ca_file: Option<&Path>) -> Result<Self, String> {
            let named = |problem| format!("--ca-file {problem}");
            let own = ca_file.map(trust::certificates).transpose().map_err(named)?.unwrap_or_default();
            // Unreadable certificates of the system matter only if they are needed, and then the remedy mentions them.
            let mut config = trust::authorities(own, |_| ()).map_err(|problem| match ca_file {
                Some(path) => format!("--ca-file {}: {problem}", path.display()),
                None => problem,
            })?;
            // A load balancer must not choose HTTP/2.
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            let name = ServerName::try_from(host.to_owned())
                .map_err(|_| format!("no certificate can be valid for the host {host}"))?;
            Ok(Self(Arc::new(config), name))
        }

        /// Starts a connection.
        ///
        /// # Errors
        /// It cannot be started.
        pub(in crate::commands::daemon::bridge) fn begin(&self) -> Result<Tls, String> {
            let connection = ClientConnection::new(Arc::clone(&self.0), self.1.clone());
            let mut connection = connection.map_err(|error| error.to_string())?;
            // The writer sends all bytes before it writes more.
            connection.set_buffer_limit(None);
            Ok(Tls(Box::new(connection)))
        }
    }

    impl Tls {
        /// Whether the handshake is in progress.
        pub(in crate::commands::daemon::bridge) fn is_handshaking(&self) -> bool {
            self.0.is_handshaking()
        }

        /// Appends the encryption of these bytes to `sealed`, and any other pending records.
        pub(in crate::commands::daemon::bridge) fn seal(
            &mut self,
            plain: &[u8],
            sealed: &mut Vec<u8>,
        ) -> io::Result<()> {
            self.0.writer().write_all(plain)?;
            while self.0.wants_write() {
                self.0.write_tls(sealed)?;
            }
            Ok(())
        }

        /// Appends the decryption of these bytes to `plain`.
        ///
        /// # Errors
        /// They are not TLS, or not from the requested host. [`Tls::seal`] then returns the alert for the peer.
        pub(in crate::commands::daemon::bridge) fn open(
            &mut self,
            mut sealed: &[u8],
            plain: &mut Vec<u8>,
        ) -> Result<(), TlsError> {
            let broken = |error: io::Error| TlsError { what: error.to_string(), remedy: String::new() };
            while !sealed.is_empty() {
                // Bytes after the end of the connection are ignored.
                if self.0.read_tls(&mut sealed).map_err(broken)? == 0 {
                    break;
                }
                let state = self.0.process_new_packets().map_err(|error| tls_error(&error))?;
                let opened = plain.len();
                plain.resize(opened + state.plaintext_bytes_to_read(), 0);
                self.0.reader().read_exact(&mut plain[opened..]).map_err(broken)?;
            }
            Ok(())
        }

        /// Whether it has records to send.
        pub(in crate::commands::daemon::bridge) fn has_to_say(&self) -> bool {
            self.0.wants_write()
        }

        /// Queues the close notification.
        pub(in crate::commands::daemon::bridge) fn close(&mut self) {
            self.0.send_close_notify();
        }
    }

    fn tls_error(error: &Error) -> TlsError {
        let remedy = match error {
            Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                "its certificate was issued by no authority that is trusted here; name a private one with --ca-file \
                 FILE (PEM), or \
                 a file with the certificate itself"
            }
            Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => "its certificate is for other names; connect by one of them",
            Error::InvalidCertificate(
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. },
            ) => "its certificate is out of date, or a clock is wrong; the daemon's operator has to renew it",
            Error::InvalidMessage(_) => {
                "something else than TLS answers; check the port, or write ws:// or http:// if it is plain"
            }
            Error::AlertReceived(AlertDescription::CertificateRequired) => {
                "it wants a certificate of its client, which a bridge does not have; use a token instead"
            }
            _ => "check that the URL is right, and the proxy in front of the daemon",
        };
        TlsError { what: error.to_string(), remedy: remedy.to_owned() }
    }
}

#[cfg(not(feature = "tls"))]
mod imp {
    use std::io;
    use std::path::Path;

    use super::TlsError;

    /// Not available.
    pub(in crate::commands::daemon::bridge) enum TlsTrust {}

    /// Not available.
    pub(in crate::commands::daemon::bridge) enum Tls {}

    impl TlsTrust {
        pub(in crate::commands::daemon::bridge) fn new(_host: &str, _ca_file: Option<&Path>) -> Result<Self, String> {
            Err("this program was built without TLS".to_owned())
        }

        pub(in crate::commands::daemon::bridge) fn begin(&self) -> Result<Tls, String> {
            match *self {}
        }
    }

    impl Tls {
        pub(in crate::commands::daemon::bridge) fn is_handshaking(&self) -> bool {
            match *self {}
        }

        pub(in crate::commands::daemon::bridge) fn seal(
            &mut self,
            _plain: &[u8],
            _sealed: &mut Vec<u8>,
        ) -> io::Result<()> {
            match *self {}
        }

        pub(in crate::commands::daemon::bridge) fn open(
            &mut self,
            _sealed: &[u8],
            _plain: &mut Vec<u8>,
        ) -> Result<(), TlsError> {
            match *self {}
        }

        pub(in crate::commands::daemon::bridge) fn has_to_say(&self) -> bool {
            match *self {}
        }

        pub(in crate::commands::daemon::bridge) fn close(&mut self) {
            match *self {}
        }
    }
}
