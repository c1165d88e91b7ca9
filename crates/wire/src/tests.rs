use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<Message, MalformedMessage> {
    Message::parse(Bytes::copy_from_slice(text.as_bytes()))
}

fn request(text: &str) -> Request {
    match parse(text) {
        Ok(Message::Request(request)) => request,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn rekeying_changes_only_the_edited_tokens() {
    let raw = r#" {"x-first":1.0,"params":{"a":1e3,"name":"n","arguments":{"b":"\u00e9\/"},"_meta":{"progressToken":"p"}},"id":"i","jsonrpc":"2.0","method":"tools/call","z":null} "#;
    let request = request(raw);
    let mut edits = Splice::new();
    edits.replace(request.params.name.expect("a name"), "\"native\"");
    edits.replace(request.params.known_meta.progress_token.expect("a token"), "7");
    let sent = request.rekeyed(&Id::from(7), edits);
    assert_eq!(sent, raw.replace("\"n\"", "\"native\"").replace("\"p\"", "7").replace("\"i\"", "7"));
}

#[test]
fn ids_keep_their_type_and_value() {
    for (token, same) in
        [("1", "1"), ("\"1\"", "\"1\""), ("-9223372036854775809", "-9223372036854775809"), ("\"\\u0061\"", "\"a\"")]
    {
        let request = request(&format!(r#"{{"jsonrpc":"2.0","id":{token},"method":"ping"}}"#));
        assert_eq!(request.id.token(), same);
    }
}

#[test]
fn an_invalid_envelope_is_rejected_with_its_code_and_id() {
    for (text, code, readable_id) in [
        ("{", -32700, None),
        ("", -32700, None),
        ("{}x", -32700, None),
        ("nul", -32700, None),
        ("\"text\"", -32600, None),
        ("17", -32600, None),
        ("[]", -32600, None),
        ("{}", -32600, None),
        (r#"{"jsonrpc":"1.0","id":3,"method":"ping"}"#, -32600, Some("3")),
        (r#"{"jsonrpc":"2.0","id":3}"#, -32600, Some("3")),
        (r#"{"jsonrpc":"2.0","id":3,"method":"ping","result":{}}"#, -32600, Some("3")),
        (r#"{"jsonrpc":"2.0","id":3,"method":7}"#, -32600, Some("3")),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":1e400,"method":"ping"}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":3,"method":"ping","params":[1]}"#, -32600, Some("3")),
        (r#"{"jsonrpc":"2.0","id":3,"method":"ping","method":"tools/call"}"#, -32600, Some("3")),
        (r#"{"jsonrpc":"2.0","id":3,"method":"ping","x":1,"\u0078":2}"#, -32600, Some("3")),
        (r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"a","n\u0061me":"b"}}"#, -32600, Some("3")),
        (r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"y":1,"y":2}}"#, -32600, Some("3")),
    ] {
        let malformed = parse(text).expect_err(text);
        assert_eq!(malformed.error.class().code, code, "{text}: {}", malformed.error);
        assert_eq!(malformed.id.map(|id| id.to_string()).as_deref(), readable_id, "{text}");
    }
}

#[test]
fn null_params_count_as_absent() {
    assert!(request(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":null}"#).params.whole.is_none());
}

#[test]
fn duplicates_among_many_params_are_found() {
    let many: Vec<_> = (0..100).map(|number| format!("\"k{number}\":0")).collect();
    let text = |extra: &str| format!(r#"{{"jsonrpc":"2.0","method":"x","params":{{{}{extra}}}}}"#, many.join(","));
    assert!(parse(&text("")).is_ok());
    assert!(parse(&text(",\"k3\":1")).is_err());
    assert!(parse(&text(",\"k99\":1")).is_err());
}

#[test]
fn invalid_utf8_is_rejected() {
    let malformed =
        Message::parse(Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}")).expect_err("not UTF-8");
    assert_eq!(malformed.error.class().code, -32700);
}

#[test]
fn hard2_a_message_beyond_the_depth_keeps_its_id_and_its_kind() {
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let call =
        |deep: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"arguments":{deep}}}}}"#);
    let deep = nested(MAX_DEPTH - 2);
    let request = request(&call(&deep));
    assert_eq!(request.raw.get(request.params.arguments.expect("arguments")), deep);
    let response = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{}}}"#, nested(100_000));
    for (text, is_response) in [(call(&nested(MAX_DEPTH - 1)), false), (response, true)] {
        let malformed = parse(&text).expect_err("too deep");
        assert!(matches!(malformed.error, Error::LimitExceeded { limit: "jsonDepth", value: MAX_DEPTH }));
        assert_eq!((malformed.id, malformed.is_response), (Some(Id::from(1)), is_response));
    }
}

#[test]
fn hard2_a_batch_has_a_maximum_length() {
    let split = |text: String| Message::split_batch(&text.into()).expect("a batch");
    let ones = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
    assert_eq!(split(ones(MAX_BATCH)).expect("the maximum fits").len(), MAX_BATCH);
    let malformed = split(ones(MAX_BATCH + 1)).expect_err("above the maximum");
    assert!(matches!(malformed.error, Error::LimitExceeded { limit: "batchMessages", value: MAX_BATCH }));
    assert!(matches!(split("[1,".to_owned()).expect_err("cut off").error, Error::Parse(_)));
    assert!(matches!(split("[1]]".to_owned()).expect_err("too much").error, Error::Parse(_)));
}

#[test]
fn a_response_without_id_can_still_be_read() {
    for text in [r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}"#, r#"{"jsonrpc":"2.0","error":{}}"#] {
        let Ok(Message::Response(response)) = parse(text) else { panic!("{text}") };
        assert_eq!(response.id, None, "{text}");
        for sent in [response.rekeyed(&Id::from(4), Splice::new()), response.rekeyed(&Id::from(3), Splice::new())] {
            let sent = sent.into_line().with_id(&Id::from(4)).concat();
            let Ok(Message::Response(again)) = Message::parse(sent) else { panic!("{text}") };
            assert_eq!(again.id, Some(Id::from(4)), "{text}");
        }
    }
}

#[test]
fn a_reply_of_the_gateway_has_an_id_that_can_change() {
    let check = |pieces: json::Pieces, expected: &str| {
        assert_eq!(pieces.with_id(&Id::from(2)).concat(), expected);
    };
    let id = Id::from(1);
    check(reply(&id, "{\"id\":1}"), r#"{"jsonrpc":"2.0","id":2,"result":{"id":1}}"#);
    check(error_reply(Some(&id), "{}"), r#"{"jsonrpc":"2.0","id":2,"error":{}}"#);
    check(error_reply(None, "{}"), r#"{"jsonrpc":"2.0","error":{}}"#);
}

#[test]
fn a_cancellation_names_a_request_and_a_reason() {
    let check = |params: &str, expected: Option<(&str, &str)>| {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#);
        let Ok(Message::Notification(notification)) = parse(&text) else { panic!("{text}") };
        let read = params::cancelled(&notification, "none");
        let read = read.as_ref().map(|(id, reason)| (id.to_string(), &**reason));
        assert_eq!(read, expected.map(|(id, reason)| (id.to_owned(), reason)), "{text}");
    };
    check(r#"{"requestId":7,"reason":"too \u0061"}"#, Some(("7", "too a")));
    check(r#"{"requestId":"7","reason":1}"#, Some(("\"7\"", "none")));
    check(r#"{"requestId":[7]}"#, None);
    check(r#"{"reason":"r"}"#, None);
}

#[test]
fn batches_split_into_the_messages_they_hold() {
    let raw = Bytes::from_static(b" [ {\"a\":1.0} ,2]");
    let parts = Message::split_batch(&raw).expect("an array").expect("valid");
    assert_eq!(parts, ["{\"a\":1.0}", "2"]);
    assert!(Message::split_batch(&Bytes::from_static(b"{}")).is_none());
    assert!(Message::split_batch(&Bytes::from_static(b"[1,")).expect("an array").is_err());
}

proptest! {
    #[test]
    fn parsing_any_input_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Message::parse(bytes.clone().into());
        let _ = Message::split_batch(&bytes.into());
    }

    #[test]
    fn an_answer_carries_its_payload_unchanged(value in ".{0,40}", id in any::<i64>()) {
        let payload = json::quote(&value);
        let raw = format!(r#"{{"result":{{"v":{payload},"n":1.0}},"id":5,"jsonrpc":"2.0"}}"#);
        let Ok(Message::Response(response)) = parse(&raw) else { panic!("{raw}") };
        let client = request(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)).id;
        let sent = response.rekeyed(&client, Splice::new());
        let again = sent.clone().with_id(&Id::from(6)).concat();
        prop_assert_eq!(again, raw.replace("\"id\":5", "\"id\":6"));
        prop_assert_eq!(sent.concat(), raw.replace("\"id\":5", &format!("\"id\":{id}")));
    }
}
