//! The changes that a new configuration makes to a running daemon.
//!
//! Indexes stay stable, since clients and workers refer to them: a pool or listener that is not in the new
//! configuration keeps its index, marked as gone, until nothing uses it, and new ones get free indexes.

use std::collections::BTreeSet;
use std::mem;

use serde_json::{Map, Value};

use super::{Config, ConfigError, Listen, Listener, PoolConfig, same_place};
use crate::bus::index::PoolId;
use crate::kinds::KINDS;

/// Which parts of the running configuration are still in use, by index.
#[derive(Clone, Debug, Default)]
pub(crate) struct InUse {
    pub pools: Vec<bool>,
    pub listeners: Vec<bool>,
}

/// A configuration to replace the running one.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The configuration to run, including parts that are gone but in use.
    pub config: Config,
    /// The changes, a line each.
    pub changes: Vec<String>,
    /// Listeners whose sockets have to be opened.
    pub opens: Vec<usize>,
    /// Listeners that take over the sockets of others with another protocol.
    pub takes_over: Vec<(usize, usize)>,
    /// The admin listener changes.
    pub moves_admin: bool,
}

impl Plan {
    /// The new index of a running listener: its own, or that of the listener that takes over its sockets.
    pub(crate) fn place_of(&self, before: usize) -> usize {
        self.takes_over.iter().find(|(from, _)| *from == before).map_or(before, |(_, to)| *to)
    }

    /// Whether a running listener's sockets are closed.
    pub(crate) fn closes(&self, before: usize) -> bool {
        self.config.listeners[self.place_of(before)].is_gone
    }
}

impl PoolConfig {
    /// Whether its workers are started in the same way.
    fn starts_like(&self, other: &Self) -> bool {
        fn how(pool: &PoolConfig) -> impl PartialEq + '_ {
            let PoolConfig { command, program, args, env, env_from, cwd, rights, .. } = pool;
            (command, program, args, env, env_from, cwd, rights, pool.core.assignment)
        }
        how(self) == how(other)
    }
}

/// Whether both are the same address. Two ports chosen by the kernel are equivalent.
fn is_one_address(one: &Listen, other: &Listen) -> bool {
    same_place(one, other) || one.is_port_zero() && one == other
}

/// Whether both serve the same protocol.
fn speak_alike(one: &Listener, other: &Listener) -> bool {
    one.web.as_ref().map(|web| web.kind) == other.web.as_ref().map(|web| web.kind)
}

impl Config {
    /// Plans the replacement of the running configuration by this one.
    ///
    /// # Errors
    /// It requires a restart, or a command that is new or could be run before cannot be run.
    pub(crate) fn replace(mut self, running: &Self, in_use: &InUse) -> Result<Plan, ConfigError> {
        self.check_commands(running)?;
        if let Some(why) = self.needs_restart(running) {
            return Err(ConfigError::Unusable { origin: self.origin, message: why });
        }
        let changes = differences(running, &self);
        self.arrange_pools(running, &in_use.pools);
        let (opens, takes_over) = self.arrange_listeners(running, &in_use.listeners);
        self.number_commands(running);
        let listen = |config: &Self| config.admin.as_ref().map(|admin| admin.listen.clone());
        let moves_admin = match (listen(running), listen(&self)) {
            (Some(before), Some(after)) => !is_one_address(&before, &after),
            (before, after) => before.is_some() != after.is_some(),
        };
        Ok(Plan { config: self, changes, opens, takes_over, moves_admin })
    }

    /// Reports commands that cannot be run, except in pools that had none before either.
    fn check_commands(&mut self, running: &Self) -> Result<(), ConfigError> {
        let is_new = |at: usize| {
            let before = self.pools.get(at).and_then(|pool| running.pool_called(&pool.core.id));
            !before.is_some_and(|before| before.starts_like(&self.pools[at]))
        };
        let index = |path: &str| path.strip_prefix("pools[")?.split_once(']')?.0.parse().ok();
        let problems: Vec<_> =
            self.missing.iter().filter(|problem| index(&problem.path).is_none_or(is_new)).cloned().collect();
        match problems.is_empty() {
            true => Ok(()),
            false => {
                let (origin, format) = (self.origin.clone(), self.log.format);
                Err(ConfigError::Invalid { origin, problems, omitted: 0, format })
            }
        }
    }

