//! Reads the identity and limits of a pool's workers. Names are looked up here, which may block on a name server;
//! between clone and exec nothing may.

use rustix::process::{Resource, Rlimit};
use rustix::thread::CpuSet;

use super::document::{Node, Object, Reader};
use super::rights::{HIGHEST_CPU, Limit, Rights, UserAndGroups, may_change_users};
use super::users::{self, Account};
use super::values::{number, octal};

/// Reads a pool's settings for it.
pub(super) fn rights<'t>(reader: &mut Reader<'t>, object: &Object<'t>) -> Rights {
    let identity = identity(reader, object);
    let no_new_privs = object.get("no_new_privs").and_then(|node| reader.boolean(node));
    let hint = "\"0077\" keeps new files to their owner, \"0027\" lets the group read them";
    let umask = object.get("umask").and_then(|node| octal(reader, node, hint));
    let limits = object.get("rlimits").and_then(|node| reader.object(node, "pools[].rlimits"));
    Rights {
        no_new_privs: no_new_privs.unwrap_or(object.get("user").is_some()),
        identity,
        umask,
        limits: limits.map(|object| limits_of(reader, &object)).unwrap_or_default(),
        cpus: object.get("cpus").and_then(|node| cpus(reader, node)),
    }
}

fn cpus<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<CpuSet> {
    let elements = reader.elements(node, "must name a CPU", "leave cpus out, and the kernel chooses among all")?;
    let mut set = CpuSet::new();
    for element in &elements {
        set.set(reader.integer(element, 0..=HIGHEST_CPU)? as usize);
    }
    // SAFETY: the call takes a number.
    let known = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let known = usize::try_from(known).unwrap_or(0);
    if known > 0 && !(0..known).any(|cpu| set.is_set(cpu)) {
        let hint = format!("the last CPU of this machine is {}", known - 1);
        reader.fail_pool(node, "names no CPU of this machine, so no worker could start", Some(hint));
    }
    Some(set)
}

fn limits_of<'t>(reader: &mut Reader<'t>, object: &Object<'t>) -> Vec<Limit> {
    let keys = [
        ("descriptors", "setrlimit(RLIMIT_NOFILE)", Resource::Nofile, 0),
        ("core", "setrlimit(RLIMIT_CORE)", Resource::Core, 0),
        ("file_size", "setrlimit(RLIMIT_FSIZE)", Resource::Fsize, 0),
        // The soft limit sends SIGXCPU, which the log then reports, and the hard one SIGKILL.
        ("cpu_sec", "setrlimit(RLIMIT_CPU)", Resource::Cpu, 1),
    ];
    let limit = |(key, call, resource, beyond)| {
        let most = number(reader, object, key)?;
        Some(Limit { call, resource, most: Rlimit { current: Some(most), maximum: Some(most + beyond) } })
    };
    keys.into_iter().filter_map(limit).collect()
}

