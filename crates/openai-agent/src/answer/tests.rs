//! Answers, however they are cut.

use super::*;

use proptest::prelude::*;

fn run(chunks: &[&[u8]], trouble: Option<&str>) -> (String, Result<Ending, Failure>) {
    let (mut answer, mut text) = (Answer::new(1 << 25), String::new());
    let mut sink = |piece: Piece<'_>| {
        if let Piece::Delta(Kind::Text, more) = piece {
            text.push_str(more);
        }
    };
    for chunk in chunks {
        answer.push(chunk, &mut sink);
    }
    if trouble.is_none() {
        answer.end(&mut sink);
    }
    let ending = answer.finish(trouble.map(str::to_owned), "text/event-stream", &mut sink);
    (text, ending)
}

fn whole(body: &str) -> (String, Result<Ending, Failure>) {
    run(&[body.as_bytes()], None)
}

fn delta(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"delta\":{{\"content\":{}}}}}]}}\n\n", serde_json::Value::from(text))
}

const STOP: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

fn stop(ending: &Result<Ending, Failure>) -> Option<StopReason> {
    ending.as_ref().ok().map(|ending| ending.stop)
}

#[test]
fn an_answer_ends_with_done_or_with_a_finish_reason() {
    for tail in [STOP, "data: [DONE]\n\n", "data: [DONE]", "data:[DONE]\r\n\r\n"] {
        let (text, ending) = whole(&format!("{}{tail}", delta("hi")));
        assert_eq!((text.as_str(), stop(&ending)), ("hi", Some(StopReason::EndTurn)), "{tail}");
    }
}

#[test]
fn a_stream_that_breaks_off_is_an_error() {
    assert!(matches!(whole(&delta("hi")).1, Err(Failure::Network(_))));
    assert!(matches!(whole("").1, Err(Failure::Network(_))));
    assert!(matches!(whole(": ping\n\n").1, Err(Failure::Network(_))));
    let broken = run(&[delta("hi").as_bytes()], Some("reset"));
    assert_eq!(broken.1, Err(Failure::Network("reset".into())));
    // The model had finished: only the end marker is missing.
    assert!(run(&[delta("hi").as_bytes(), STOP.as_bytes()], Some("reset")).1.is_ok());
    // A torn event does not count, even if it is the last one.
    assert!(run(&[delta("hi").as_bytes(), STOP.trim_end().as_bytes()], Some("reset")).1.is_err());
    assert!(run(&[b"{\"choices\":[{\"message\":{\"content\":\"x\"}}]}"], Some("reset")).1.is_err());
}

#[test]
fn a_plain_body_is_an_answer_and_a_page_is_not() {
    let (text, ending) = whole("\n {\"choices\":[{\"message\":{\"content\":\"all\"},\"finish_reason\":\"length\"}]}");
    assert_eq!((text.as_str(), stop(&ending)), ("all", Some(StopReason::MaxTokens)));
    assert!(matches!(whole("<!doctype html><p>x").1, Err(Failure::NotACompletion(_))));
    assert!(matches!(whole("{\"hello\":1}").1, Err(Failure::NotACompletion(_))));
    assert!(matches!(whole("{\"error\":{\"message\":\"m\",\"code\":401}}").1, Err(Failure::Server(_))));
}