    fn needs_restart(&self, running: &Self) -> Option<String> {
        if self.state != running.state || self.state.is_some() && self.node != running.node {
            return Some(
                "the folder for sessions that outlive the daemon (state), and the node that they belong to, can only change \
                 at a start; restart the daemon"
                    .into(),
            );
        }
        let is_stdio = |listener: &Listener| listener.listen == Listen::Stdio;
        let has_stdio = |config: &Self| config.listeners.iter().any(is_stdio);
        (has_stdio(self) != has_stdio(running)).then(|| {
            "whether a client is served on stdin and stdout can only change at a start; restart the daemon".into()
        })
    }

    fn pool_called(&self, id: &str) -> Option<&PoolConfig> {
        self.pools.iter().find(|pool| pool.core.id == id)
    }

    /// Gives pools the indexes that they have in the running configuration, and updates references to them.
    fn arrange_pools(&mut self, running: &Self, in_use: &[bool]) {
        let is_same = |before: &PoolConfig, new: &PoolConfig| before.core.id == new.core.id;
        let pools = mem::take(&mut self.pools);
        let (pools, places) = arrange(&running.pools, pools, in_use, is_same, |pool| &mut pool.core.is_gone);
        self.pools = pools;
        for listener in &mut self.listeners {
            listener.pool = listener.pool.map(|pool| places[pool]);
            listener.pools = listener.pools.take().map(|pools| pools.into_iter().map(|pool| places[pool]).collect());
            if let Some(web) = &mut listener.web {
                web.access.tokens = web.access.tokens.take().map(|tokens| tokens.moved(&places));
                web.access.groups = web.access.groups.take().map(|groups| groups.moved(&places));
            }
        }
    }

    /// Gives listeners the indexes that they have in the running configuration. Returns those to be opened, and those
    /// that take over sockets of others.
    fn arrange_listeners(&mut self, running: &Self, in_use: &[bool]) -> (Vec<usize>, Vec<(usize, usize)>) {
        let is_same =
            |before: &Listener, new: &Listener| is_one_address(&new.listen, &before.listen) && speak_alike(new, before);
        let listeners = mem::take(&mut self.listeners);
        let (mut listeners, mut begin) =
            arrange(&running.listeners, listeners, in_use, is_same, |listener| &mut listener.is_gone);
        let was_there = |at: usize| running.listeners.get(at).is_some_and(|before| !before.is_gone);
        self.reordered = Some(begin.clone());
        begin.retain(|at| !was_there(*at));
        follow_moves(running, &mut listeners, &begin);
        // Whether a running listener leaves its socket behind.
        let leaves =
            |(at, before): (usize, &Listener)| was_there(at) && listeners[at].is_gone && before.listen != Listen::Stdio;
        let mut leaves_socket: Vec<bool> = running.listeners.iter().enumerate().map(leaves).collect();
        let (mut opens, mut takes_over) = (Vec::new(), Vec::new());
        for at in begin {
            let is_there = |from: &usize| is_one_address(&running.listeners[*from].listen, &listeners[at].listen);
            match (0..leaves_socket.len()).filter(|from| leaves_socket[*from]).find(is_there) {
                Some(from) => {
                    leaves_socket[from] = false;
                    takes_over.push((from, at));
                }
                None => opens.push(at),
            }
        }
        self.listeners = listeners;
        (opens, takes_over)
    }

    /// Advances the command number of each pool. A pool that is offered over HTTP for the first time needs new workers,
    /// which are asked for their protocol.
    fn number_commands(&mut self, running: &Self) {
        let asked = |config: &Self| config.settings().pools_of_both_eras();
        let (before, after) = (asked(running), asked(self));
        for (at, pool) in self.pools.iter_mut().enumerate() {
            let Some(was) = running.pools.get(at).filter(|was| was.core.id == pool.core.id) else { continue };
            let is_another =
                !was.starts_like(pool) || after.contains(&PoolId::at(at)) && !before.contains(&PoolId::at(at));
            pool.core.generation = was.core.generation + u32::from(is_another);
        }
    }
}

