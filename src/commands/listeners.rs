//! The flags of listeners: one for each kind, from its row.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use clap::error::Error;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use crate::address::Address;
use crate::config::Listener;
use crate::kinds::{KINDS, KindRow};

/// The listeners of the command line, in the order of the table.
#[derive(Debug)]
pub(super) struct Flags(pub Vec<Listener>);

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = |row: &KindRow| Some(Listener::of(row.kind, matches.get_one::<Address>(row.key)?.clone()));
        Ok(Self(KINDS.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        command.args(KINDS.iter().map(|row| {
            let KindRow { key, value, help, long_help, .. } = row;
            let flag = Arg::new(*key).long(*key).value_name(*value).value_parser(parser(row));
            flag.help(*help).long_help(format!("{help}\n\n{long_help}"))
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn parser(row: &KindRow) -> ValueParser {
    let kind = row.kind;
    if row.needs_path {
        return OsStringValueParser::new().try_map(|path| Address::from_unix_listener(PathBuf::from(path))).into();
    }
    ValueParser::new(move |text: &str| Address::listened(kind, text, None))
}
