//! Files of variables, one for each verified name: `FOLDER/KIND/NAME.env`. They are opened by name, so a name is
//! checked, and no link is followed below the folder.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use zeroize::Zeroizing;

use crate::access::is_one_word;
use crate::bus::port::{NameAuthority, Owner};
use crate::small_file;

/// Maximum size of a file in bytes.
const LARGEST: u64 = 64 * 1024;
/// Maximum length of the name of a file in bytes, on all usual file systems.
const LONGEST: usize = 255;
/// What the names of such files end with.
pub(crate) const ENDING: &str = ".env";

/// Variables and their values, which are overwritten when they are dropped.
pub(crate) type Variables = Vec<(String, Zeroizing<Vec<u8>>)>;

/// The names of the subfolders: the same text is another name if somebody else vouches for it.
pub(crate) const KINDS: [(NameAuthority, &str); 3] =
    [(NameAuthority::Token, "token"), (NameAuthority::Certificate, "cn"), (NameAuthority::Proxy, "user")];

/// The subfolder of a name, and its file there.
///
/// # Errors
/// No file can be called so.
pub(crate) fn place(owner: Owner<'_>) -> Result<(&'static str, String), String> {
    let kind = KINDS.iter().find(|(vouches, _)| *vouches == owner.vouches).map_or("", |(_, kind)| kind);
    let name = owner.name;
    let is_good = !name.is_empty()
        && !name.starts_with('.')
        && !name.contains('/')
        && !name.chars().any(char::is_control)
        && name.len() + ENDING.len() <= LONGEST;
    match is_good {
        true => Ok((kind, format!("{name}{ENDING}"))),
        false => Err(format!(
            "the {kind} {name:?} can have no file of credentials: a file's name has no slash, no dot at its beginning and at \
             most {LONGEST} bytes"
        )),
    }
}

/// Why a file was not read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The daemon is short of something, which says nothing about the file.
    Shortage(io::Error),
    /// What is wrong with the file, without any value.
    Unusable(String),
}

impl Unread {
    fn of(error: io::Error, why: impl FnOnce(&io::Error) -> String) -> Self {
        if small_file::is_short(&error) { Self::Shortage(error) } else { Self::Unusable(why(&error)) }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shortage(error) => write!(out, "cannot be read now: {error}"),
            Self::Unusable(why) => out.write_str(why),
        }
    }
}

/// The variables in a file. What is wrong does not say any value.
///
/// # Errors
/// It does not exist, is no regular file, is too large, or is malformed; or the daemon is short of something.
pub(crate) fn read(folder: &Path, kind: &str, file: &str) -> Result<Variables, Unread> {
    let only_look = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let why = |error: Errno| match error {
        Errno::NOENT => "does not exist".to_owned(),
        Errno::LOOP | Errno::NOTDIR => "is a link, or lies behind one".to_owned(),
        Errno::ACCESS => "may not be read by the user that runs stdio_bus".to_owned(),
        error => format!("cannot be opened: {error}"),
    };
    let what = |error: Errno| Unread::of(error.into(), |_| why(error));
    let folder = open(folder, only_look, Mode::empty())
        .map_err(|error| Unread::of(error.into(), |_| format!("lies in a folder that {}", why(error))))?;
    let folder = openat(folder, kind, only_look | OFlags::NOFOLLOW, Mode::empty()).map_err(what)?;
    let file = File::from(openat(folder, file, small_file::OPENED | OFlags::NOFOLLOW, Mode::empty()).map_err(what)?);
    let bytes = small_file::content(file, LARGEST)
        .map_err(|error| Unread::of(error, |error| format!("cannot be read: {error}")))?
        .map(Zeroizing::new);
    bytes.and_then(|bytes| parse(&bytes)).map_err(Unread::Unusable)
}

/// A file of a folder: its path from there, and the names of its variables or what is wrong with it.
pub(crate) struct FoundFile {
    pub path: String,
    pub names: Result<Vec<String>, String>,
}

/// What is in a folder of files of variables.
#[derive(Default)]
pub(crate) struct Survey {
    /// The files, by their paths.
    pub files: Vec<FoundFile>,
    /// Paths from the folder that no client leads to, and of folders that cannot be looked at, with what is wrong.
    pub faults: Vec<(String, String)>,
}

