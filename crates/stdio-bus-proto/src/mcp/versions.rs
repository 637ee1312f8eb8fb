//! The supported MCP revisions ("Versioning").

/// Revisions with sessions, newest first.
pub(super) const LEGACY_VERSIONS: [&str; 5] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", "2024-10-07"];
/// The revision without sessions.
pub(super) const MODERN_VERSION: &str = "2026-07-28";