fn identity<'t>(reader: &mut Reader<'t>, object: &Object<'t>) -> Option<UserAndGroups> {
    let (user, group) = (object.get("user"), object.get("group"));
    let Some(node) = user else {
        if let Some(group) = group {
            let hint = "name the user, too: with a group alone workers keep the rights of the daemon's user".to_owned();
            reader.fail(group, "is for pools with a user", Some(hint));
        }
        return None;
    };
    if !may_change_users() {
        let hint = "start it as root, with CAP_SETUID, CAP_SETGID and CAP_KILL, or leave user out".to_owned();
        reader.fail_privilege(node, "needs a daemon that was started as root", Some(hint));
    }
    let text = reader.string(node)?;
    let account = reader.found(node, users::account(&text))?;
    let group = match group {
        Some(node) => {
            let text = reader.string(node)?;
            reader.found(node, users::group(&text))?
        }
        None => match account.group {
            Some(group) => group,
            None => {
                let hint = "name one in group".to_owned();
                reader.fail(node, format!("no user has the number {text}, so its group is not known"), Some(hint));
                return None;
            }
        },
    };
    let Account { id, name, home, .. } = account;
    let groups = name.as_deref().map_or(Ok(Vec::new()), |name| users::groups(name, group));
    Some(UserAndGroups { user: id, group, groups: reader.found(node, groups)?, name, home })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Config;
    use super::*;

    fn read(keys: Value) -> Result<Config, String> {
        let mut pool = json!({ "id": "a", "command": "sh", "instances": 1 });
        let members = pool.as_object_mut().expect("an object");
        members.extend(keys.as_object().expect("an object").clone());
        let text = json!({ "pools": [pool] }).to_string();
        Config::from_bytes(text.as_bytes(), "a test").map_err(|error| error.to_string())
    }

    fn refused(keys: Value) -> String {
        read(keys).expect_err("it is refused")
    }

    fn rights(keys: Value) -> Rights {
        read(keys).expect("it is valid").pools.remove(0).rights
    }

    #[test]
    fn with_a_user_no_privilege_is_gained_unless_configured() {
        assert!(!rights(json!({})).no_new_privs);
        assert!(rights(json!({ "no_new_privs": true })).no_new_privs);
        assert!(rights(json!({ "user": "root" })).no_new_privs);
        assert!(!rights(json!({ "user": "root", "no_new_privs": false })).no_new_privs);
    }

    #[test]
    fn a_user_is_looked_up_with_its_group_and_a_number_without_a_name_needs_one() {
        let root = rights(json!({ "user": "root" })).identity.expect("it is there");
        assert_eq!((root.user, root.group, root.to_string()), (0, 0, "user root".to_owned()));
        let other = rights(json!({ "user": "3999999999", "group": "7" })).identity.expect("it is there");
        let expected =
            UserAndGroups { user: 3_999_999_999, group: 7, groups: Vec::new(), name: None, home: "/".into() };
        assert_eq!(other, expected);
        assert_eq!(other.to_string(), "user 3999999999");
        let message = refused(json!({ "user": "3999999999" }));
        assert!(message.contains("pools[0].user: no user has the number 3999999999"), "{message}");
        let message = refused(json!({ "user": "nobody-at-all", "group": "root" }));
        assert!(message.contains("pools[0].user: there is no user \"nobody-at-all\""), "{message}");
        let message = refused(json!({ "user": "root", "group": "no-group" }));
        assert!(message.contains("pools[0].group: there is no group"), "{message}");
        assert!(refused(json!({ "group": "root" })).contains("pools[0].group: is for pools with a user"));
    }

    #[test]
    fn a_user_needs_a_privileged_daemon_but_checking_the_configuration_does_not() {
        let config = read(json!({ "user": "root" })).expect("anybody may read it");
        let refused = config.privileged().map_err(|error| error.to_string());
        match may_change_users() {
            true => assert!(refused.is_ok()),
            false => {
                let message = refused.expect_err("we may not");
                assert!(message.contains("pools[0].user: needs a daemon that was started as root"), "{message}");
            }
        }
    }

    #[test]
    fn cpus_are_numbers_of_which_this_machine_has_one() {
        let set = rights(json!({ "cpus": [0, 7, 1023] })).cpus.expect("it is there");
        assert_eq!((set.count(), set.is_set(0), set.is_set(7), set.is_set(1023)), (3, true, true, true));
        assert_eq!(rights(json!({})).cpus, None);
        assert!(refused(json!({ "cpus": [] })).contains("pools[0].cpus: must name a CPU"));
        assert!(refused(json!({ "cpus": [1024] })).contains("pools[0].cpus[0]: must be"));
        assert!(refused(json!({ "cpus": 1 })).contains("pools[0].cpus: must be an array"));
        assert!(refused(json!({ "cpus": [1023] })).contains("pools[0].cpus: names no CPU of this machine"));
    }

    #[test]
    fn limits_that_affect_others_are_refused_with_an_alternative() {
        for key in ["memory", "as", "rss"] {
            let message = refused(json!({ "rlimits": { key: 1 } }));
            assert!(message.contains(&format!("pools[0].rlimits.{key}: is not a known key")), "{message}");
            assert!(message.contains("V8") && message.contains("MemoryMax="), "{message}");
        }
        for key in ["processes", "nproc"] {
            let message = refused(json!({ "rlimits": { key: 1 } }));
            assert!(message.contains("counts all that the user runs") && message.contains("TasksMax="), "{message}");
        }
        assert!(refused(json!({ "rlimits": { "descriptor": 99 } })).contains("did you mean \"descriptors\"?"));
        assert!(refused(json!({ "umask": "0999" })).contains("pools[0].umask: must be octal permissions"));
    }
}