/// The files of a folder, and what is there that does not serve as one.
pub(crate) fn survey(folder: &Path) -> Survey {
    let mut survey = Survey::default();
    let kinds = KINDS.map(|(_, kind)| format!("{kind}/")).join(", ");
    for (vouches, kind) in KINDS.map(|(vouches, kind)| (Some(vouches), kind)).into_iter().chain([(None, "")]) {
        let entries = match std::fs::read_dir(folder.join(kind)).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
            Ok(entries) => entries,
            Err(error) => {
                // Not each kind of names has files.
                if error.kind() != io::ErrorKind::NotFound {
                    survey
                        .faults
                        .push((kind.to_owned(), format!("cannot be listed, so nothing there is checked: {error}")));
                }
                continue;
            }
        };
        for file in entries.into_iter().map(|entry| entry.file_name()).filter(|file| ends_so(file)) {
            let path = Path::new(kind).join(&file).display().to_string();
            let Some(vouches) = vouches else {
                survey.faults.push((path, format!("is nobody's: the files of clients are in {kinds}")));
                continue;
            };
            let name = file.to_str().and_then(|file| file.strip_suffix(ENDING));
            let name = name.filter(|name| may_be_called(vouches, name));
            match name.and_then(|name| place(Owner { vouches, name }).ok()) {
                Some((kind, file)) => {
                    let names = read(folder, kind, &file).map(|all| all.into_iter().map(|(name, _)| name).collect());
                    survey.files.push(FoundFile { path, names: names.map_err(|unread| unread.to_string()) });
                }
                None => survey.faults.push((path, "is nobody's: no client can have such a name".to_owned())),
            }
        }
    }
    survey.files.sort_by(|one, other| one.path.cmp(&other.path));
    survey.faults.sort();
    survey
}

/// Whether there can be a verified name like this: names of tokens and headers have no blanks, and those of headers no comma.
fn may_be_called(vouches: NameAuthority, name: &str) -> bool {
    match vouches {
        NameAuthority::Certificate => true,
        NameAuthority::Token => is_one_word(name),
        NameAuthority::Proxy => is_one_word(name) && !name.contains(','),
    }
}

/// Whether a file is meant as one of variables.
fn ends_so(file: &OsStr) -> bool {
    file.as_encoded_bytes().ends_with(ENDING.as_bytes())
}

/// Whether shells and systemd know it as the name of a variable.
pub(crate) fn is_variable(name: &str) -> bool {
    let belongs = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(belongs)
}

