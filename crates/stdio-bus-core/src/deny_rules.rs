//! What clients may not use: methods (`deny_methods`) and tools of MCP (`deny_tools`, `allow_tools`), by the rules of a
//! pool, and by those of a listener for names and groups; and how often tools were denied. A line has to pass all rules
//! that there are for it.
//!
//! A line that some reader may take for another message than the bus does is sent to no worker where there are such
//! rules: it would be a way around them. This is not looked at where there are none.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;

use ndjson_scan::{Ambiguous, Span, decoded, is_decoded, name_in_params};

use crate::ctx::Ctx;
use crate::index::PoolId;
use crate::message::{Parsed, Refusal};
use crate::origin::EVERYBODY;
use crate::peer::ClientKey;
use crate::peers::Clients;
use crate::report::Reason;
use crate::settings::{RuleScope, Rules, Settings, ToolRule, ToolRules};

/// The rule by which a call is denied that can be read in two ways. It is no pattern: these have a `*` at their end alone.
const AMBIGUOUS: &str = "*ambiguous";

/// The longest name of a tool that is repeated in an error.
const LONGEST_ECHO: usize = 128;

/// What was denied so far, and what is known of the line that is being routed. The rules are in the settings.
#[derive(Default)]
pub(crate) struct Denials {
    /// How often tools were denied, by pool and rule: a pattern of `deny_tools`, none where `allow_tools` had none for
    /// them, or [`AMBIGUOUS`].
    tools: BTreeMap<(PoolId, String), u64>,
    /// The pool whose rules were applied to the line that is being routed, and deny nothing in it.
    permitted: Option<PoolId>,
    /// The method of the envelope (`proxy/successor`) that this line is in, if it is in one.
    envelope: Span,
}

impl Denials {
    /// Another line is routed, in an envelope with this method if there is one. Rules deny the methods of both.
    pub(crate) fn begin_line(&mut self, envelope: Span) {
        (self.permitted, self.envelope) = (None, envelope);
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

/// Rules that a line has to pass.
#[derive(Clone, Copy)]
struct Applied<'a> {
    /// The clients that they are for; none if they are those of a pool, for all that use it.
    whom: Option<&'a RuleScope>,
    deny_methods: &'a [String],
    tools: &'a ToolRules,
}

impl Applied<'_> {
    /// Whether they deny anything.
    fn are_set(&self) -> bool {
        !self.deny_methods.is_empty() || self.tools.are_set()
    }

    /// From whom something is kept, and by which configuration key.
    fn keeps_from(&self, key: &str) -> String {
        match self.whom {
            None => format!("is not for clients of this pool (pools[].{key})"),
            Some(RuleScope::Name(_)) => format!("is not for you ({key} of your name, listeners[].rules.names)"),
            Some(RuleScope::Group(group)) if group == EVERYBODY => {
                format!("is not for clients of this listener ({key} of \"*\", listeners[].rules.groups)")
            }
            Some(RuleScope::Group(group)) => {
                format!("is not for the group {group:?} ({key}, listeners[].rules.groups)")
            }
        }
    }

    /// Why they deny a method.
    fn denied_method(&self, method: &[u8]) -> Option<Refusal> {
        let denied = self.deny_methods.iter().find(|denied| is_decoded(method, denied.as_bytes()))?;
        let text = format!("Method not found: {denied:?} {}", self.keeps_from("deny_methods"));
        Some(Refusal(Reason::MethodDenied, text))
    }
}

/// The rules for a client's lines to a pool.
#[derive(Clone, Copy)]
struct All<'a> {
    of_pool: Applied<'a>,
    /// Those of its listener, and the places of those among them that are for the client.
    of_listener: &'a [Rules],
    its: &'a [usize],
}

impl<'a> All<'a> {
    fn of(settings: &'a Settings, clients: &'a Clients, pool: PoolId, client: ClientKey) -> Self {
        let pool = &settings.pools[pool];
        let of_pool = Applied { whom: None, deny_methods: &pool.deny_methods, tools: &pool.tools };
        let Some(client) = clients.get(client).filter(|client| !client.rules().is_empty()) else {
            return Self { of_pool, of_listener: &[], its: &[] };
        };
        let of_listener = settings.listener(client.identity().listener).map_or(&[][..], |listener| &listener.rules);
        Self { of_pool, of_listener, its: client.rules() }
    }

    /// Those that deny anything, that of the pool first.
    fn iter(self) -> impl Iterator<Item = Applied<'a>> {
        let its = self.its.iter().filter_map(move |at| self.of_listener.get(*at));
        let its = its.map(|rules| Applied {
            whom: Some(&rules.whom),
            deny_methods: &rules.deny_methods,
            tools: &rules.tools,
        });
        [self.of_pool].into_iter().chain(its).filter(Applied::are_set)
    }

    /// Whether any of them denies anything.
    fn are_set(self) -> bool {
        self.of_pool.are_set() || !self.its.is_empty() && self.iter().next().is_some()
    }

    /// Why a line's method is denied, or that of its envelope.
    fn denied_method(self, line: Parsed<'_>, envelope: Span) -> Option<Refusal> {
        let mut methods = [line.method, envelope].into_iter().filter(|method| method.is_some());
        methods.find_map(|method| self.iter().find_map(|rules| rules.denied_method(line.get(method))))
    }
}

