//! What clients may not use of a pool: methods (`deny_methods`) and tools of MCP (`deny_tools`, `allow_tools`), and how often
//! tools were denied.
//!
//! A line that some reader may take for another message than the bus does goes to no worker of a pool with such rules:
//! it would be a way around them. This is not looked at where there are none.
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};

use ndjson_scan::{Ambiguous, decoded, is_decoded, name_in_params};

use crate::ctx::Ctx;
use crate::index::PoolId;
use crate::message::{Parsed, Refusal};
use crate::report::Reason;
use crate::settings::{Pool, Settings, ToolRule};

/// The rule by which a call is denied that can be read in two ways. It is no pattern: these have a `*` at their end alone.
const AMBIGUOUS: &str = "*ambiguous";

/// The longest name of a tool that is repeated in an error.
const LONGEST_ECHO: usize = 128;

/// How often tools were denied, by pool and rule: a pattern of `deny_tools`, none where `allow_tools` had none for them, or
/// [`AMBIGUOUS`].
#[derive(Default)]
pub(crate) struct Denials {
    tools: BTreeMap<(PoolId, String), u64>,
    /// The pool whose rules were applied to the line that is being routed, and deny nothing in it.
    permitted: Option<PoolId>,
}

impl Denials {
    /// Another line is routed.
    pub(crate) fn begin_line(&mut self) {
        self.permitted = None;
    }

    /// Another pool has taken the place of this one.
    pub(crate) fn forget_pool(&mut self, pool: PoolId) {
        self.tools.retain(|(of, _), _| *of != pool);
    }

    /// The pools, rules and numbers.
    pub(crate) fn of_tools(&self) -> impl Iterator<Item = (PoolId, &str, u64)> {
        self.tools.iter().map(|((pool, rule), count)| (*pool, &**rule, *count))
    }
}

impl Ctx {
    /// Why a client's line may not go to any worker of this pool. None if it may.
    pub(crate) fn denied_in(&mut self, pool: PoolId, line: Parsed<'_>) -> Option<Refusal> {
        let rules = &self.settings.pools[pool];
        if self.denials.permitted == Some(pool) || !rules.denies_anything() {
            return None;
        }
        if let Some(refusal) = self.settings.denied_method(pool, line) {
            return Some(refusal);
        }
        let (refusal, rule) = match denied_tool(rules, line) {
            Ok(None) => {
                self.denials.permitted = Some(pool);
                return None;
            }
            Ok(Some(denied)) => denied,
            // No tool is meant where there are no rules for tools.
            Err(Ambiguous) if !rules.tools.are_set() => return Some(ambiguous(rules)),
            Err(Ambiguous) => (ambiguous(rules), AMBIGUOUS),
        };
        let count = (pool, rule.to_string());
        *self.denials.tools.entry(count).or_default() += 1;
        Some(refusal)
    }

    /// Why an answer of a client may not go to any worker of this pool: some reader may take it for a call.
    pub(crate) fn denied_answer(&self, pool: PoolId, line: Parsed<'_>) -> Option<Refusal> {
        let rules = &self.settings.pools[pool];
        let is_ambiguous = rules.denies_anything() && name_in_params(line.window, line.line).is_err();
        is_ambiguous.then(|| ambiguous(rules))
    }
}

impl Settings {
    /// Why a method may not be used on any worker of this pool. None if it may.
    pub(crate) fn denied_method(&self, pool: PoolId, line: Parsed<'_>) -> Option<Refusal> {
        let method = Some(line.method).filter(|method| method.is_some()).map(|method| line.get(method))?;
        let denied = self.pools[pool].deny_methods.iter().find(|denied| is_decoded(method, denied.as_bytes()))?;
        let text = format!("Method not found: {denied:?} is not for clients of this pool (pools[].deny_methods)");
        Some(Refusal(Reason::MethodDenied, text))
    }
}

fn ambiguous(rules: &Pool) -> Refusal {
    let text = "Invalid params: a method, params or a tool's name stands there twice, or in another case; some servers would \
                read another call than the rules of this pool (pools[].deny_tools, allow_tools, deny_methods) are applied to";
    let reason = if rules.tools.are_set() { Reason::ToolDenied } else { Reason::MethodDenied };
    Refusal(reason, text.to_string())
}

/// Why the tool that a line calls is denied, and the rule's name.
fn denied_tool<'a>(rules: &'a Pool, line: Parsed<'_>) -> Result<Option<(Refusal, &'a str)>, Ambiguous> {
    let name = name_in_params(line.window, line.line)?;
    let calls = line.method.is_some() && is_decoded(line.get(line.method), b"tools/call");
    if !calls || !rules.tools.are_set() {
        return Ok(None);
    }
    let name = name?;
    // A call that names no tool reaches none either.
    let Some(name) = name.and_then(decoded) else { return Err(Ambiguous) };
    let Some(rule) = rules.tools.denies(&name) else { return Ok(None) };
    let (key, rule) = match rule {
        ToolRule::Deny(pattern) => ("deny_tools", pattern),
        ToolRule::NotAllowed => ("allow_tools", ""),
    };
    let shown = String::from_utf8_lossy(&name[..name.len().min(LONGEST_ECHO)]);
    let text = format!("Unknown tool: {shown:?} is not for clients of this pool (pools[].{key})");
    Ok(Some((Refusal(Reason::ToolDenied, text), rule)))
}
