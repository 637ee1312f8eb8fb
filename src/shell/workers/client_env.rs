//! What the worker of one client gets as variables (`pools[].env_from`): values of headers of its request, and a file for its
//! name. The values are the worker's alone: they are kept as long as their client, never shown, and overwritten then.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use crate::access::Credentials;
use crate::bus::port::{NameAuthority, Names, Owner};
use crate::config::EnvFrom;
use crate::env_file::{self, Unread, Variables};

/// What is known of a client for its own worker.
pub(in crate::shell) struct EnvSource {
    /// Its verified name, and who vouches for it.
    owner: Option<(NameAuthority, Arc<str>)>,
    /// What its request has brought.
    credentials: Option<Rc<Credentials>>,
}

impl EnvSource {
    pub(in crate::shell) fn new(names: &Names, credentials: Option<Rc<Credentials>>) -> Self {
        Self { owner: names.owner().map(|owner| (owner.vouches, owner.name.into())), credentials }
    }
}

/// The variables of one client's worker.
pub(crate) struct ClientEnv {
    /// Those of headers.
    values: Variables,
    /// The file of its name: the folder, the subfolder and the name.
    file: Option<(PathBuf, &'static str, String)>,
}

impl ClientEnv {
    /// Those of a client.
    ///
    /// # Errors
    /// Something is missing: what, for the client and the log.
    pub(in crate::shell) fn of(from: &EnvFrom, client: Option<&EnvSource>) -> Result<Self, String> {
        let mut values = Variables::with_capacity(from.headers.len());
        for (header, variable) in &from.headers {
            let brought = client.and_then(|client| client.credentials.as_ref());
            let value = brought.and_then(|brought| brought.get(header)).ok_or_else(|| match brought {
                Some(brought) if brought.looked_for(header) => format!(
                    "the request that began this has no {header}, which its worker needs (an empty value or a placeholder, such as \
                     \"undefined\", is none): send that header, and begin anew"
                ),
                // A reload has added the header since, or no headers are read here.
                _ => format!(
                    "{header} was not captured when this session or connection began, and its worker needs it now: start a \
                     new one with that header, on an http, acp or ws listener"
                ),
            })?;
            values.push((variable.clone(), value.clone()));
        }
        let file = match &from.files {
            None => None,
            Some(folder) => {
                let owner = client.and_then(|client| client.owner.as_ref()).ok_or(
                    "the workers here are for users by name, and your name was not known when this began: use a \
                     token, a certificate or the proxy, and begin anew",
                )?;
                let (kind, file) = env_file::place(Owner { vouches: owner.0, name: &owner.1 })?;
                Some((folder.clone(), kind, file))
            }
        };
        Ok(Self { values, file })
    }

    /// All of them, with those of the file, which is read now. What the file says, the operator says: it comes last.
    ///
    /// # Errors
    /// The file is missing, or cannot be used; or the machine is short of something.
    pub(super) fn read(&self) -> Result<Variables, Unread> {
        let mut all = self.values.clone();
        if let Some((folder, kind, file)) = &self.file {
            let found = env_file::read(folder, kind, file).map_err(|unread| match unread {
                Unread::Shortage(_) => unread,
                Unread::Unusable(why) => Unread::Unusable(format!(
                    "the operator has no credentials for you that can be used (pools[].env_from): {kind}/{file} {why}"
                )),
            })?;
            all.extend(found);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::HeadReader;

    /// What is kept of a client whose request had this field, when these were looked for.
    fn kept(field: &str, looked_for: &[&str]) -> EnvSource {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
        let mut reader = HeadReader::default();
        let head = reader.read(head.as_bytes()).expect("it is HTTP").expect("it is whole");
        let brought = Credentials::of(&head.fields, looked_for.iter().copied()).expect("it is right");
        EnvSource::new(&Names::default(), Some(Rc::new(brought)))
    }

    #[test]
    fn who_began_before_a_reload_asked_for_it_is_not_blamed_for_what_is_missing() {
        let headers = EnvFrom { headers: vec![("X-Key".into(), "KEY".into())], files: None };
        let files = EnvFrom { files: Some("/x".into()), headers: Vec::new() };
        let why = |from: &EnvFrom, client: Option<&EnvSource>| {
            ClientEnv::of(from, client).map(drop).expect_err("it is missing")
        };
        let looked_for = kept("X-Other: a", &["X-Key"]);
        assert!(why(&headers, Some(&looked_for)).contains("this has no X-Key"));
        assert!(why(&headers, Some(&kept("X-Key: undefined", &["X-Key"]))).contains("this has no X-Key"));
        let older = kept("X-Key: a", &["X-Other"]);
        for client in [Some(&older), Some(&EnvSource::new(&Names::default(), None)), None] {
            assert!(why(&headers, client).starts_with("X-Key was not captured when this session or connection began"));
        }
        for client in [Some(&older), None] {
            assert!(why(&files, client).contains("your name was not known when this began"));
        }
        assert!(ClientEnv::of(&headers, Some(&kept("x-key: a", &["X-Key"]))).is_ok());
    }
}