impl Ctx {
    /// Finds the rules of its listener that hold for a client.
    pub(crate) fn find_rules(&mut self, client: ClientKey) {
        let Some(client) = self.clients.get_mut(client) else { return };
        let identity = client.identity();
        let Some(listener) = self.settings.listener(identity.listener) else { return };
        let rules = listener.rules_for(&identity.origin.names, client.groups());
        client.set_rules(rules);
    }

    /// The next lines of a client are from somebody in these groups.
    pub(crate) fn note_groups(&mut self, key: ClientKey, groups: Option<&Arc<str>>) {
        let Some(client) = self.clients.get_mut(key) else { return };
        if client.groups() != groups.map_or("", |groups| groups) {
            client.set_groups(groups.cloned());
            self.find_rules(key);
        }
    }

    /// Why a client's line may not go to any worker of this pool. None if it may. A denied call of a tool is counted.
    pub(crate) fn denied_in(&mut self, pool: PoolId, client: ClientKey, line: Parsed<'_>) -> Option<Refusal> {
        if self.denials.permitted == Some(pool) {
            return None;
        }
        let rules = All::of(&self.settings, &self.clients, pool, client);
        if !rules.are_set() {
            return None;
        }
        let Some((refusal, rule)) = denied(rules, line, self.denials.envelope) else {
            self.denials.permitted = Some(pool);
            return None;
        };
        if let Some(rule) = rule {
            let count = (pool, rule.to_string());
            *self.denials.tools.entry(count).or_default() += 1;
        }
        Some(refusal)
    }

    /// Whether a client's line may go to no worker of this pool. Nothing is counted.
    pub(crate) fn is_denied_in(&self, pool: PoolId, client: ClientKey, line: Parsed<'_>) -> bool {
        let rules = All::of(&self.settings, &self.clients, pool, client);
        rules.are_set() && denied(rules, line, self.denials.envelope).is_some()
    }

    /// Why an answer of a client may not go to any worker of this pool: some reader may take it for a call.
    pub(crate) fn denied_answer(&self, pool: PoolId, client: ClientKey, line: Parsed<'_>) -> Option<Refusal> {
        let rules = All::of(&self.settings, &self.clients, pool, client);
        let is_ambiguous = rules.are_set() && name_in_params(line.window, line.line).is_err();
        is_ambiguous.then(|| ambiguous(rules))
    }
}

fn ambiguous(rules: All<'_>) -> Refusal {
    let text = "Invalid params: a method, params or a tool's name occurs twice, or in another case; some servers \
        would interpret a different call from the one that the rules were checked against (deny_tools, allow_tools and \
        deny_methods of pools[], listeners[].rules)";
    let are_of_tools = rules.iter().any(|rules| rules.tools.are_set());
    Refusal(if are_of_tools { Reason::ToolDenied } else { Reason::MethodDenied }, text.to_string())
}

/// Why a line is denied, and the rule by which it is counted if it calls a tool.
fn denied<'a>(rules: All<'a>, line: Parsed<'_>, envelope: Span) -> Option<(Refusal, Option<&'a str>)> {
    if let Some(refusal) = rules.denied_method(line, envelope) {
        return Some((refusal, None));
    }
    match denied_tool(rules, line) {
        Ok(denied) => denied.map(|(refusal, rule)| (refusal, Some(rule))),
        Err(Ambiguous) => Some(match ambiguous(rules) {
            refusal @ Refusal(Reason::ToolDenied, _) => (refusal, Some(AMBIGUOUS)),
            // No tool is meant where there are no rules for tools.
            refusal => (refusal, None),
        }),
    }
}

/// Why the tool that a line calls is denied, and the rule's name.
fn denied_tool<'a>(rules: All<'a>, line: Parsed<'_>) -> Result<Option<(Refusal, &'a str)>, Ambiguous> {
    let name = name_in_params(line.window, line.line)?;
    let calls = line.method.is_some() && is_decoded(line.get(line.method), b"tools/call");
    let of_tools = || rules.iter().filter(|rules| rules.tools.are_set());
    if !calls || of_tools().next().is_none() {
        return Ok(None);
    }
    let name = name?;
    // A call that names no tool reaches none either.
    let Some(name) = name.and_then(decoded) else { return Err(Ambiguous) };
    let Some((rules, rule)) = of_tools().find_map(|rules| Some((rules, rules.tools.denies(&name)?))) else {
        return Ok(None);
    };
    let (key, rule) = match rule {
        ToolRule::Deny(pattern) => ("deny_tools", pattern),
        ToolRule::NotAllowed => ("allow_tools", ""),
    };
    let shown = String::from_utf8_lossy(&name[..name.len().min(LONGEST_ECHO)]);
    let text = format!("Unknown tool: {shown:?} {}", rules.keeps_from(key));
    Ok(Some((Refusal(Reason::ToolDenied, text), rule)))
}
