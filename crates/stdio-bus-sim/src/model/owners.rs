//! Who has used which name of a request unchanged at one answerer: nobody else may.

use crate::line::{Party, meaning};

/// How many numbers one that counts owns beyond the last one, and how far apart its numbers are at most.
const AHEAD: u64 = 1 << 16;

/// The names that one answerer was sent.
#[derive(Default)]
pub(super) struct Owners {
    numbers: Vec<(u64, u64, Party)>,
    /// Strings, and negative numbers, without the digits at their end.
    stems: Vec<(String, Party)>,
}

impl Owners {
    /// Whether `asker` may use a name that every parser reads alike, which it owns from then on.
    pub(super) fn may_use(&mut self, asker: Party, token: &str) -> bool {
        let meant = if token.starts_with('"') { meaning(token) } else { token.to_owned() };
        let text = meant.trim_matches('"');
        let stem = text.trim_end_matches(|letter: char| letter.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(number) if stem.is_empty() && text.len() <= 18 => self.may_use_number(asker, number),
            _ => match self.stems.iter().find(|(known, _)| known == stem) {
                Some((_, owner)) => *owner == asker,
                None => {
                    self.stems.push((stem.to_owned(), asker));
                    true
                }
            },
        }
    }

    fn may_use_number(&mut self, asker: Party, number: u64) -> bool {
        if let Some((_, _, owner)) = self.numbers.iter().find(|(first, last, _)| (*first..=*last).contains(&number)) {
            return *owner == asker;
        }
        let next = self.numbers.iter().map(|(first, _, _)| *first).filter(|first| *first > number).min();
        let below = self.numbers.iter_mut().filter(|(_, last, _)| *last < number).max_by_key(|(_, last, _)| *last);
        match below.filter(|(_, last, owner)| *owner == asker && number - *last <= AHEAD) {
            Some((_, last, _)) => *last = next.map_or(number + AHEAD, |next| (next - 1).min(number + AHEAD)),
            None => self.numbers.push((number, number, asker)),
        }
        true
    }
}
