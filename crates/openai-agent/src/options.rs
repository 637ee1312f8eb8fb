//! What a client may choose for a session: the model, and the usual parameters of a request where the model takes them
//! (ACP's session config options). Pure.
//!
//! Every parameter is a list of usual values, since lists are what clients show; any other value that the parameter can
//! have is taken as well. Models that reason by themselves refuse to be told how to sample, and only models that reason
//! know an effort: a table of families says which. What an endpoint refuses all the same is left out from then on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

/// A parameter of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Parameter {
    ReasoningEffort,
    Temperature,
    TopP,
    Stop,
    Seed,
}

/// The value that stands for "what the endpoint does by itself", or the operator's.
const DEFAULT: &str = "default";

/// Most texts at which an answer may be told to stop (OpenAI's API).
const MOST_STOPS: usize = 4;

impl Parameter {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 5] = [Self::ReasoningEffort, Self::Temperature, Self::TopP, Self::Stop, Self::Seed];

    /// The member of a request, and the id of the option.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReasoningEffort => "reasoning_effort",
            Self::Temperature => "temperature",
            Self::TopP => "top_p",
            Self::Stop => "stop",
            Self::Seed => "seed",
        }
    }

    /// The parameter of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|parameter| parameter.name() == name)
    }

    /// What people are shown: a name, what it does, and ACP's category.
    fn label(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::ReasoningEffort => ("Reasoning effort", "How long the model thinks", "thought_level"),
            Self::Temperature => ("Temperature", "How freely the model chooses its words", "model_config"),
            Self::TopP => ("Top P", "The share of likely words the model chooses from", "model_config"),
            Self::Stop => ("Stop", "Where the answer is cut off", "model_config"),
            Self::Seed => {
                ("Seed", "The same seed makes answers repeatable, as far as the endpoint can", "model_config")
            }
        }
    }

    /// The usual values, and what people are shown for them.
    fn usual(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::ReasoningEffort => {
                &[("none", "None"), ("minimal", "Minimal"), ("low", "Low"), ("medium", "Medium"), ("high", "High")]
            }
            Self::Temperature => &[("0", "0"), ("0.3", "0.3"), ("0.7", "0.7"), ("1", "1"), ("1.5", "1.5")],
            Self::TopP => &[("0.1", "0.1"), ("0.5", "0.5"), ("0.9", "0.9"), ("1", "1")],
            Self::Stop => &[("\n", "End of a line"), ("\n\n", "Empty line"), ("```", "Fence of code")],
            Self::Seed => &[("0", "0"), ("1", "1"), ("42", "42")],
        }
    }

    /// The member's value for an option's; nothing for the default.
    ///
    /// # Errors
    /// What would be a value.
    pub fn read(self, value: &str) -> Result<Option<Json>, String> {
        if value == DEFAULT {
            return Ok(None);
        }
        let number = |most: f64| value.trim().parse::<f64>().ok().filter(|number| (0.0..=most).contains(number));
        let read = match self {
            // Endpoints have words of their own (xhigh, max).
            Self::ReasoningEffort => {
                let is_word = (1..=16).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_alphanumeric());
                is_word.then(|| value.into()).ok_or("a word such as low, medium or high")
            }
            Self::Temperature => number(2.0).map(Json::from).ok_or("a number from 0 to 2"),
            Self::TopP => number(1.0).map(Json::from).ok_or("a number from 0 to 1"),
            Self::Stop => stops(value).ok_or("a text, or a JSON array of up to 4 texts"),
            Self::Seed => value.trim().parse::<i64>().ok().map(Json::from).ok_or("a whole number"),
        };
        match read {
            Ok(member) => Ok(Some(member)),
            Err(wanted) => Err(format!("{} is {wanted}, or default; not {value:?}", self.name())),
        }
    }

    /// Whether a model takes it, as far as its name tells.
    pub fn is_taken_by(self, model: &str) -> bool {
        let family = Family::of(model);
        match self {
            Self::ReasoningEffort => family.is_some_and(|family| family.has_effort),
            Self::Temperature | Self::TopP | Self::Stop => family.is_none_or(|family| family.samples),
            Self::Seed => true,
        }
    }

    fn option(self, chosen: Option<&Json>) -> Json {
        let (name, description, category) = self.label();
        let current = chosen.map_or_else(|| DEFAULT.to_owned(), shown);
        let mut options = vec![json!({ "value": DEFAULT, "name": "Default" })];
        options.extend(self.usual().iter().map(|(value, name)| json!({ "value": value, "name": name })));
        if options.iter().all(|option| option["value"] != current) {
            options.push(json!({ "value": current, "name": current }));
        }
        json!({
            "id": self.name(),
            "name": name,
            "description": description,
            "category": category,
            "type": "select",
            "currentValue": current,
            "options": options,
        })
    }
}

