//! No peer cancels another peer's request.

use super::*;

#[test]
fn every_form_of_cancellation_hits_only_its_senders_request() {
    for method in ["$/cancel_request", "$/cancelRequest", "notifications/cancelled", r"$\/cancel\u0052equest"] {
        for members in [r#""requestId":7"#, r#""id":7"#, r#""requestId":7,"id":7"#] {
            for own_id in ["", r#""id":"c","#] {
                let mut bench = bench(1);
                let (victim, client, worker) = (bench.client(), bench.client(), bench.worker(0));
                bench.write(victim, r#"{"id":7,"method":"x"}"#);
                let cancel = format!(r#"{{{own_id}"method":"{method}","params":{{{members}}}}}"#);
                bench.read(worker);
                bench.write(client, &cancel);
                assert!(bench.read(worker).is_empty(), "{cancel}");
                if own_id.is_empty() {
                    assert!(bench.read(client).is_empty());
                } else {
                    let (reason, code, id) = bench.read_error(client);
                    assert_eq!((reason.as_str(), code, id), ("unknown_request", -32602, Value::from("c")));
                }
                bench.pass(milliseconds(4));
                bench.write(client, r#"{"id":7,"method":"x"}"#);
                let seen: Value = serde_json::from_str(&bench.read_one(worker)).unwrap();
                bench.write(client, &cancel);
                let expected = cancel.replace(":7", &format!(":{}", seen["id"]));
                assert_eq!(bench.read_one(worker), expected);
            }
        }
    }
}

#[test]
fn a_cancellation_that_names_two_requests_is_dropped() {
    let mut bench = bench(1);
    let (victim, client, worker) = (bench.client(), bench.client(), bench.worker(0));
    bench.write(victim, r#"{"id":7,"method":"x"}"#);
    bench.write(client, r#"{"id":8,"method":"x"}"#);
    bench.read(worker);
    bench.write(client, r#"{"method":"$/cancelRequest","params":{"requestId":8,"id":7}}"#);
    assert!(bench.read(worker).is_empty());
    assert_eq!(bench.count(Reason::UnknownRequest), 1);
}

#[test]
fn a_cancellation_that_names_no_request_goes_nowhere_also_in_a_session_of_its_sender() {
    let (mut bench, [owner, _], worker) = two_owners();
    for session in ["", r#","sessionId":"s0""#] {
        bench.write(owner, &format!(r#"{{"method":"$/cancel_request","params":{{"requestId":[7]{session}}}}}"#));
        assert!(bench.read(worker).is_empty(), "some workers take [7] for 7");
        bench.pass(milliseconds(4));
    }
    assert_eq!(bench.count(Reason::UnknownRequest), 2);
}

#[test]
fn a_late_cancellation_of_a_worker_hits_no_request_of_another_one() {
    let forms = [
        r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#,
        r#"{"method":"notifications/cancelled","params":{"requestId":1.5}}"#,
        r#"{"method":"$/cancelRequest","params":{"id":1}}"#,
    ];
    let of = |id: &str, assignment| Pool { id: id.into(), max_instances: 2, ..pool(1, assignment) };
    for assignment in [Assignment::RoundRobin, Assignment::Dedicated] {
        let mut bench = Bench::new(settings(vec![of("a", assignment), of("b", assignment)]));
        let (client, late, other) = (bench.client(), bench.worker(0), bench.worker(1));
        for pool in ["a", "b"] {
            bench.write(client, &format!(r#"{{"method":"hello","pool":"{pool}"}}"#));
        }
        let ask = r#"{"id":1,"method":"sampling/createMessage"}"#;
        bench.write(late, ask);
        bench.write(client, r#"{"id":1,"result":{}}"#);
        bench.read(client);
        // Only a client that has the worker for itself learns of a request that is over.
        let heard = usize::from(assignment == Assignment::Dedicated);
        bench.write(late, forms[0]);
        assert_eq!(bench.read(client), vec![forms[0]; heard], "nothing is there that it could hit");
        bench.write(other, ask);
        let asked: Value = serde_json::from_str(&bench.read_one(client)).unwrap();
        assert_ne!(asked["id"], 1, "another worker has used that");
        let made = [forms[0], forms[1], forms[2]].map(|form| form.replace(":1}", &format!(":{}}}", asked["id"])));
        for form in made {
            bench.write(late, &form);
        }
        let lost = 4 - heard as u64;
        assert_eq!((bench.read(client).len(), bench.count(Reason::UnknownRequest)), (0, lost), "{assignment:?}");
        bench.write(late, forms[0]);
        assert_eq!(bench.read(client), vec![forms[0]; heard], "it has nothing of that name to answer");
        bench.write(other, forms[0]);
        let its_own = forms[0].replace(":1}", &format!(":{}}}", asked["id"]));
        assert_eq!(bench.read_one(client), its_own, "its own it may cancel");
    }
}

#[test]
fn a_request_id_in_another_method_does_not_name_the_request_of_another_client() {
    let (mut bench, [victim, attacker], worker) = two_owners();
    bench.write(victim, r#"{"id":7,"method":"x"}"#);
    bench.read(worker);
    for session in ["", r#""sessionId":"s1","#] {
        for target in ["7", "7.0", "7.00000000000000000001"] {
            let members = format!(r#""method":"progress",{session}"params":{{"requestId":{target}}}"#);
            bench.write(attacker, &format!("{{{members}}}"));
            bench.pass(seconds(1));
            bench.write(attacker, &format!(r#"{{"id":1,{members}}}"#));
            bench.pass(seconds(1));
            assert_eq!(bench.read_error(attacker).0, "unknown_request", "{members}");
            assert!(bench.read(worker).is_empty(), "{members}");
        }
    }
    bench.write(attacker, r#"{"id":7,"method":"x"}"#);
    let seen = bench.read_json(worker)["id"].clone();
    assert_ne!(seen, 7);
    bench.write(attacker, r#"{"id":8,"method":"progress","params":{"requestId":7}}"#);
    assert_eq!(bench.read_json(worker)["params"]["requestId"], seen, "its own is translated");
    bench.write(attacker, r#"{"id":9,"method":"progress","params":{"requestId":99}}"#);
    assert_eq!(bench.read_json(worker)["params"]["requestId"], 99, "an unknown one passes");
}
