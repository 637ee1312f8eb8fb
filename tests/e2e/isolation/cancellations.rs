//! Cancelling other clients' requests.

use super::*;

#[test]
fn no_form_of_cancellation_reaches_the_request_of_another_client() {
    let mut daemon = Setup::new([worker("agents", 1, &["--keep"])]).start();
    let (mut victim, mut attacker) = (daemon.connect(), daemon.connect());
    victim.ask(7, "hold", json!({}));
    victim.ask("seven", "hold", json!({}));
    victim.request_in("victims", "sync", "who", json!({}));
    attacker.request_in("attackers", "own", "m", json!({}));
    attacker.ask(8, "hold", json!({}));
    let mut sent = 0;
    for (method, key) in CANCELLATIONS {
        for target in ["7", "\"seven\"", "\"\\u0073even\"", "7.0"] {
            let other = if key.starts_with("request") { "id" } else { "requestId" };
            for (session, params) in [
                ("", format!(r#""{key}":{target}"#)),
                (r#""sessionId":"attackers","#, format!(r#""{key}":{target}"#)),
                ("", format!(r#""sessionId":"attackers","{key}":{target}"#)),
                // One of them is its own, and the worker may read the other.
                ("", format!(r#""{key}":{target},"{other}":8"#)),
                ("", format!(r#""{other}":8,"{key}":{target}"#)),
            ] {
                let members = format!(r#""method":"{method}",{session}"params":{{{params}}}"#);
                attacker.send_line(&format!("{{{members}}}"));
                sent += 1;
                attacker.send_line(&format!(r#"{{"id":{sent}00,{members}}}"#));
                assert_eq!(attacker.error(sent * 100, "unknown_request"), -32602, "{members}");
            }
        }
    }
    let seen = read_by_worker(&mut attacker);
    assert!(!seen.contains("cancel") && !seen.contains("equest"), "{seen}");
    attacker.ask("release", "release", json!({}));
    assert_eq!(victim.answer(7)["result"]["held"], true);
    assert_eq!(victim.answer("seven")["result"]["held"], true);
    assert_eq!(attacker.answer(8)["result"]["held"], true);
    attacker.answer("release");
    daemon.stop();
}

#[test]
fn every_form_of_cancellation_cancels_the_senders_own_request_of_the_same_id() {
    let mut daemon = Setup::new([worker("agents", 1, &[])]).start();
    let (mut victim, mut client) = (daemon.connect(), daemon.connect());
    client.request_in("own", "own", "m", json!({}));
    let sessions = ["", r#""sessionId":"own","#];
    let forms: Vec<_> = CANCELLATIONS.into_iter().flat_map(|form| sessions.map(|session| (form, session))).collect();
    for id in 0..2 * forms.len() {
        victim.ask(id, "hold", json!({}));
    }
    victim.request("sync", "who", json!({}));
    let mut id = 0;
    for ((method, key), session) in forms {
        for own_id in ["", "\"id\":\"cancel\","] {
            client.ask(id, "hold", json!({}));
            client.send_line(&format!(r#"{{{own_id}"method":"{method}",{session}"params":{{"{key}":{id}}}}}"#));
            if !method.starts_with("notifications") {
                assert_eq!(client.answer(id)["error"]["code"], -32800, "{method} {key}");
            }
            if !own_id.is_empty() {
                assert_eq!(client.answer("cancel")["result"]["cancelled"], 1, "{method} {key}");
            }
            id += 1;
        }
    }
    let held = client.request("who", "who", json!({}))["result"]["held"].clone();
    assert_eq!(held, id, "the victim's are left, and none of the other's");
    client.ask("release", "release", json!({}));
    for id in 0..id {
        assert_eq!(victim.answer(id)["result"]["held"], true);
    }
    client.answer("release");
    daemon.stop();
}

#[test]
fn a_request_id_in_another_method_does_not_name_the_request_of_another_client() {
    let mut daemon = Setup::new([worker("agents", 1, &["--keep"])]).start();
    let (mut victim, mut attacker) = (daemon.connect(), daemon.connect());
    victim.ask(7, "hold", json!({}));
    victim.request("sync", "who", json!({}));
    attacker.request_in("attackers", "own", "m", json!({}));
    for session in ["", r#""sessionId":"attackers","#] {
        for target in ["7", "7.0", "7.00000000000000000001"] {
            let members = format!(r#""method":"progress",{session}"params":{{"requestId":{target}}}"#);
            attacker.send_line(&format!("{{{members}}}"));
            attacker.send_line(&format!(r#"{{"id":1,{members}}}"#));
            assert_eq!(attacker.error(1, "unknown_request"), -32602, "{members}");
        }
    }
    assert!(!read_by_worker(&mut attacker).contains("progress"));
    // Its own ids are translated, and unknown ones pass.
    attacker.ask(7, "hold", json!({}));
    let translated = attacker.request(8, "progress", json!({ "requestId": 7 }));
    assert!(translated["result"]["echo"]["requestId"] != 7, "{translated}");
    assert_eq!(attacker.request(9, "progress", json!({ "requestId": 99 }))["result"]["echo"]["requestId"], 99);
    attacker.ask("release", "release", json!({}));
    assert_eq!(victim.answer(7)["result"]["held"], true);
    assert_eq!(attacker.answer(7)["result"]["held"], true);
    attacker.answer("release");
    daemon.stop();
}