/// The clients of a removed listener stay connected to it. Its rules are joined by those of the listeners that it may have
/// moved to, so that a moved listener cannot leave stricter rules behind: they are those of `begun`, which have no running
/// listener, with its address or its protocol. If one of them moves later, the next ones take its place.
fn follow_moves(running: &Config, listeners: &mut [Listener], begun: &[usize]) {
    for (at, before) in running.listeners.iter().enumerate() {
        if !listeners[at].is_gone {
            continue;
        }
        // One that was removed without a successor may get one from a later reload.
        let known = if before.moved_to.is_empty() { &[at] } else { &before.moved_to[..] };
        let mut moved_to = BTreeSet::new();
        for from in known {
            let is_next = |to: &usize| {
                let (one, other) = (&running.listeners[*from], &listeners[*to]);
                is_one_address(&one.listen, &other.listen) || speak_alike(one, other)
            };
            match listeners[*from].is_gone {
                true => moved_to.extend(begun.iter().copied().filter(is_next)),
                false => drop(moved_to.insert(*from)),
            }
        }
        let mut rules = mem::take(&mut listeners[at].rules);
        for rule in moved_to.iter().flat_map(|to| &listeners[*to].rules) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
        (listeners[at].rules, listeners[at].moved_to) = (rules, moved_to.into_iter().collect());
    }
}

/// Puts each new item at the index of the same running one, or at a free index. Running items without a new one keep their
/// index, marked as gone; it is free once they were gone before and are unused. Returns the indexes of the new items, too.
fn arrange<T: Clone>(
    running: &[T],
    new: Vec<T>,
    in_use: &[bool],
    is_same: impl Fn(&T, &T) -> bool,
    is_gone: impl Fn(&mut T) -> &mut bool,
) -> (Vec<T>, Vec<usize>) {
    let mut new: Vec<Option<T>> = new.into_iter().map(Some).collect();
    let mut places = vec![0; new.len()];
    let mut arranged: Vec<Option<T>> = Vec::new();
    for (at, before) in running.iter().enumerate() {
        let same = new.iter().position(|one| one.as_ref().is_some_and(|one| is_same(before, one)));
        let mut gone = before.clone();
        let was_gone = mem::replace(is_gone(&mut gone), true);
        arranged.push(match same {
            Some(same) => {
                places[same] = at;
                new[same].take()
            }
            None if was_gone && !in_use.get(at).is_some_and(|in_use| *in_use) => None,
            None => Some(gone),
        });
    }
    for (from, one) in new.into_iter().enumerate() {
        if let Some(one) = one {
            places[from] = put(&mut arranged, one);
        }
    }
    // A free index keeps its old entry.
    let rest = arranged.into_iter().enumerate().map(|(at, one)| one.unwrap_or_else(|| running[at].clone()));
    (rest.collect(), places)
}

/// Puts an item at a free index, and returns that.
fn put<T>(places: &mut Vec<Option<T>>, one: T) -> usize {
    let free = places.iter().position(Option::is_none).unwrap_or_else(|| {
        places.push(None);
        places.len() - 1
    });
    places[free] = Some(one);
    free
}

/// The differences between two configurations' texts, a line for each key.
fn differences(before: &Config, after: &Config) -> Vec<String> {
    let parsed = |config: &Config| serde_json::from_str(&config.text.0).unwrap_or(Value::Null);
    let mut lines = Vec::new();
    compare("", &parsed(before), &parsed(after), &mut lines);
    lines
}

