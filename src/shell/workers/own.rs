//! What the worker of one client gets as variables (`pools[].env_from`): values of headers of its request, and a file for its
//! name. The values are the worker's alone: they are kept as long as their client, never shown, and overwritten then.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use crate::access::Credentials;
use crate::bus::port::{Names, Owner, Vouches};
use crate::config::EnvFrom;
use crate::env_file::{self, Unread, Variables};

/// What is known of a client for its own worker.
pub(in crate::shell) struct Kept {
    /// Its verified name, and who vouches for it.
    owner: Option<(Vouches, Arc<str>)>,
    /// What its request has brought.
    credentials: Option<Rc<Credentials>>,
}

impl Kept {
    pub(in crate::shell) fn new(names: &Names, credentials: Option<Rc<Credentials>>) -> Self {
        Self { owner: names.owner().map(|owner| (owner.vouches, owner.name.into())), credentials }
    }
}

/// The variables of one client's worker.
pub(crate) struct Own {
    /// Those of headers.
    values: Variables,
    /// The file of its name: the folder, the subfolder and the name.
    file: Option<(PathBuf, &'static str, String)>,
}

impl Own {
    /// Those of a client.
    ///
    /// # Errors
    /// Something is missing: what, for the client and the log.
    pub(in crate::shell) fn of(from: &EnvFrom, client: Option<&Kept>) -> Result<Self, String> {
        let mut values = Variables::with_capacity(from.headers.len());
        for (header, variable) in &from.headers {
            let brought = client.and_then(|client| client.credentials.as_ref()?.get(header));
            let value = brought.ok_or_else(|| {
                format!("the request that began this has no {header}, which its worker needs: send that header, and begin anew")
            })?;
            values.push((variable.clone(), value.clone()));
        }
        let file = match &from.files {
            None => None,
            Some(folder) => {
                let owner = client.and_then(|client| client.owner.as_ref()).ok_or(
                    "the workers here are for users by name, and nobody has said who you are: use a token, a certificate or \
                     the proxy, and begin anew",
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