/// The variables in a text: lines of `NAME=VALUE`. What systemd's EnvironmentFile= would read otherwise is refused.
fn parse(bytes: &[u8]) -> Result<Variables, String> {
    let mut variables = Variables::new();
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        let bad = |why: &str| Err(format!("is malformed in line {number}: {why}"));
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") || line.starts_with(b";") {
            continue;
        }
        let Ok(text) = str::from_utf8(line) else { return bad("it is not UTF-8") };
        if text.starts_with('\u{feff}') {
            return bad("it begins with a byte order mark: save the file without it");
        }
        let Some((name, value)) = text.split_once('=') else { return bad("it is no NAME=VALUE") };
        if !is_variable(name) {
            return bad("a name has letters, digits and _, and nothing else may be before the =");
        }
        if variables.iter().any(|(known, _)| known == name) {
            return bad("its variable occurs twice");
        }
        let value = value.trim_ascii();
        let in_quotes = |quote: char| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
        let has = |text: &str, letters: &[char]| text.contains(letters);
        let value = match (in_quotes('\''), in_quotes('"')) {
            (Some(value), _) if !has(value, &['\'']) => value,
            (_, Some(value)) if !has(value, &['"', '\\', '$', '`']) => value,
            (None, None) if !has(value, &['\'', '"', '\\']) => value,
            _ => {
                return bad(
                    "put a value that contains quotes or backslashes in single quotes; it may not contain a single quote \
                     itself",
                );
            }
        };
        if value.contains(|c: char| c.is_control() && c != '\t') {
            return bad("its value has a control character");
        }
        variables.push((name.to_owned(), Zeroizing::new(value.as_bytes().to_vec())));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::FileType;

    use super::*;

    fn parsed(text: &[u8]) -> Result<Vec<(String, String)>, String> {
        let text_of = |value: Zeroizing<Vec<u8>>| String::from_utf8(value.to_vec()).expect("it is UTF-8");
        parse(text).map(|all| all.into_iter().map(|(name, value)| (name, text_of(value))).collect())
    }

    #[test]
    fn a_file_has_a_variable_in_each_line() {
        let text =
            b"# a comment\n; another\n\n A=1\nB = \r\nGITHUB_TOKEN=gh_1=2 # no comment \r\n_c='a\\b\"c'\nD=\"x y\"\nE=";
        assert!(parsed(text).is_err(), "a blank before the =");
        let text =
            b"# a comment\n; another\n\n A=1\nB= \r\nGITHUB_TOKEN=gh_1=2 # no comment \r\n_c='a\\b\"c'\nD=\"x y\"\nE=";
        let found = parsed(text).expect("it is right");
        let found: Vec<(&str, &str)> = found.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let wanted = [
            ("A", "1"),
            ("B", ""),
            ("GITHUB_TOKEN", "gh_1=2 # no comment"),
            ("_c", "a\\b\"c"),
            ("D", "x y"),
            ("E", ""),
        ];
        assert_eq!(found, wanted);
        assert_eq!(parsed(b""), Ok(Vec::new()));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused_with_its_line_and_without_its_value() {
        for text in [
            "s3cret",
            "export A=s3cret",
            "=s3cret",
            "1A=s3cret",
            "A-B=s3cret",
            "A='s3cret",
            "A=s3cret'",
            "A=\"s3\"cret\"",
            "A='s3'cret'",
            "A=s3cret\\",
            "A=s3\\cret",
            "A=\"s3$cret\"",
            "A=s3\0cret",
            "A=s3\rcret",
            "A='s3\u{1b}cret'",
            "A=s3\u{85}cret",
            "\u{feff}A=s3cret",
            "A=1\nA=s3cret",
        ] {
            let text = format!("#\n{text}");
            let why = parsed(text.as_bytes()).expect_err(&text);
            assert!(why.contains("in line ") && !why.contains("s3"), "{why}");
        }
        assert!(parsed(b"A=\xff").is_err());
    }

    #[test]
    fn names_that_lead_elsewhere_have_no_file_and_those_of_one_kind_not_that_of_another() {
        let of = |vouches, name| place(Owner { vouches, name });
        assert_eq!(of(NameAuthority::Token, "alice"), Ok(("token", "alice.env".to_owned())));
        assert_eq!(of(NameAuthority::Certificate, "alice"), Ok(("cn", "alice.env".to_owned())));
        assert_eq!(of(NameAuthority::Proxy, "a@example.com|x"), Ok(("user", "a@example.com|x.env".to_owned())));
        let long = "x".repeat(252);
        for bad in ["", ".", "..", ".alice", "../alice", "a/b", "/etc/passwd", "a\0b", "a\nb", &long] {
            assert!(of(NameAuthority::Proxy, bad).is_err(), "{bad:?}");
        }
        assert!(of(NameAuthority::Proxy, &long[1..]).is_ok());
    }

    #[test]
    fn no_link_is_followed_below_the_folder_and_only_small_regular_files_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("users/token")).expect("a folder");
        fs::create_dir_all(at("elsewhere")).expect("a folder");
        for path in ["users/token/alice.env", "elsewhere/bob.env"] {
            fs::write(at(path), "KEY=s3cret\n").expect("a file");
        }
        symlink(at("elsewhere/bob.env"), at("users/token/bob.env")).expect("a link");
        symlink(at("elsewhere"), at("users/cn")).expect("a link");
        symlink(at("users"), at("link")).expect("a link");
        fs::create_dir(at("users/token/dir.env")).expect("a folder");
        fs::write(at("users/token/large.env"), vec![b'#'; LARGEST as usize + 1]).expect("a file");
        rustix::fs::mknodat(rustix::fs::CWD, at("users/token/fifo.env"), FileType::Fifo, 0o600.into(), 0)
            .expect("a FIFO");
        let read = |kind: &str, file: &str| read(&at("users"), kind, file);
        assert_eq!(read("token", "alice.env").expect("it is there")[0].0, "KEY");
        assert!(super::read(&at("link"), "token", "alice.env").is_ok(), "the folder itself is the operator's choice");
        for (kind, file, why) in [
            ("token", "nobody.env", "does not exist"),
            ("user", "alice.env", "does not exist"),
            ("token", "bob.env", "a link"),
            ("cn", "bob.env", "a link"),
            ("token", "dir.env", "no regular file"),
            ("token", "fifo.env", "no regular file"),
            ("token", "large.env", "larger than"),
        ] {
            let message = read(kind, file).expect_err(file).to_string();
            assert!(message.contains(why), "{file}: {message}");
        }
        let none = super::read(&at("none"), "token", "alice.env").expect_err("none").to_string();
        assert!(none.contains("lies in a folder"), "{none}");
    }

    #[test]
    fn a_survey_names_the_files_that_no_client_leads_to_and_the_folders_that_cannot_be_listed() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("token")).expect("a folder");
        fs::create_dir(folder.path().join("user")).expect("a folder");
        fs::write(folder.path().join("cn"), "").expect("a file");
        for path in [
            "alice.env",
            "notes.txt",
            "token/alice.env",
            "token/.bob.env",
            "user/a,b.env",
            "user/note",
            "token/a,b.env",
        ] {
            fs::write(folder.path().join(path), "A=1\n").expect("a file");
        }
        let survey = survey(folder.path());
        let files: Vec<&str> = survey.files.iter().map(|file| &file.path[..]).collect();
        assert_eq!(files, ["token/a,b.env", "token/alice.env"]);
        let faults: Vec<(&str, &str)> = survey.faults.iter().map(|(path, why)| (&path[..], &why[..15])).collect();
        let wanted = [
            ("alice.env", "is nobody's: th"),
            ("cn", "cannot be liste"),
            ("token/.bob.env", "is nobody's: no"),
            ("user/a,b.env", "is nobody's: no"),
        ];
        assert_eq!(faults, wanted);
    }

    #[test]
    fn a_shortage_of_descriptors_is_no_fault_of_a_file() {
        let of = |code| Unread::of(io::Error::from_raw_os_error(code), ToString::to_string);
        assert!(matches!(of(libc::EMFILE), Unread::Shortage(error) if error.raw_os_error() == Some(libc::EMFILE)));
        assert!(matches!(of(libc::EACCES), Unread::Unusable(_)));
    }
}