fn compare(path: &str, before: &Value, after: &Value, lines: &mut Vec<String>) {
    match (before, after) {
        (one, other) if one == other => {}
        (Value::Object(_), Value::Null) => compare(path, before, &Value::Object(Map::new()), lines),
        (Value::Null, Value::Object(_)) => compare(path, &Value::Object(Map::new()), after, lines),
        (Value::Object(one), Value::Object(other)) => {
            let keys = one.keys().chain(other.keys()).map(String::as_str).filter(|key| !key.starts_with('_'));
            for key in keys.collect::<BTreeSet<&str>>() {
                let [one, other] = [one, other].map(|members| members.get(key).unwrap_or(&Value::Null));
                let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
                compare(&path, one, other, lines);
            }
        }
        (Value::Array(one), Value::Array(other))
            if one.iter().chain(other).all(|element| name_of(element).is_some()) =>
        {
            let names: BTreeSet<&str> = one.iter().chain(other).filter_map(name_of).collect();
            for name in names {
                let [one, other] = [one, other].map(|all| all.iter().find(|element| name_of(element) == Some(name)));
                let path = format!("{path}[{name:?}]");
                match (one, other) {
                    (None, _) => lines.push(format!("{path}: new")),
                    (_, None) => lines.push(format!("{path}: gone")),
                    (Some(one), Some(other)) => compare(&path, one, other, lines),
                }
            }
        }
        // Values of variables may be secrets.
        _ if path.contains(".env.") || path.ends_with(".env") => lines.push(format!("{path}: changed")),
        _ => lines.push(format!("{path}: {} → {}", shown(before), shown(after))),
    }
}

/// The name of an array's element: the id of a pool, the address of a listener.
fn name_of(element: &Value) -> Option<&str> {
    ["id"].into_iter().chain(KINDS.map(|row| row.key)).find_map(|key| element.get(key)?.as_str())
}