#[test]
fn a_stream_that_ends_with_something_else_than_chunks_is_no_complete_answer() {
    for garbage in [
        "data: upstream connect error\n\n",
        "data: <html><title>502 Bad Gateway</title></html>\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"to\n\n",
        "data: {\"choices\":[{]}\n\n",
        "data: \"Internal Server Error\"\n\n",
        "data: {\"message\":\"the model is gone\"}\n\n",
        "<html>\n<title>502 Bad Gateway</title>\n</html>\n\n",
        "HTTP/1.1 502 Bad Gateway\n\n",
        "Error: the model is gone\n\n",
    ] {
        let (text, ending) = whole(&format!("{}{garbage}data: [DONE]\n\n", delta("half")));
        assert!(
            matches!(&ending, Err(Failure::Network(words)) if words.starts_with("the stream ended before")),
            "{garbage} {ending:?}"
        );
        assert_eq!(text, "half", "{garbage}");
        // With a reason to finish in every chunk, none of them says that it is the last.
        let each = |text: &str| delta(text).replace("}]}", ",\"finish_reason\":\"stop\"}]}");
        assert!(whole(&format!("{}{}{garbage}", each("a"), each("b"))).1.is_err(), "{garbage}");
        // The model continues, or had finished before.
        for complete in [
            format!("{}{garbage}{}data: [DONE]\n\n", delta("a"), delta("b")),
            format!("{}{STOP}{garbage}data: [DONE]\n\n", delta("ab")),
        ] {
            let (text, ending) = whole(&complete);
            assert_eq!((text.as_str(), stop(&ending)), ("ab", Some(StopReason::EndTurn)), "{garbage}");
        }
    }
    for idle in [": keepalive", "ping", "Keep-Alive", "null", "{\"type\":\"ping\"}", "\"\"", "[]"] {
        let ending = whole(&format!("{}data: {idle}\n\nfield: x\n\ndata: [DONE]\n\n", delta("a"))).1;
        assert_eq!(stop(&ending), Some(StopReason::EndTurn), "{idle}");
    }
}

#[test]
fn messages_of_a_stream_that_breaks_off_are_no_complete_answer() {
    let message = |text: &str| format!("{{\"choices\":[{{\"message\":{{\"content\":\"{text}\"}}}}]}}");
    let events = format!("data: {}\n\n", message("half"));
    assert!(whole(&events).1.is_err());
    assert!(whole(&format!("{}\n{}\n", message("The"), message(" cat"))).1.is_err());
    assert!(whole(&message("all")).1.is_ok(), "a body of JSON is all of it");
    assert!(whole(&events.replace("{\"choices", "{\"object\":\"chat.completion\",\"choices")).1.is_ok());
}

#[test]
fn an_error_within_the_stream_is_an_error() {
    let (text, ending) =
        whole(&format!("{}data: {{\"error\":{{\"message\":\"m\",\"code\":\"429\"}}}}\n\n{STOP}", delta("a")));
    assert_eq!(text, "a");
    assert_eq!(ending, Err(Failure::Server(ServerError { code: Some(429), message: "m".into() })));
}

#[test]
fn events_that_are_not_json_are_skipped() {
    let (text, ending) = whole(&format!("data: : keepalive\n\n{}data: {{oops\n\n{}{STOP}", delta("a"), delta("b")));
    assert_eq!((text.as_str(), stop(&ending)), ("ab", Some(StopReason::EndTurn)));
}

#[test]
fn events_without_a_blank_line_between_them_are_separated() {
    let joined = format!("{}{}{STOP}", delta("a"), delta("b")).replace("\n\n", "\n");
    assert_eq!(whole(&joined).0, "ab");
    let spread = "data: {\"choices\":\ndata: [{\"delta\":{\"content\":\"c\"}}]}\n\ndata: [DONE]\n\n";
    assert_eq!(whole(spread).0, "c");
}

#[test]
fn silence_is_the_end_only_where_the_endpoint_seems_to_have_finished() {
    let with_finish = |text: &str| delta(text).replace("}]}", ",\"finish_reason\":\"stop\"}]}");
    let grace = |body: &str| {
        let mut answer = Answer::new(1 << 20);
        answer.push(body.as_bytes(), |_| ());
        answer.grace()
    };
    let finished = with_finish("a");
    assert_eq!(whole(&finished).1.map(|ending| ending.stop), Ok(StopReason::EndTurn), "{finished}");
    for over in [
        finished.as_str(),
        finished.trim_end(),
        "data: [DONE]",
        "{\"choices\":[{\"message\":{\"content\":\"a\"}}]}",
        &format!("{}{STOP}", delta("a")),
    ] {
        assert_eq!(grace(over), Some(GRACE), "{over}");
    }
    let goes_on = format!("{finished}{}", with_finish("b"));
    for more in ["", ": ping\n\n", &delta("a"), delta("a").trim_end(), &goes_on, "{\"choices\":[{"] {
        assert_eq!(grace(more), None, "{more}");
    }
}

