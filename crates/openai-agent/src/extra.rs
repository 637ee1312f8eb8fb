//! `OPENAI_EXTRA_BODY` and `OPENAI_MODEL_EXTRA_BODY`: members that every request of a model gets. Pure.
//!
//! They are merged into the request as RFC 7396 (JSON Merge Patch) says: objects member by member, anything else takes
//! the place of what the agent would send, and `null` takes a member out. The patch of all models comes first, then
//! those whose name is a beginning of the model's (`gpt-5*`), the shortest first, then the model's own.

use serde_json::{Map, Value as Json};

/// The variable with the patch of all models.
pub const ALL: &str = "OPENAI_EXTRA_BODY";

/// The variable with the patches of single models.
pub const BY_MODEL: &str = "OPENAI_MODEL_EXTRA_BODY";

/// What a session and a model are made of: nobody else's to say.
const OURS: [&str; 2] = ["messages", "model"];

/// The patches.
#[derive(Clone, Debug, Default)]
pub struct ExtraBody {
    all: Map<String, Json>,
    /// Model or beginning of models (then with its asterisk) and patch, in the order in which they are merged.
    by_model: Vec<(String, Map<String, Json>)>,
}

impl ExtraBody {
    /// Reads both variables.
    ///
    /// # Errors
    /// The variable that cannot be used and what is wrong with it; values are not quoted, since they may be secrets.
    pub fn read(all: Option<&str>, by_model: Option<&str>) -> Result<Self, (&'static str, String)> {
        let mut read = Self::default();
        if let Some(text) = all {
            read.all = object(text).and_then(patch).map_err(|problem| (ALL, problem))?;
        }
        for (model, value) in
            by_model.map(object).transpose().map_err(|problem| (BY_MODEL, problem))?.unwrap_or_default()
        {
            let of_model = |problem| (BY_MODEL, format!("{model:?}: {problem}"));
            let Json::Object(members) = value else { return Err(of_model("is not a JSON object".to_owned())) };
            let members = patch(members).map_err(of_model)?;
            read.by_model.push((model, members));
        }
        read.by_model.sort_by_key(|(name, _)| (!name.ends_with('*'), name.len()));
        Ok(read)
    }

    /// Merges what the model's requests get into the members that the agent would send.
    pub fn apply(&self, model: &str, members: &mut Map<String, Json>) {
        for patch in self.of(model) {
            merge(members, patch);
        }
    }

    /// Whether a member of the model's requests is said here, be it that it is left out.
    pub fn says(&self, model: &str, member: &str) -> bool {
        self.of(model).any(|patch| patch.contains_key(member))
    }

    /// Calls `sink` with the values of members that are named like keys: some gateways take them in the body.
    pub fn each_secret(&self, sink: &mut dyn FnMut(&str)) {
        for patch in std::iter::once(&self.all).chain(self.by_model.iter().map(|(_, patch)| patch)) {
            secrets_in(patch, sink);
        }
    }

    fn of(&self, model: &str) -> impl Iterator<Item = &Map<String, Json>> {
        let fits = move |name: &str| match name.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => model == name,
        };
        let own = self.by_model.iter().filter(move |(name, _)| fits(name)).map(|(_, patch)| patch);
        std::iter::once(&self.all).chain(own)
    }
}

fn object(text: &str) -> Result<Map<String, Json>, String> {
    match serde_json::from_str(text) {
        Ok(Json::Object(members)) => Ok(members),
        Ok(_) => Err("is not a JSON object".to_owned()),
        Err(error) => Err(format!("is not a JSON object: line {}, column {}", error.line(), error.column())),
    }
}

fn patch(members: Map<String, Json>) -> Result<Map<String, Json>, String> {
    match OURS.iter().find(|name| members.contains_key(**name)) {
        Some(name) => Err(format!("{name:?} is the agent's own to say (OPENAI_MODEL, OPENAI_SYSTEM_PROMPT)")),
        None => Ok(members),
    }
}

fn merge(target: &mut Map<String, Json>, patch: &Map<String, Json>) {
    for (name, value) in patch {
        match value {
            Json::Null => {
                target.remove(name);
            }
            Json::Object(members) => {
                let inner = target.entry(name.as_str()).or_insert_with(|| Json::Object(Map::new()));
                if !inner.is_object() {
                    *inner = Json::Object(Map::new());
                }
                if let Some(inner) = inner.as_object_mut() {
                    merge(inner, members);
                }
            }
            value => {
                target.insert(name.clone(), value.clone());
            }
        }
    }
}

fn secrets_in(members: &Map<String, Json>, sink: &mut dyn FnMut(&str)) {
    for (name, value) in members {
        let name = name.to_ascii_lowercase();
        let is_named_so =
            ["key", "secret", "password", "credential", "authorization"].iter().any(|word| name.contains(word))
                || name.ends_with("token");
        match value {
            Json::String(text) if is_named_so => sink(text),
            Json::Object(members) => secrets_in(members, sink),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn applied(extra: &ExtraBody, model: &str, members: Json) -> Json {
        let Json::Object(mut members) = members else { panic!() };
        extra.apply(model, &mut members);
        members.into()
    }

    #[test]
    fn patches_are_merged_as_rfc_7396_says() {
        // The examples of its appendix A whose target and patch are objects.
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let extra = ExtraBody::read(Some(&patch.to_string()), None).unwrap();
            assert_eq!(applied(&extra, "m", target), result);
        }
    }

    #[test]
    fn the_model_that_is_named_best_has_the_last_word() {
        let by_model = json!({
            "gpt-5": {"level": "exact"},
            "gpt*": {"level": "short", "family": "gpt", "seed": null},
            "gpt-5*": {"level": "long"},
        });
        let all = json!({"level": "all", "seed": 7});
        let extra = ExtraBody::read(Some(&all.to_string()), Some(&by_model.to_string())).unwrap();
        let of = |model: &str| applied(&extra, model, json!({}));
        assert_eq!(of("llama"), json!({"level": "all", "seed": 7}));
        assert_eq!(of("gpt-4"), json!({"level": "short", "family": "gpt"}));
        assert_eq!(of("gpt-5-mini"), json!({"level": "long", "family": "gpt"}));
        assert_eq!(of("gpt-5"), json!({"level": "exact", "family": "gpt"}));
        assert!(extra.says("gpt-4", "seed") && !extra.says("llama", "family"));
    }

    #[test]
    fn what_cannot_be_merged_is_refused_without_quoting_it() {
        for (all, by_model, name) in [
            (Some("[]"), None, ALL),
            (Some("{\"a\": sk-secret}"), None, ALL),
            (Some("{\"model\":\"sk-secret\"}"), None, ALL),
            (Some("{\"messages\":[]}"), None, ALL),
            (None, Some("7"), BY_MODEL),
            (None, Some("{\"m\":\"sk-secret\"}"), BY_MODEL),
            (None, Some("{\"m\":{\"model\":null}}"), BY_MODEL),
        ] {
            let (variable, problem) = ExtraBody::read(all, by_model).unwrap_err();
            assert_eq!(variable, name);
            assert!(!problem.contains("sk-secret"), "{problem}");
        }
    }

    #[test]
    fn members_that_are_named_like_keys_are_secrets() {
        let all = json!({"api_key": "k1", "metadata": {"Auth-Token": "k2"}, "max_tokens": 5, "user": "u"});
        let extra = ExtraBody::read(Some(&all.to_string()), None).unwrap();
        let mut found = Vec::new();
        extra.each_secret(&mut |value| found.push(value.to_owned()));
        found.sort();
        assert_eq!(found, ["k1", "k2"]);
    }
}