fn shown(value: &Value) -> String {
    /// Longer values are abbreviated.
    const LONGEST: usize = 60;
    match value {
        Value::Null => "left out".to_owned(),
        value => {
            let text = value.to_string();
            let cut = text.char_indices().nth(LONGEST).map(|(at, _)| at);
            cut.map_or(text.clone(), |cut| format!("{}…", &text[..cut]))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(value: Value) -> Config {
        let mut config = Config::from_bytes(value.to_string().as_bytes(), "a test").expect("it is valid");
        config.listen(&[]).expect("it is valid");
        config
    }

    fn pool(id: &str, args: &[&str]) -> Value {
        json!({ "id": id, "command": "cat", "args": args, "instances": 1 })
    }

    fn of(pools: &[Value], listeners: &[Value]) -> Config {
        config(json!({ "pools": pools, "listeners": listeners }))
    }

    fn tcp(port: u16) -> Value {
        json!({ "tcp": format!("127.0.0.1:{port}") })
    }

    fn used(config: &Config) -> InUse {
        InUse { pools: vec![true; config.pools.len()], listeners: vec![true; config.listeners.len()] }
    }

    fn ids(config: &Config) -> Vec<(&str, bool, u32)> {
        config.pools.iter().map(|pool| (&pool.core.id[..], pool.core.is_gone, pool.core.generation)).collect()
    }

    #[test]
    fn pools_keep_their_indexes_and_references_follow() {
        let running = of(&[pool("a", &[]), pool("b", &[])], &[json!({ "tcp": "127.0.0.1:1", "pool": "b" })]);
        let next = [pool("c", &[]), pool("b", &["-u"])];
        let next = of(&next, &[json!({ "tcp": "127.0.0.1:1", "pool": "c", "pools": ["b", "c"] })]);
        let plan = next.replace(&running, &used(&running)).expect("it fits");
        assert_eq!(ids(&plan.config), [("a", true, 0), ("b", false, 1), ("c", false, 0)]);
        let listener = &plan.config.listeners[0];
        assert_eq!((listener.pool, listener.pools.as_deref()), (Some(2), Some(&[1, 2][..])));
        assert_eq!((plan.opens.len(), plan.takes_over.len(), plan.moves_admin), (0, 0, false));
        // An unused index is freed.
        let in_use = InUse { pools: vec![false, true, true], listeners: vec![true] };
        let last = of(&[pool("b", &["-u"]), pool("c", &[]), pool("d", &[])], &[tcp(1)]);
        let plan = last.replace(&plan.config, &in_use).expect("it fits");
        assert_eq!(ids(&plan.config), [("d", false, 0), ("b", false, 1), ("c", false, 0)]);
    }

    #[test]
    fn a_listener_is_identified_by_its_address_and_protocol() {
        let pools = [pool("a", &[])];
        let running = of(&pools, &[tcp(1), tcp(2), json!({ "tcp": "127.0.0.1:0" })]);
        let web = json!({ "ws": "127.0.0.1:2" });
        let next = of(&pools, &[json!({ "tcp": "127.0.0.1:0" }), web, tcp(3)]);
        let plan = next.replace(&running, &used(&running)).expect("it fits");
        let gone: Vec<bool> = plan.config.listeners.iter().map(|listener| listener.is_gone).collect();
        assert_eq!(gone, [true, true, false, false, false]);
        assert_eq!((&plan.opens[..], &plan.takes_over[..]), (&[4][..], &[(1, 3)][..]));
        // A listener that returns before its clients have left continues, with a socket of its own.
        let back = of(&pools, &[tcp(1), json!({ "tcp": "127.0.0.1:0" })]);
        let plan = back.replace(&plan.config, &used(&plan.config)).expect("it fits");
        assert!(!plan.config.listeners[0].is_gone && plan.opens == [0]);
    }

    #[test]
    fn a_listener_that_returns_to_its_old_protocol_keeps_its_socket() {
        let pools = [pool("a", &[])];
        let web = |port: u16| json!({ "ws": format!("127.0.0.1:{port}") });
        let (one, other) = (of(&pools, &[tcp(1)]), of(&pools, &[web(1)]));
        let changed = other.replace(&one, &used(&one)).expect("it fits");
        let back = of(&pools, &[tcp(1)]).replace(&changed.config, &used(&changed.config)).expect("it fits");
        assert_eq!((&back.opens[..], &back.takes_over[..]), (&[][..], &[(1, 0)][..]));
        // A socket is taken over once, and not from a listener that continues.
        let running = of(&pools, &[tcp(0), web(0)]);
        let http = json!({ "http": "127.0.0.1:0", "pool": "d" });
        let dedicated = json!({ "id": "d", "command": "cat", "instances": 1, "assignment": "dedicated" });
        let more = of(&[pools[0].clone(), dedicated.clone()], &[tcp(0), web(0), http.clone()]);
        let plan = more.replace(&running, &used(&running)).expect("it fits");
        assert_eq!((&plan.opens[..], &plan.takes_over[..]), (&[2][..], &[][..]));
        let others = of(&[pools[0].clone(), dedicated], &[web(0), http]);
        let running = of(&pools, &[tcp(0)]);
        let plan = others.replace(&running, &used(&running)).expect("it fits");
        assert_eq!((&plan.opens[..], &plan.takes_over[..]), (&[2][..], &[(0, 1)][..]));
    }

    #[test]
    fn rules_reach_the_clients_of_a_listener_that_one_reload_or_several_move() {
        let pools = [pool("a", &[])];
        let denies = |port: u16, tool: &str| json!({ "tcp": format!("127.0.0.1:{port}"), "rules": { "groups": { "*": { "deny_tools": [tool] } } } });
        let denied = |plan: &Plan, at: usize| {
            let tools = plan.config.listeners[at].rules.iter().flat_map(|rules| rules.tools.deny.clone());
            tools.collect::<Vec<String>>().join(" ")
        };
        let reload = |running: &Config, listeners: &[Value]| {
            of(&pools, listeners).replace(running, &used(running)).expect("it fits")
        };
        let running = of(&pools, &[denies(1, "old"), denies(9, "other"), json!({ "ws": "127.0.0.1:8" })]);
        let stays = [denies(9, "other"), json!({ "ws": "127.0.0.1:8" })];
        let with = |first: Value| [&[first][..], &stays].concat();
        let moved = reload(&running, &with(denies(2, "new")));
        assert_eq!([0, 1, 2].map(|at| denied(&moved, at)), ["old new", "other", ""], "only who has moved follows");
        let tightened = reload(&moved.config, &with(denies(2, "newer")));
        assert_eq!(denied(&tightened, 0), "old new newer");
        let again = reload(&tightened.config, &with(denies(3, "newest")));
        assert_eq!([0, 3].map(|at| denied(&again, at)), ["old new newer newest", "newer newest"]);
        let unmoved = reload(&again.config, &with(denies(3, "newest")));
        assert_eq!(denied(&unmoved, 0), "old new newer newest");
        let back = reload(&unmoved.config, &with(denies(1, "back")));
        assert_eq!(denied(&back, 0), "back", "it is the listener of the configuration again");
        let websocket = json!({ "ws": "127.0.0.1:1", "rules": { "groups": { "*": { "deny_tools": ["framed"] } } } });
        let framed = reload(&running, &with(websocket));
        assert_eq!(denied(&framed, 0), "old framed", "it has its address");
        let removed = reload(&running, &stays);
        assert_eq!(denied(&removed, 0), "old", "nothing has taken its place");
        let late = reload(&removed.config, &with(denies(2, "new")));
        assert_eq!(denied(&late, 0), "old new", "a later reload may move it as well");
    }

    #[test]
    fn changes_that_need_a_restart_are_refused() {
        let running = of(&[pool("a", &[])], &[tcp(1)]);
        let refused = of(&[pool("a", &[])], &[]).replace(&running, &used(&running));
        assert!(refused.expect_err("it is refused").to_string().contains("stdin"));
        let missing = json!({ "id": "b", "command": "/does/not/exist", "instances": 1 });
        let next = || of(&[pool("a", &[]), missing.clone()], &[tcp(1)]);
        let refused = next().replace(&running, &used(&running)).expect_err("it is refused");
        assert!(refused.to_string().contains("pools[1].command"), "{refused}");
        let running = next();
        assert!(next().replace(&running, &used(&running)).is_ok(), "it is no news");
    }

    #[test]
    fn each_changed_key_is_reported_and_no_secret() {
        let running = config(json!({
            "pools": [{ "id": "a", "command": "cat", "instances": 2, "env": { "KEY": "old secret" } }],
            "limits": { "quiesce_sec": 5 },
            "_comment": "one",
        }));
        let next = config(json!({
            "pools": [{ "id": "a", "command": "cat", "instances": 3, "env": { "KEY": "new secret" } }, pool("b", &[])],
            "_comment": "two",
        }));
        let plan = next.replace(&running, &used(&running)).expect("it fits");
        let expected = [
            "limits.quiesce_sec: 5 → left out",
            "pools[\"a\"].env.KEY: changed",
            "pools[\"a\"].instances: 2 → 3",
            "pools[\"b\"]: new",
        ];
        assert_eq!(plan.changes, expected);
    }

    #[test]
    fn a_pool_that_is_offered_over_http_for_the_first_time_gets_new_workers() {
        let client = json!({ "id": "a", "command": "cat", "instances": 1, "assignment": "client" });
        let running = of(std::slice::from_ref(&client), &[tcp(1)]);
        let next = of(&[client], &[tcp(1), json!({ "http": "127.0.0.1:2" })]);
        let plan = next.replace(&running, &used(&running)).expect("it fits");
        assert_eq!(ids(&plan.config), [("a", false, 1)]);
    }

    #[test]
    fn changed_rights_need_new_workers() {
        let of = |rights: Value| {
            let mut pool = pool("a", &[]);
            pool.as_object_mut().expect("an object").extend(rights.as_object().expect("an object").clone());
            of(&[pool], &[tcp(1)])
        };
        let running = of(json!({}));
        let others = [
            json!({ "user": "root" }),
            json!({ "no_new_privs": true }),
            json!({ "umask": "0077" }),
            json!({ "rlimits": { "core": 0 } }),
            json!({ "cpus": [0] }),
        ];
        for other in others {
            let plan = of(other.clone()).replace(&running, &used(&running)).expect("it fits");
            assert_eq!(ids(&plan.config), [("a", false, 1)], "{other}");
        }
        let same = of(json!({ "no_new_privs": false })).replace(&running, &used(&running)).expect("it fits");
        assert_eq!(ids(&same.config), [("a", false, 0)]);
    }
}
