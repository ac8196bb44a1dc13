//! What the server holds, and its answer to a line.

use std::collections::BTreeMap;

const KEYS_MAX: usize = 10_000;

/// Keys and their texts.
#[derive(Default)]
pub struct Store(BTreeMap<String, String>);

/// Answer to one line.
pub struct Answer {
    /// Without the line end.
    pub text: String,
    /// Close the connection after it.
    pub quit: bool,
}

impl Store {
    /// Obey one command.
    pub fn answer(&mut self, line: &str) -> Answer {
        let line = line.trim_end_matches(['\r', '\n']);
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let text = match (command, rest) {
            ("PING", "") => "PONG".to_owned(),
            ("GET", key) if is_key(key) => match self.0.get(key) {
                Some(text) => format!("VALUE {text}"),
                None => "NONE".to_owned(),
            },
            ("SET", rest) => match rest.split_once(' ') {
                Some((key, text)) if is_key(key) => self.set(key, text),
                _ => "ERROR expected: SET key text".to_owned(),
            },
            ("DEL", key) if is_key(key) => match self.0.remove(key) {
                Some(_) => "OK".to_owned(),
                None => "NONE".to_owned(),
            },
            ("QUIT", "") => {
                return Answer { text: "BYE".to_owned(), quit: true };
            }
            _ => "ERROR expected: PING, SET key text, GET key, DEL key or QUIT".to_owned(),
        };
        Answer { text, quit: false }
    }

    fn set(&mut self, key: &str, text: &str) -> String {
        if self.0.len() >= KEYS_MAX && !self.0.contains_key(key) {
            return "ERROR full".to_owned();
        }
        self.0.insert(key.to_owned(), text.to_owned());
        "OK".to_owned()
    }
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && !text.contains(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(lines: &[&str]) -> Vec<String> {
        let mut store = Store::default();
        lines.iter().map(|line| store.answer(line).text).collect()
    }

    #[test]
    fn what_was_set_is_got_until_it_is_deleted() {
        let lines = ["SET a one two\r\n", "GET a\n", "DEL a\n", "GET a\n", "DEL a\n"];
        assert_eq!(answers(&lines), ["OK", "VALUE one two", "OK", "NONE", "NONE"]);
    }

    #[test]
    fn nonsense_is_an_error_and_changes_nothing() {
        for line in ["", "GET", "SET a", "PING x", "FLY", "GET a b", "SET  x"] {
            let mut store = Store::default();
            assert!(store.answer(line).text.starts_with("ERROR"), "{line:?}");
            assert!(store.0.is_empty());
        }
    }

    #[test]
    fn a_full_store_takes_no_new_key_but_changes_old_ones() {
        let mut store = Store::default();
        for key in 0..KEYS_MAX {
            store.answer(&format!("SET {key} x"));
        }
        assert_eq!(store.answer("SET new x").text, "ERROR full");
        assert_eq!(store.answer("SET 0 y").text, "OK");
    }
}
