//! Examples: which lines are messages, and which fields they have.

use super::{read, read_line, sets};
use ndjson_scan::{Fault, Line, MAX_DEPTH, MAX_WRAPPED_DEPTH, PAD, Partial, ScanResult, Scanner, Span, Window};

/// The fields of a line as text, in the order of [`Line`].
fn fields(line: &str) -> Vec<(&'static str, String)> {
    let mut seen = None;
    for set in sets() {
        let found = read_line(&mut Scanner::with(set).unwrap(), line.as_bytes());
        let found = found.unwrap_or_else(|fault| panic!("{line}: {fault:?}")).expect("the line is not blank");
        assert_eq!(found.span, Span { start: 0, end: line.len() as u32 });
        assert_eq!(*seen.get_or_insert(found), found, "{set:?}");
    }
    let found = seen.unwrap();
    let tokens = [
        ("id", found.id),
        ("method", found.method),
        ("session", found.session),
        ("params_session", found.params_session),
        ("result_session", found.result_session),
        ("pool", found.pool),
        ("request_id", found.request_id),
        ("params_id", found.params_id),
        ("token", found.token),
        ("progress", found.meta.progress),
        ("subscription", found.meta.subscription),
    ];
    let flags = [
        ("RESULT", Line::RESULT),
        ("ERROR", Line::ERROR),
        ("ID_NULL", Line::ID_NULL),
        ("ID_INVALID", Line::ID_INVALID),
        ("POOL", Line::POOL),
        ("LONE_RETURN", Line::LONE_RETURN),
        ("TASK", Line::TASK),
    ];
    let tokens = tokens.iter().filter(|(_, span)| span.is_some());
    let tokens = tokens.map(|&(name, span)| (name, line[span.start as usize..span.end as usize].to_owned()));
    let flags = flags.iter().filter(|&&(_, bit)| found.has(bit)).map(|&(name, _)| (name, String::new()));
    tokens.chain(flags).collect()
}

fn fault(line: &str) -> Fault {
    let faults = sets().into_iter().map(|set| read_line(&mut Scanner::with(set).unwrap(), line.as_bytes()));
    let mut faults: Vec<_> = faults.map(|found| found.expect_err(line)).collect();
    faults.dedup();
    assert_eq!(faults.len(), 1, "{line}");
    faults[0]
}

