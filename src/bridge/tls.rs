//! TLS around a connection: bytes become records and records become bytes. It does no I/O but to read certificates.
//!
//! Without the feature `tls` there is no value of the type, and the command line has refused `wss://` and `https://`.

/// What is wrong with the other end's TLS, and what to do about it.
#[derive(Debug)]
pub(super) struct TlsError {
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

pub(super) use imp::{Tls, Trust};

#[cfg(feature = "tls")]
mod imp {
    use std::io::{self, Read, Write};
    use std::path::Path;
    use std::sync::Arc;

    use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, Error};
    use rustls_pki_types::ServerName;

    use super::TlsError;
    use crate::trust;

    /// Whom connections by TLS are made to, and who is believed to vouch for that.
    pub(in crate::bridge) struct Trust(Arc<ClientConfig>, ServerName<'static>);

    /// The client's end of a TLS connection.
    pub(in crate::bridge) struct Tls(Box<ClientConnection>);

    impl Trust {
        /// For connections to this host, which a certificate of the usual authorities or of this file must stand for.
        ///
        /// # Errors
        /// The file cannot be used, or no certificate can stand for such a host.
        pub(in crate::bridge) fn new(host: &str, ca_file: Option<&Path>) -> Result<Self, String> {
            let named = |problem| format!("--ca-file {problem}");
            let own = ca_file.map(trust::certificates).transpose().map_err(named)?.unwrap_or_default();
            // What the system has that is unreadable is missed only if it is needed, and then the remedy says so.
            let mut config = trust::authorities(own, |_| ()).map_err(|problem| match ca_file {
                Some(path) => format!("--ca-file {}: {problem}", path.display()),
                None => problem,
            })?;
            // A balancer must not take it for HTTP/2.
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            let name = ServerName::try_from(host.to_owned())
                .map_err(|_| format!("no certificate can stand for the host {host}"))?;
            Ok(Self(Arc::new(config), name))
        }

        /// A connection.
        ///
        /// # Errors
        /// It cannot even begin.
        pub(in crate::bridge) fn begin(&self) -> Result<Tls, String> {
            let connection = ClientConnection::new(Arc::clone(&self.0), self.1.clone());
            let mut connection = connection.map_err(|error| error.to_string())?;
            // Whoever writes here sends all of it before writing more.
            connection.set_buffer_limit(None);
            Ok(Tls(Box::new(connection)))
        }
    }

    impl Tls {
        /// Whether it is not agreed on yet who speaks.
        pub(in crate::bridge) fn is_handshaking(&self) -> bool {
            self.0.is_handshaking()
        }

        /// Appends to `sealed` what is to be sent for these bytes, and whatever else the connection has to say.
        pub(in crate::bridge) fn seal(&mut self, plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
            self.0.writer().write_all(plain)?;
            while self.0.wants_write() {
                self.0.write_tls(sealed)?;
            }
            Ok(())
        }

        /// Appends to `plain` what was said in these bytes.
        ///
        /// # Errors
        /// It is not TLS, or not the host that was asked for. What [`Tls::seal`] gives then tells the other end.
        pub(in crate::bridge) fn open(&mut self, mut sealed: &[u8], plain: &mut Vec<u8>) -> Result<(), TlsError> {
            let broken = |error: io::Error| TlsError { what: error.to_string(), remedy: String::new() };
            while !sealed.is_empty() {
                // What follows the end of the connection is nothing.
                if self.0.read_tls(&mut sealed).map_err(broken)? == 0 {
                    break;
                }
                let state = self.0.process_new_packets().map_err(|error| told(&error))?;
                let opened = plain.len();
                plain.resize(opened + state.plaintext_bytes_to_read(), 0);
                self.0.reader().read_exact(&mut plain[opened..]).map_err(broken)?;
            }
            Ok(())
        }

        /// Whether it has something to say by itself.
        pub(in crate::bridge) fn has_to_say(&self) -> bool {
            self.0.wants_write()
        }

        /// Says with the next bytes that nothing follows them.
        pub(in crate::bridge) fn close(&mut self) {
            self.0.send_close_notify();
        }
    }

    fn told(error: &Error) -> TlsError {
        let remedy = match error {
            Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                "its certificate is of no authority that is believed here; name a private one with --ca-file FILE (PEM), or \
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
            ) => "its certificate is out of date, or a clock is wrong; whoever runs the daemon has to renew it",
            Error::InvalidMessage(_) => {
                "something else than TLS answers; check the port, or write ws:// or http:// if it is plain"
            }
            Error::AlertReceived(AlertDescription::CertificateRequired) => {
                "it wants a certificate of its client, which a bridge does not have; use a token instead"
            }
            _ => "check that the URL is right, and what stands before the daemon there",
        };
        TlsError { what: error.to_string(), remedy: remedy.to_owned() }
    }
}

#[cfg(not(feature = "tls"))]
mod imp {
    use std::io;
    use std::path::Path;

    use super::TlsError;

    /// There is none.
    pub(in crate::bridge) enum Trust {}

    /// There is none.
    pub(in crate::bridge) enum Tls {}

    impl Trust {
        pub(in crate::bridge) fn new(_host: &str, _ca_file: Option<&Path>) -> Result<Self, String> {
            Err("this program was built without TLS".to_owned())
        }

        pub(in crate::bridge) fn begin(&self) -> Result<Tls, String> {
            match *self {}
        }
    }

    impl Tls {
        pub(in crate::bridge) fn is_handshaking(&self) -> bool {
            match *self {}
        }

        pub(in crate::bridge) fn seal(&mut self, _plain: &[u8], _sealed: &mut Vec<u8>) -> io::Result<()> {
            match *self {}
        }

        pub(in crate::bridge) fn open(&mut self, _sealed: &[u8], _plain: &mut Vec<u8>) -> Result<(), TlsError> {
            match *self {}
        }

        pub(in crate::bridge) fn has_to_say(&self) -> bool {
            match *self {}
        }

        pub(in crate::bridge) fn close(&mut self) {
            match *self {}
        }
    }
}