#[test]
fn a_million_parts_and_a_million_chunks_in_one_event_are_one_text() {
    let count = 1 << 18;
    let parts = format!("\"é\"{}", ",\"é\"".repeat(count - 1));
    let body = format!("{{\"choices\":[{{\"message\":{{\"content\":[{parts}]}},\"finish_reason\":\"stop\"}}]}}");
    let (text, ending) = whole(&body);
    assert_eq!((text, stop(&ending)), ("é".repeat(count), Some(StopReason::EndTurn)));
    let chunk = "{\"choices\":[{\"delta\":{\"content\":\"x\"}}]}";
    let many = vec![chunk; count / 16];
    for (event, after) in [
        (format!("[{}]", many.join(",")), "after"),
        (many.concat(), "after"),
        (many.concat() + &"[DONE]".repeat(100_000), ""),
    ] {
        let (text, ending) = whole(&format!("data: {event}\n\n{}{STOP}", delta("after")));
        assert_eq!(text, "x".repeat(many.len()) + after);
        assert_eq!(stop(&ending), Some(StopReason::EndTurn));
    }
}

#[test]
fn refusals_and_filters_end_as_refusal() {
    let refusal = "data: {\"choices\":[{\"delta\":{\"refusal\":\"no\"},\"finish_reason\":\"stop\"}]}\n\n";
    assert_eq!(stop(&whole(refusal).1), Some(StopReason::Refusal));
    let filter = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"content_filter\"}]}\n\n";
    assert_eq!(stop(&whole(filter).1), Some(StopReason::Refusal));
    let tools = "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{}]},\"finish_reason\":\"tool_calls\"}]}\n\n";
    assert_eq!(stop(&whole(tools).1), Some(StopReason::EndTurn));
}

#[test]
fn litellm_sends_counts_without_a_finish_reason() {
    let body = "data: {\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
    let ending = whole(body).1.unwrap();
    assert_eq!(ending.usage.map(|usage| usage.total_tokens), Some(3));
}

proptest! {
    #[test]
    fn any_text_cut_anywhere_arrives_whole(
        texts in proptest::collection::vec("\\PC{1,12}", 0..8),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let body: String = texts.iter().map(|text| delta(text)).collect::<String>() + STOP;
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        at.extend([0, body.len()]);
        at.sort_unstable();
        let chunks: Vec<&[u8]> = at.windows(2).map(|pair| &body.as_bytes()[pair[0]..pair[1]]).collect();
        let (text, ending) = run(&chunks, None);
        prop_assert_eq!(text, texts.concat());
        prop_assert_eq!(stop(&ending), Some(StopReason::EndTurn));
    }

    #[test]
    fn no_bytes_panic_and_a_prefix_is_never_a_success(
        noise in proptest::collection::vec(any::<u8>(), 0..200), keep in any::<prop::sample::Index>(),
    ) {
        let _ = run(&[&noise], None);
        let body = delta("some text") + STOP.trim_end_matches('\n');
        let cut = keep.index(body.len());
        prop_assert!(run(&[&body.as_bytes()[..cut]], None).1.is_err());
    }
}

/// What is sent of these pieces; the second member of a message says whether it may be the last one.
fn said(pieces: &[(Origin, bool, &str)]) -> String {
    let (mut speech, mut said) = (Speech::default(), String::new());
    let mut sink = |_, text: &str| said.push_str(text);
    for (origin, is_last, text) in pieces {
        speech.push(*origin, Kind::Text, text.as_bytes(), &mut sink);
        if *origin == Origin::Message {
            speech.end_message(MayRepeat { is_whole: false, is_last: *is_last }, &mut sink);
        }
    }
    speech.finish(&mut sink);
    said
}

