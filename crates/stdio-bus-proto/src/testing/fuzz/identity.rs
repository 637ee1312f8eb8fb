//! Any bytes as a request to a listener that takes names from a proxy: whom it is from, and that a name is only what one
//! line of the head says, byte for byte.

use stdio_bus_core::port::{Origin, Place};
use stdio_bus_core::settings::Proxies;

use crate::access::{Caller, Entrance, Identity, LONGEST_NAME, Policy, Reach};
use crate::http1::HeadReader;

const NAME: &[u8] = b"x-user";

/// The values of the field, as a reader sees them who knows lines alone.
fn values(stream: &[u8]) -> Vec<&[u8]> {
    let lines = stream.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let head = lines.skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty());
    let fields = head.skip(1).filter_map(|line| Some(line.split_at(line.iter().position(|byte| *byte == b':')?)));
    let ours = fields.filter(|(name, _)| name.eq_ignore_ascii_case(NAME));
    ours.map(|(_, value)| value[1..].trim_ascii()).collect()
}

/// Identifies the sender twice: from a proxy that is believed, and from anybody.
///
/// # Panics
/// If a name is taken from a sender that is not trusted, from several lines, or is not the whole value; or if a request without a
/// name is let in.
pub fn check(stream: &[u8]) {
    let identity = Identity { header: "X-User".into(), trusted_proxies: Some(Proxies::Unix), ..Identity::default() };
    let policy = Policy { identity: Some(identity), origins: vec!["*".to_owned()], ..Policy::default() };
    let entrance = Entrance { reach: Reach::AnyName, takes_subprotocols: false };
    let mut reader = HeadReader::default();
    let Ok(Some(head)) = reader.read(stream) else { return };
    let Ok(caller) = Caller::of(&head, None, policy.identity.as_ref()) else { return };
    let values = values(stream);
    let stranger = Place::Address(([192, 0, 2, 7], 1).into());
    for (place, is_believed) in [(Place::Process { pid: 1, user: 1 }, true), (stranger, false)] {
        let mut origin = Origin::from(place);
        match policy.identify(entrance, &mut origin, &caller) {
            Ok(bearer) => {
                assert!(bearer.is_none() && is_believed && values.len() == 1, "{}", stream.escape_ascii());
                let name = origin.names.user.as_deref().expect("it is let in by its name");
                assert_eq!(name.as_bytes(), values[0], "{}", stream.escape_ascii());
                assert!((1..=LONGEST_NAME).contains(&name.len()), "{name}");
                assert!(!name.contains(|c: char| c == ',' || c.is_control() || c.is_whitespace()), "{name:?}");
            }
            Err(refusal) => {
                let code = refusal.status.code();
                assert!(code == 401 || !values.is_empty(), "{code}: {}", stream.escape_ascii());
                assert!(code == 400 || values.is_empty() || is_believed, "{code}: {}", stream.escape_ascii());
            }
        }
    }
}