/// A text, or several as a JSON array.
fn stops(value: &str) -> Option<Json> {
    if let Ok(texts) = serde_json::from_str::<Vec<String>>(value) {
        let is_usable = (1..=MOST_STOPS).contains(&texts.len()) && texts.iter().all(|text| !text.is_empty());
        return is_usable.then(|| texts.into());
    }
    (!value.is_empty()).then(|| value.into())
}

/// A member's value as an option's: the usual one where it means the same.
fn shown(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Number(number) => number
            .as_f64()
            .filter(|number| number.fract() == 0.0 && number.abs() < 1e15)
            .map_or_else(|| number.to_string(), |number| format!("{number:.0}")),
        other => other.to_string(),
    }
}

/// Models whose names begin alike.
struct Family {
    beginning: &'static str,
    /// Takes `reasoning_effort`.
    has_effort: bool,
    /// Takes `temperature`, `top_p` and `stop`.
    samples: bool,
}

const fn family(beginning: &'static str, has_effort: bool, samples: bool) -> Family {
    Family { beginning, has_effort, samples }
}

/// The first that fits counts.
const FAMILIES: [Family; 18] = [
    family("gpt-5-chat", false, true),
    family("gpt-5", true, false),
    family("gpt-oss", true, true),
    family("o1", true, false),
    family("o3", true, false),
    family("o4", true, false),
    family("codex", true, false),
    family("claude-opus-4", true, true),
    family("claude-sonnet-4", true, true),
    family("gemini-2.5", true, true),
    family("gemini-3", true, true),
    family("grok-3-mini", true, true),
    family("grok-4", false, true),
    family("deepseek-v3.1", true, true),
    family("deepseek-r1", false, true),
    family("magistral", false, true),
    family("qwen3", true, true),
    family("glm-4.5", true, true),
];

impl Family {
    fn of(model: &str) -> Option<&'static Self> {
        // Routers put the maker before the name.
        let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
        FAMILIES.iter().find(|family| {
            name.strip_prefix(family.beginning)
                .is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_alphanumeric()) || rest.is_empty())
        })
    }
}

/// What a client has chosen in a session. A file keeps it as members by name; what a member cannot be is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, Json>", into = "BTreeMap<String, Json>")]
pub struct Chosen(BTreeMap<Parameter, Json>);

impl Chosen {
    /// The member's value, if one was chosen.
    pub fn get(&self, parameter: Parameter) -> Option<&Json> {
        self.0.get(&parameter)
    }

    /// Chooses; nothing takes a choice back.
    pub fn set(&mut self, parameter: Parameter, value: Option<Json>) {
        match value {
            Some(value) => self.0.insert(parameter, value),
            None => self.0.remove(&parameter),
        };
    }
}

impl From<BTreeMap<String, Json>> for Chosen {
    fn from(members: BTreeMap<String, Json>) -> Self {
        let mut chosen = Self::default();
        for parameter in Parameter::ALL {
            let value = members.get(parameter.name()).map(|member| parameter.read(&shown(member)));
            chosen.set(parameter, value.and_then(Result::ok).flatten());
        }
        chosen
    }
}

impl From<Chosen> for BTreeMap<String, Json> {
    fn from(chosen: Chosen) -> Self {
        chosen.0.into_iter().map(|(parameter, member)| (parameter.name().to_owned(), member)).collect()
    }
}

/// A set of parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters(u8);

impl Parameters {
    /// Adds one; whether it was not there.
    pub fn insert(&mut self, parameter: Parameter) -> bool {
        let before = self.0;
        self.0 |= 1 << parameter as u8;
        before != self.0
    }

    /// Whether it is there.
    pub fn contains(self, parameter: Parameter) -> bool {
        self.0 & (1 << parameter as u8) != 0
    }

