//! A worker.
use std::io::BufRead;

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for line in std::io::stdin().lock().split(b'\n') {
        let line = line?;
        let Message { id: Some(id), method: Some(method), params } = serde_json::from_slice(&line)? else { continue };
        let params = params.map_or("null", RawValue::get);
        println!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"you_said":{params},"to":{method}}}}}"#);
    }
    Ok(())
}
