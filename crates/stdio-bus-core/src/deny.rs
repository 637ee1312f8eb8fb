//! Methods that a pool keeps from clients: those whose answer would tell one client about the others.
use alloc::format;
use alloc::string::String;

use ndjson_scan::{Line, Window, decoded};

use super::Bus;
use super::peer::WorkerKey;
use super::report::Reason;
use super::settings::Settings;

/// Whether any pool denies anything: where none does, no message is looked at for it.
pub(super) fn denies_methods(settings: &Settings) -> bool {
    settings.pools.iter().any(|pool| !pool.deny_methods.is_empty())
}

impl Bus {
    /// Why a client's line may not go to this worker; none if it may.
    pub(super) fn denied_at(&self, worker: WorkerKey, window: Window<'_>, line: &Line) -> Option<(Reason, String)> {
        if !self.denies_methods {
            return None;
        }
        self.denied_in(self.workers.get(worker)?.pool, window, line)
    }

    /// Why a client's line may not go to any worker of this pool; none if it may.
    pub(super) fn denied_in(&self, pool: usize, window: Window<'_>, line: &Line) -> Option<(Reason, String)> {
        let pool = &self.settings.pools[pool];
        if pool.deny_methods.is_empty() || !line.method.is_some() {
            return None;
        }
        let method = decoded(window.get(line.method));
        let denied = pool.deny_methods.iter().find(|denied| denied.as_bytes() == &*method)?;
        let text = format!("Method not found: {denied:?} is not for clients of this pool (pools[].deny_methods)");
        Some((Reason::MethodDenied, text))
    }
}