    /// All of both.
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<Parameter> for Parameters {
    fn from_iter<T: IntoIterator<Item = Parameter>>(parameters: T) -> Self {
        let mut set = Self::default();
        for parameter in parameters {
            set.insert(parameter);
        }
        set
    }
}

/// The options of a session as ACP tells them: the models, and these parameters.
pub fn config_options(models: &[String], model: &str, offered: Parameters, chosen: &Chosen) -> Json {
    let models: Vec<Json> = models.iter().map(|model| json!({ "value": model, "name": model })).collect();
    let mut options = vec![json!({
        "id": "model",
        "name": "Model",
        "category": "model",
        "type": "select",
        "currentValue": model,
        "options": models,
    })];
    let offered = Parameter::ALL.into_iter().filter(|parameter| offered.contains(*parameter));
    options.extend(offered.map(|parameter| parameter.option(chosen.get(parameter))));
    options.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_takes_its_usual_values_and_any_other_it_can_have() {
        for parameter in Parameter::ALL {
            assert_eq!(Parameter::named(parameter.name()), Some(parameter));
            assert_eq!(parameter.read("default"), Ok(None));
            for (value, _) in parameter.usual() {
                let member = parameter.read(value).unwrap().unwrap();
                let option = parameter.option(Some(&member));
                assert_eq!(option["currentValue"], *value, "{value:?} is shown as itself");
                assert_eq!(option["options"].as_array().unwrap().len(), parameter.usual().len() + 1);
            }
        }
        for (parameter, value, member) in [
            (Parameter::ReasoningEffort, "xhigh", json!("xhigh")),
            (Parameter::Temperature, "0.35", json!(0.35)),
            (Parameter::TopP, " 1.0 ", json!(1.0)),
            (Parameter::Stop, "END", json!("END")),
            (Parameter::Stop, r#"["a","b"]"#, json!(["a", "b"])),
            (Parameter::Seed, "-7", json!(-7)),
        ] {
            assert_eq!(parameter.read(value), Ok(Some(member.clone())), "{value}");
            let option = parameter.option(Some(&member));
            let values = option["options"].as_array().unwrap();
            assert!(values.iter().any(|one| one["value"] == option["currentValue"]), "{option}");
        }
        for (parameter, value) in [
            (Parameter::ReasoningEffort, "very much"),
            (Parameter::ReasoningEffort, ""),
            (Parameter::Temperature, "2.1"),
            (Parameter::Temperature, "NaN"),
            (Parameter::Temperature, "warm"),
            (Parameter::TopP, "-0.1"),
            (Parameter::Stop, ""),
            (Parameter::Stop, "[]"),
            (Parameter::Stop, r#"["1","2","3","4","5"]"#),
            (Parameter::Seed, "1.5"),
        ] {
            assert!(parameter.read(value).is_err(), "{value:?}");
        }
    }

    #[test]
    fn a_choice_comes_back_from_a_file_and_what_cannot_be_one_does_not() {
        let mut chosen = Chosen::default();
        for (parameter, value) in [
            (Parameter::ReasoningEffort, "high"),
            (Parameter::Temperature, "0.35"),
            (Parameter::TopP, "1"),
            (Parameter::Stop, r#"["a","b"]"#),
            (Parameter::Seed, "-7"),
        ] {
            chosen.set(parameter, parameter.read(value).unwrap());
        }
        let text = serde_json::to_string(&chosen).unwrap();
        assert_eq!(serde_json::from_str::<Chosen>(&text).unwrap(), chosen, "{text}");
        let odd = r#"{"temperature":9,"top_p":null,"stop":{},"seed":"7","x":1}"#;
        chosen = Chosen::default();
        chosen.set(Parameter::Stop, Some(json!("{}")));
        chosen.set(Parameter::Seed, Some(json!(7)));
        assert_eq!(serde_json::from_str::<Chosen>(odd).unwrap(), chosen);
    }

    #[test]
    fn a_model_is_offered_what_its_family_takes() {
        let taken = |model: &str| -> Vec<&str> {
            Parameter::ALL.into_iter().filter(|one| one.is_taken_by(model)).map(Parameter::name).collect()
        };
        let all = ["reasoning_effort", "temperature", "top_p", "stop", "seed"];
        assert_eq!(taken("gpt-4o"), all[1..]);
        assert_eq!(taken("llama3.1"), all[1..]);
        assert_eq!(taken("o3-mini"), ["reasoning_effort", "seed"]);
        assert_eq!(taken("openai/gpt-5.1"), ["reasoning_effort", "seed"]);
        assert_eq!(taken("gpt-5-chat-latest"), all[1..]);
        assert_eq!(taken("openai/gpt-oss-120b"), all);
        assert_eq!(taken("Qwen/Qwen3-32B"), all);
        // A name that only begins alike.
        assert_eq!(taken("o1000"), all[1..]);
    }
}
