//! One member of a message that routing looks at in few messages only: it is looked for in the line, which the scanner
//! has validated before.

use alloc::borrow::Cow;

use super::SkipValue;
use super::string::decoded;

/// The decoded string that the member `name` of `params` is, if it is one. `line` is a valid message.
pub fn string_in_params<'a>(line: &'a [u8], name: &[u8]) -> Option<Cow<'a, [u8]>> {
    let value = member(member(line, b"params")?, name)?;
    value.starts_with(b"\"").then(|| decoded(value))
}

/// The value of the member of this name in an object, which is valid JSON; none if there is no such member, or it is no
/// object.
pub fn member<'a>(object: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut rest = object.trim_ascii_start().strip_prefix(b"{")?;
    loop {
        rest = rest.trim_ascii_start();
        rest = rest.strip_prefix(b",").unwrap_or(rest).trim_ascii_start();
        if !rest.starts_with(b"\"") {
            return None;
        }
        let (key, behind) = rest.split_at(SkipValue::default().read(rest)?);
        let value = behind.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let end = SkipValue::default().read(value)?;
        if *decoded(key) == *name {
            return Some(&value[..end]);
        }
        rest = &value[end..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_in_params_is_found_wherever_it_stands() {
        for line in [
            r#"{"params":{"x":"v"}}"#,
            r#" { "a" : [ {"params":{"x":"no"}} , 1 ] , "params" : { "y" : {"x":"no"} , "x" : "v" } }"#,
            r#"{"x":"no","p\u0061rams":{"n":-1.5e3,"t":true,"\u0078":"\u0076"}}"#,
        ] {
            assert_eq!(string_in_params(line.as_bytes(), b"x").as_deref(), Some(&b"v"[..]), "{line}");
        }
    }

    #[test]
    fn what_is_no_string_in_params_is_not_found() {
        for line in
            ["{}", r#"{"params":{}}"#, r#"{"params":[{"x":"v"}]}"#, r#"{"params":"x"}"#, r#"{"params":{"x":7}}"#]
        {
            assert_eq!(string_in_params(line.as_bytes(), b"x"), None, "{line}");
        }
    }
}
