//! Ids that a parser changes.

use super::*;

/// Ids of a victim and of an attacker that are equal to a program with doubles and UTF-16.
const LIKE: [(&str, &str); 16] = [
    ("1", "1.00000000000000000001"),
    ("1", "0.99999999999999999999"),
    ("1.00000000000000000001", "1"),
    ("0", "1e-400"),
    ("0", "-0"),
    ("0", "-0.0"),
    ("1", "1.0"),
    ("100", "1e2"),
    ("9007199254740992", "9007199254740993"),
    ("9007199254740993", "9007199254740992"),
    ("-9007199254740992", "-9007199254740993"),
    ("12345678901234567890123", "12345678901234567890124"),
    ("1e400", "1e500"),
    (r#""\ud800""#, r#""\udc00""#),
    ("\"\u{fffd}\"", r#""\ud800""#),
    (r#""a\udc00b""#, r#""a\ud800b""#),
];

#[test]
fn ids_that_a_worker_with_doubles_confuses_are_distinguished_and_come_back_verbatim() {
    let mut daemon = Setup::new([worker("agents", 1, &["--doubles"])]).start();
    let (mut victim, mut attacker) = (daemon.connect(), daemon.connect());
    for (theirs, ours) in LIKE {
        victim.send_line(&format!(r#"{{"id":{theirs},"method":"hold","params":{{"of":"victim"}}}}"#));
        victim.request("sync", "who", json!({}));
        attacker.send_line(&format!(r#"{{"id":{ours},"method":"hold","params":{{"of":"attacker"}}}}"#));
        attacker.request("sync", "who", json!({}));
        victim.ask("release", "release", json!({}));
        assert_eq!(victim.reply(theirs).result["echo"]["of"], "victim", "{theirs} and {ours}");
        assert_eq!(attacker.reply(ours).result["echo"]["of"], "attacker", "{theirs} and {ours}");
        victim.answer("release");
    }
    daemon.stop();
}

#[test]
fn the_ids_that_the_bus_makes_cannot_be_guessed_and_used() {
    let mut daemon = Setup::new([worker("agents", 1, &["--doubles"])]).start();
    let (mut victim, mut attacker) = (daemon.connect(), daemon.connect());
    victim.send_line(r#"{"id":1.5,"method":"hold","params":{"of":"victim"}}"#);
    victim.request("sync", "who", json!({}));
    let made = (0..8).map(|n| 2_000_000_000_u64 + n);
    let tokens: Vec<String> = made.flat_map(|id| [id.to_string(), format!("\"{id}\"")]).collect();
    for token in &tokens {
        attacker.send_line(&format!(r#"{{"id":{token},"method":"hold","params":{{"of":"attacker"}}}}"#));
    }
    attacker.request("sync", "who", json!({}));
    for token in &tokens {
        attacker.send_line(&format!(r#"{{"method":"$/cancelRequest","params":{{"id":{token},"attack":1}}}}"#));
    }
    for token in &tokens {
        assert_eq!(attacker.reply(token).error["code"], -32800, "its own is cancelled");
    }
    attacker.ask("release", "release", json!({}));
    assert_eq!(victim.reply("1.5").result["echo"]["of"], "victim");
    attacker.answer("release");
    daemon.stop();
}

#[test]
fn a_cancellation_of_an_id_that_only_looks_like_the_victims_cancels_nothing() {
    let mut daemon = Setup::new([worker("agents", 1, &["--doubles"])]).start();
    let (mut victim, mut attacker) = (daemon.connect(), daemon.connect());
    attacker.request_in("attackers", "a", "m", json!({}));
    for (at, (theirs, ours)) in LIKE.into_iter().enumerate() {
        victim.send_line(&format!(r#"{{"id":{theirs},"method":"hold","params":{{}}}}"#));
        victim.request("sync", "who", json!({}));
        // A cancellation without effect has to wait each time, so not all of them for each id.
        for (method, key) in [CANCELLATIONS[at % 8], CANCELLATIONS[(at / 2 + 3) % 8]] {
            for session in ["", r#""sessionId":"attackers","#] {
                let members = format!(r#"{session}"method":"{method}","params":{{"{key}":{ours}}}"#);
                attacker.send_line(&format!("{{{members}}}"));
                attacker.send_line(&format!(r#"{{"id":1,{members}}}"#));
                assert_eq!(attacker.error(1, "unknown_request"), -32602, "{members}");
            }
        }
        attacker.ask("release", "release", json!({}));
        assert_eq!(victim.reply(theirs).result["held"], true, "{theirs} and {ours}");
        attacker.answer("release");
    }
    daemon.stop();
}

#[test]
fn a_request_whose_id_was_replaced_is_cancelled_by_its_clients_id() {
    let mut daemon = Setup::new([worker("agents", 1, &["--doubles"])]).start();
    let mut client = daemon.connect();
    for (_, token) in LIKE {
        client.send_line(&format!(r#"{{"id":{token},"method":"hold","params":{{}}}}"#));
        client.send_line(&format!(r#"{{"method":"$/cancel_request","params":{{"requestId":{token}}}}}"#));
        assert_eq!(client.reply(token).error["code"], -32800);
    }
    daemon.stop();
}