#[track_caller]
fn has(line: &str, expected: &[(&'static str, &str)]) {
    let expected: Vec<_> = expected.iter().map(|&(name, token)| (name, token.to_owned())).collect();
    assert_eq!(fields(line), expected, "{line}");
}

#[test]
fn requests_answers_and_notifications_have_their_fields() {
    has(
        r#"{"jsonrpc":"2.0","id":7,"method":"session/prompt","params":{"sessionId":"s","prompt":[]}}"#,
        &[("id", "7"), ("method", r#""session/prompt""#), ("params_session", r#""s""#)],
    );
    has(r#"{"jsonrpc":"2.0","id":"a","result":null}"#, &[("id", r#""a""#), ("RESULT", "")]);
    has(
        r#" { "result" : { "x" : { "sessionId" : "no" } , "sessionId" : "s" } , "id" : -1.5e+3 } "#,
        &[("id", "-1.5e+3"), ("result_session", r#""s""#), ("RESULT", "")],
    );
    has(r#"{"id":1,"error":{"code":-32000,"sessionId":"no"}}"#, &[("id", "1"), ("ERROR", "")]);
    has(
        r#"{"method":"$/cancel_request","params":{"requestId":"r","a":{"requestId":1}},"sessionId":"t","pool":"p"}"#,
        &[
            ("method", r#""$/cancel_request""#),
            ("session", r#""t""#),
            ("pool", r#""p""#),
            ("request_id", r#""r""#),
            ("POOL", ""),
        ],
    );
    has(r#"{"params":{"requestId":12}}"#, &[("request_id", "12")]);
    has(r#"{"method":"$/cancelRequest","params":{"id":7}}"#, &[("method", r#""$/cancelRequest""#), ("params_id", "7")]);
    has(
        r#"{"id":1,"params":{"x":{"id":2},"id" : "r" ,"requestId":-0.5},"result":{"id":3}}"#,
        &[("id", "1"), ("request_id", "-0.5"), ("params_id", r#""r""#), ("RESULT", "")],
    );
    has(
        r#"{"method":"notifications/progress","params":{"progress":1,"progressToken":"t","progressTokens":2}}"#,
        &[("method", r#""notifications/progress""#), ("token", r#""t""#)],
    );
    has(
        r#"{"id":1,"method":"tools/call","params":{"name":"x", "_meta" : {"progressToken":1} }}"#,
        &[("id", "1"), ("method", r#""tools/call""#), ("progress", "1")],
    );
    has(r#"{"id":1,"result":{"resultType":"task","taskId":"t"}}"#, &[("id", "1"), ("RESULT", ""), ("TASK", "")]);
    has(r#"{"id":1,"result":{"task\u0049d":null}}"#, &[("id", "1"), ("RESULT", ""), ("TASK", "")]);
    has(r#"{"id":1,"result":{"task":{"taskId":"t"},"taskIds":[]},"taskId":"x"}"#, &[("id", "1"), ("RESULT", "")]);
    has(r#"{"id":1,"method":"tasks/get","params":{"taskId":"t"}}"#, &[("id", "1"), ("method", r#""tasks/get""#)]);
    has("{}", &[]);
    has("{}\r", &[]);
}

#[test]
fn a_carriage_return_that_ends_no_line_is_marked_wherever_it_is() {
    for line in ["\r{}", "{\r}", "{}\r ", "{}\r\r", "{\"a\":1\r}", "{\"a\"\r:[\r1\r,2]}\r"] {
        has(line, &[("LONE_RETURN", "")]);
    }
    // At each place in a block, in short lines and in long ones.
    for filler in [0, 200] {
        let filler = "0,".repeat(filler);
        for before in 0..130 {
            let before = " ".repeat(before);
            has(&format!("{{{before}\r\"a\":[{filler}0]}}"), &[("LONE_RETURN", "")]);
            has(&format!("{{\"a\":[{filler}0]{before}\r}}\r"), &[("LONE_RETURN", "")]);
            has(&format!("{{\"a\":[{filler}0],{before}\"b\":\"\\r\"}}\r"), &[]);
            has(&format!("{{\"a\":[{filler}0]{before}}}\r"), &[]);
        }
    }
}

#[test]
fn names_of_requests_in_meta_are_fields() {
    has(
        r#"{"id":1,"result":{"_meta":{"a":[],"io.modelcontextprotocol/subscriptionId":"s"},"x":{}}}"#,
        &[("id", "1"), ("subscription", r#""s""#), ("RESULT", "")],
    );
    for params in [r#"{"progressToken":1}"#, r#"{"a":{"progressToken":2},"progressToken":1,"b":["progressToken",3]}"#] {
        let params = format!(r#""params":{{"a":{{"progressToken":4}},"_meta":{params},"b":{{"progressToken":5}}}}"#);
        let result = r#""result":{"_meta":{"io.modelcontextprotocol/subscriptionId":1}}"#;
        for both in [format!("{{{params},{result}}}"), format!("{{{result},{params}}}")] {
            has(&both, &[("progress", "1"), ("RESULT", "")]);
        }
    }
    has(r#"{"params":{"_meta":{}},"result":{"_meta":{"progressToken":1}}}"#, &[("RESULT", "")]);
    has(r#"{"params":{"_meta":[{"progressToken":1}],"x":{"progressToken":2}}}"#, &[]);
    has(r#"{"params":{"x":{"_meta":{"progressToken":1}}},"_meta":{"progressToken":1}}"#, &[]);
    has(r#"{"params":[{"_meta":{"progressToken":1}}],"x":{"_meta":{"progressToken":1}}}"#, &[]);
    // Surrounded by so many of the same tokens that the line's shape is not cached.
    let filler = r#"{"k":[0,"progressToken",{"progressToken":1}]},"#.repeat(20);
    for meta in [r#"{"progressToken":7}"#, r#" { "a" : {"progressToken":1} , "progressToken" : 7 } "#] {
        has(&format!(r#"{{"a":[{filler}0],"params":{{"_meta":{meta},"b":[{filler}0]}}}}"#), &[("progress", "7")]);
    }
}

#[test]
fn duplicate_names_in_meta_are_reported() {
    let name = "io.modelcontextprotocol/subscriptionId";
    for (meta, twice) in [
        (r#""progressToken":1,"a":{"progressToken":2}"#.to_owned(), None),
        (r#""progressToken":1,"progressToken":2"#.to_owned(), Some(r#""progressToken":2"#)),
        (r#""progressToken":null,"progress\u0054oken":"t""#.to_owned(), Some(r#""progress\u0054"#)),
        (format!(r#""{name}":1,"progressToken":1"#), None),
        (format!(r#""{name}":1,"x":1,"{name}":1"#), Some(r#""io.modelcontextprotocol/subscriptionId":1}"#)),
    ] {
        for filler in ["", &"0,".repeat(80)] {
            let line = format!(r#"{{"a":[{filler}0],"params":{{"_meta":{{{meta}}}}}}}"#);
            for set in sets() {
                let found = read_line(&mut Scanner::with(set).unwrap(), line.as_bytes()).unwrap().unwrap();
                let at = twice.map_or(0, |text| line.rfind(text).unwrap());
                assert_eq!(found.meta.twice as usize, at, "{line} {set:?}");
            }
        }
    }
}

#[test]
fn a_field_of_the_wrong_kind_is_absent() {
    has(r#"{"id":null}"#, &[("ID_NULL", "")]);
    for id in ["true", "false", "[1]", r#"{"id":2}"#, "[]", "{}"] {
        has(&format!(r#"{{"id":{id}}}"#), &[("ID_INVALID", "")]);
    }
    for pool in ["{}", "null", r#"["pool"]"#, "7"] {
        let line =
            format!(r#"{{"method":1,"sessionId":2,"pool":{pool},"params":{{"sessionId":null,"requestId":true}}}}"#);
        has(&line, &[("POOL", "")]);
    }
    for id in ["null", "true", "false", "[1]", r#"{"id":2}"#, "[]", "{}"] {
        has(&format!(r#"{{"params":{{"id":{id}}}}}"#), &[]);
    }
    for meta in ["1", "null", "[{}]", r#""{}""#] {
        has(&format!(r#"{{"params":{{"_meta":{meta},"progressToken":{{}}}},"_meta":{{}},"progressToken":1}}"#), &[]);
    }
    has(
        r#"{"params":{"_meta":[],"progressToken":null},"result":{"_meta":{"progressToken":1}}}"#,
        &[("progress", "1"), ("RESULT", "")],
    );
    for token in ["null", "true", "[1]", "{}"] {
        has(&format!(r#"{{"params":{{"_meta":{{"progressToken":{token}}}}}}}"#), &[]);
    }
    has(r#"{"params":[{"id":1}],"result":{"id":1},"error":{"id":1}}"#, &[("RESULT", ""), ("ERROR", "")]);
    has(r#"{"params":["id"],"x":{"id":1}}"#, &[]);
    has(r#"{"params":[{"sessionId":"s"}],"result":["sessionId"]}"#, &[("RESULT", "")]);
    has(r#"{"params":["sessionId","requestId"],"error":"sessionId"}"#, &[("ERROR", "")]);
    has(r#"{"x":{"sessionId":"s","id":1},"jsonrpc":"id"}"#, &[]);
}

#[test]
fn an_escaped_key_is_the_same_key() {
    has(r#"{"\u0069d":1}"#, &[("id", "1")]);
    has(r#"{"m\u0065thod":"m"}"#, &[("method", r#""m""#)]);
    has(r#"{"p\u0061rams":{"\u0073ession\u0049d":"s"}}"#, &[("params_session", r#""s""#)]);
    has(r#"{"\u0073\u0065\u0073\u0073\u0069\u006f\u006e\u0049\u0064":"\u0073"}"#, &[("session", r#""\u0073""#)]);
    has(
        r#"{"params":{"progressT\u006fken":7,"_m\u0065ta":{"progress\u0054oken":"t"}}}"#,
        &[("token", "7"), ("progress", r#""t""#)],
    );
    has(
        r#"{"params":{"progressToke\u006e":7,"progress":1,"\u005fmeta":{"\u0070rogressToken":8}}}"#,
        &[("token", "7"), ("progress", "8")],
    );
    has(
        r#"{"params":{"_meta":{"io.modelcontextprotocol\/subscriptionId":1,"progressToken\u0000":2}}}"#,
        &[("subscription", "1")],
    );
    has(r#"{"params":{"\u0069\u0064":12}}"#, &[("params_id", "12")]);
    has(r#"{"par\u0061ms":{"i\u0064":"\u0069d"}}"#, &[("params_id", r#""\u0069d""#)]);
    has(r#"{"params":{"id\u0000":1,"i\u0064\ud83d":2,"\/id":3,"iD":4,"i":5}}"#, &[]);
    has(r#"{"id\u0000":1,"i\u0064\ud83d":2,"\/id":3,"sessionIdd":"x","poo":"l"}"#, &[]);
}

#[test]
fn a_duplicate_routing_key_is_refused() {
    for key in ["id", "method", "params", "result", "error", "sessionId", "pool"] {
        assert_eq!(fault(&format!(r#"{{"{key}":1,"x":2,"{key}":1}}"#)), Fault::DuplicateKey, "{key}");
    }
    assert_eq!(fault(r#"{"id":1,"\u0069d":2}"#), Fault::DuplicateKey);
    assert_eq!(fault(r#"{"params":{"sessionId":1,"a":{},"session\u0049d":2}}"#), Fault::DuplicateKey);
    assert_eq!(fault(r#"{"params":{"requestId":1,"requestId":2}}"#), Fault::DuplicateKey);
    assert_eq!(fault(r#"{"params":{"progressToken":1,"progress\u0054oken":2}}"#), Fault::DuplicateKey);
    assert_eq!(fault(r#"{"params":{"_meta":{},"_meta":1}}"#), Fault::DuplicateKey);
    assert_eq!(fault(r#"{"result":{"_meta":{},"_meta":{}}}"#), Fault::DuplicateKey);
    assert_eq!(fault(r#"{"params":{"id":1,"x":{},"id":1}}"#), Fault::DuplicateKey);
    assert_eq!(fault(r#"{"params":{"id":null,"\u0069d":[]}}"#), Fault::DuplicateKey);
    assert_eq!(fault(r#"{"result":{"sessionId":1,"sessionId":2}}"#), Fault::DuplicateKey);
    assert_eq!(fault(r#"{"result":{"taskId":1,"a":[],"t\u0061skId":2}}"#), Fault::DuplicateKey);
    has(r#"{"id":1,"params":{"id":2,"x":{"id":3,"id":4}}}"#, &[("id", "1"), ("params_id", "2")]);
    has(r#"{"params":[{"id":1,"id":2}],"result":{"id":3,"id":4}}"#, &[("RESULT", "")]);
    has(r#"{"result":{"requestId":1,"requestId":2},"x":1,"x":2}"#, &[("RESULT", "")]);
    has(r#"{"error":{"sessionId":1,"sessionId":2},"x":{"id":1,"id":2}}"#, &[("ERROR", "")]);
    has(r#"{"params":[{"sessionId":1},{"sessionId":1}]}"#, &[]);
}

#[test]
fn only_an_object_is_a_message() {
    for line in ["[]", "[{}]", "1", "-0.5", "\"{}\"", "true", "null", " [ 1 ] "] {
        assert_eq!(fault(line), Fault::NotAnObject, "{line}");
    }
    for line in ["\u{feff}{}", "{}{}", "{},", "{} x", "x", "}", "{", "{\"a\":1}}", "\u{a0}", "\x0b", "{}\x0c"] {
        assert_eq!(fault(line), Fault::Syntax, "{line}");
    }
}

#[test]
fn invalid_utf8_is_distinguished_from_bad_syntax() {
    for set in sets() {
        let scanner = &mut Scanner::with(set).unwrap();
        assert_eq!(read_line(scanner, b"{\"a\":\"\xff\"}"), Err(Fault::Utf8));
        assert_eq!(read_line(scanner, b"{\"a\":\"\xe4\xb8\"}"), Err(Fault::Utf8));
        assert_eq!(read_line(scanner, b"{\"a\":\"\xe4\xb8"), Err(Fault::Utf8));
        assert_eq!(read_line(scanner, b"{\"\xed\xa0\x80\":1}"), Err(Fault::Utf8));
        assert_eq!(read_line(scanner, b"{\"a\":\"\\ud800\"}").map(|line| line.is_some()), Ok(true));
    }
}

#[test]
fn nesting_ends_at_512() {
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let nested = |depth: usize| {
            let inner = format!("{}1{}", open.repeat(depth - 1), close.repeat(depth - 1));
            format!(r#"{{"id":1,"x":{inner}}}"#)
        };
        for depth in [1, 2, 60, 61, 62, 63, 64, 65, 66, 127, 128, 129, 511, 512] {
            has(&nested(depth), &[("id", "1")]);
        }
        assert_eq!(fault(&nested(513)), Fault::Depth);
        assert_eq!(fault(&nested(100_000)), Fault::Depth);
    }
}

#[test]
fn with_any_depth_allowed_a_line_is_whole_and_marked_if_too_deep() {
    for set in sets() {
        let mut scanner = Scanner::with(set).unwrap();
        let mut partial = Partial::of_any_depth();
        let (mut padded, mut lines) = (vec![b' '; PAD], Vec::new());
        let depths = [3, MAX_DEPTH, MAX_DEPTH + 1, MAX_WRAPPED_DEPTH, MAX_WRAPPED_DEPTH + 1, 20_000, 2];
        for depth in depths {
            let (mut open, mut close) = (String::new(), String::new());
            for level in 1..depth {
                let (opens, closes) = if level % 3 == 0 { ("{\"a\":", '}') } else { ("[", ']') };
                open.push_str(opens);
                close.insert(0, closes);
            }
            padded.extend_from_slice(format!("{{\"id\":1,\"x\":{open}0{close}}}\n").as_bytes());
        }
        let end = padded.len();
        padded.resize(end + PAD, b' ');
        let window = Window::new(&padded, PAD, end);
        let outcome = loop {
            match scanner.scan(&mut partial, window, &mut lines) {
                ScanResult::Full => {}
                outcome => break outcome,
            }
        };
        assert_eq!(outcome, ScanResult::More, "{set:?}");
        let deep: Vec<_> = lines.iter().map(|line| line.has(Line::TOO_DEEP)).collect();
        assert_eq!(deep, depths.map(|depth| depth > MAX_WRAPPED_DEPTH), "{set:?}");
        assert!(lines.iter().all(|line| line.id.is_some()), "{set:?}");
    }
}

#[test]
fn blank_lines_are_no_messages_and_the_first_bad_line_is_found() {
    for set in sets() {
        let stream = b"\n \t\r\n{}\r\n\n  {\"id\":1}\n\r\n{]\n{}\n";
        let reading = read(&mut Scanner::with(set).unwrap(), stream, &[], b' ');
        let spans: Vec<_> = reading.lines.iter().map(|line| (line.span.start, line.span.end)).collect();
        assert_eq!(spans, [(5, 8), (10, 20)], "{set:?}");
        assert_eq!(reading.malformed, Some((23, Fault::Syntax)), "{set:?}");
    }
}

#[test]
fn a_full_batch_ends_and_the_next_one_continues() {
    for set in sets() {
        for count in [63, 64, 65, 128, 1000] {
            let stream: String = (0..count).map(|id| format!("{{\"id\":{id}}}\n")).collect();
            let reading = read(&mut Scanner::with(set).unwrap(), stream.as_bytes(), &[], b'\n');
            assert_eq!(reading.malformed, None);
            let ids = reading.lines.iter().map(|line| &stream[line.id.start as usize..line.id.end as usize]);
            assert!(ids.eq((0..count).map(|id| id.to_string())), "{set:?}");
        }
    }
}
