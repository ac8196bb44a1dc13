//! The table as `commands.txt` has it; how it is written stands at its beginning.

use std::path::PathBuf;

/// A command, and what it does.
#[derive(Debug)]
pub struct Row {
    pub command: String,
    pub mode: Mode,
    /// What the command reads.
    pub input: String,
    /// Another command, run while this one is followed.
    pub meanwhile: Option<String>,
    pub wanted: Wanted,
    pub differs: Option<Differs>,
}

/// How often it is run, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Once,
    /// Again until it says everything.
    Again,
    /// It does not end by itself.
    Followed,
}

/// How a command ends, and what it says.
#[derive(Debug, Default)]
pub struct Wanted {
    pub code: i32,
    pub says: Vec<String>,
}

/// What ours does otherwise.
#[derive(Debug)]
pub struct Differs {
    pub reason: String,
    pub ours: Wanted,
}

/// Where the table lies, and the files that its commands are about.
pub fn files() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/stock_table")
}

/// All rows, in order.
pub fn table() -> Vec<Row> {
    let mut rows = Vec::new();
    let text = std::fs::read_to_string(files().join("commands.txt")).unwrap();
    for line in text.lines() {
        let begin = line.split_once(' ').map(|(mark, command)| (mark, command.to_owned()));
        match begin {
            Some(("$", command)) => rows.push(row(command, Mode::Once)),
            Some(("$?", command)) => rows.push(row(command, Mode::Again)),
            Some(("$>", command)) => rows.push(row(command, Mode::Followed)),
            Some(("", said)) => rows.last_mut().expect("a command before it").says(&said[1..]),
            _ => assert!(line.is_empty() || line.starts_with('#'), "not of a table: {line}"),
        }
    }
    rows
}

fn row(command: String, mode: Mode) -> Row {
    let (input, wanted) = (String::new(), Wanted::default());
    Row { command, mode, input, meanwhile: None, wanted, differs: None }
}

impl Row {
    fn says(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("input", text)) => text.clone_into(&mut self.input),
            Some(("meanwhile", command)) => self.meanwhile = Some(command.to_owned()),
            Some(("differs", reason)) => {
                self.differs = Some(Differs { reason: reason.to_owned(), ours: Wanted::default() });
            }
            Some(("ours", rest)) => self.differs.as_mut().expect("a reason").ours.takes(rest),
            _ => self.wanted.takes(line),
        }
    }
}

impl Wanted {
    fn takes(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("exit", code)) => self.code = code.parse().expect("an exit code"),
            Some(("says", text)) => self.says.push(text.to_owned()),
            _ => panic!("not of a row: {line}"),
        }
    }
}