#[test]
fn nothing_is_forwarded_twice() {
    use Origin::{Delta, Message};
    assert_eq!(said(&[(Delta, false, "Hel"), (Delta, false, "lo"), (Message, true, "Hello")]), "Hello");
    assert_eq!(said(&[(Message, true, "Hello"), (Message, true, "Hello")]), "Hello");
    assert_eq!(said(&[(Message, false, "The"), (Message, false, "The cat"), (Message, false, "The cat")]), "The cat");
    assert_eq!(said(&[(Message, true, "Hello."), (Message, true, "Hello!")]), "Hello.");
    assert_eq!(said(&[(Delta, false, "Hello \n"), (Message, true, "Hello")]), "Hello \n");
    assert_eq!(said(&[(Delta, false, "ha"), (Delta, false, "haha")]), "hahaha");
}

#[test]
fn a_message_that_repeats_nothing_is_forwarded() {
    use Origin::{Delta, Message};
    for (pieces, expected) in [
        (&[(Message, false, "The"), (Message, false, " cat"), (Message, false, " sat")][..], "The cat sat"),
        (&[(Message, false, "The"), (Message, false, " cat"), (Message, true, " sat")], "The cat sat"),
        (&[(Message, false, "a"), (Message, false, "b"), (Message, false, "a"), (Message, false, "c")], "abac"),
        (&[(Message, false, "The"), (Message, false, " cat. "), (Message, false, "The")], "The cat. The"),
        (&[(Delta, false, "Hel"), (Message, false, "lo"), (Message, true, " world")], "Hello world"),
        (&[(Delta, false, "Hel"), (Message, true, "Hello world")], "Hello world"),
        (&[(Message, false, "Hel"), (Delta, false, "lo")], "Hello"),
    ] {
        assert_eq!(said(pieces), expected, "{pieces:?}");
    }
}

fn read(pieces: &[&str]) -> (String, String) {
    let (mut thinking, mut thought, mut said) = (Thinking::default(), String::new(), String::new());
    let mut sink = |kind, text: &str| match kind {
        Kind::Thought => thought.push_str(text),
        Kind::Text => said.push_str(text),
    };
    for piece in pieces {
        thinking.push(piece, &mut sink);
    }
    thinking.finish(&mut sink);
    (thought, said)
}

#[test]
fn blocks_before_the_answer_are_thought_however_they_are_cut() {
    for (text, thought, said) in [
        ("<think>hm</think>yes", "hm", "yes"),
        ("\n<think>\nhm\n</think>\n\nyes <think>no</think>", "hm\n", "yes <think>no</think>"),
        ("<think>\n\n</think>\n\nyes", "", "yes"),
        ("<reasoning>a < b </think> c</reasoning> d", "a < b </think> c", "d"),
        ("<think>a</think> <thought>b</thought>c", "ab", "c"),
        ("<think>never closed </thin", "never closed </thin", ""),
        ("<thin", "", "<thin"),
        ("<table>", "", "<table>"),
        ("  plain", "", "  plain"),
        ("\n", "", "\n"),
        ("say <think>", "", "say <think>"),
        ("<think>ü</think>é", "ü", "é"),
    ] {
        let expected = (thought.to_owned(), said.to_owned());
        assert_eq!(read(&[text]), expected, "{text}");
        let each: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(read(&each.iter().map(String::as_str).collect::<Vec<_>>()), expected, "{text}");
        for cut in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
            let (left, right) = text.split_at(cut);
            assert_eq!(read(&[left, right]), expected, "{text} cut at {cut}");
        }
    }
}

#[test]
fn a_lot_of_white_space_is_not_held_back() {
    assert_eq!(read(&[" ".repeat(MOST_BLANK).as_str(), "  <think>"]).0, "");
}

proptest! {
    #[test]
    fn a_text_without_a_think_block_is_forwarded_unchanged(text in "[a-z<>/ ]{0,30}", cut in any::<prop::sample::Index>()) {
        prop_assume!(!TAGS.iter().any(|(open, _)| text.trim_start().starts_with(open)));
        let (left, right) = text.split_at(cut.index(text.len() + 1));
        prop_assert_eq!(read(&[left, right]), (String::new(), text.clone()));
    }
}
