//! Tree → [`Job`]: every block is checked against its table ([`super::schema`]), then its values
//! are taken out one by one with their type. Nothing stops at the first problem: a value that
//! cannot be used is reported and counts as not given.

mod agent;
mod constraint;
mod form;
mod free;
mod grants;
mod group;
mod health;
mod job;
mod reader;
mod resources;
mod restart;
mod service;
mod task;
mod trust;

pub use agent::agent_config;
pub(super) use job::job;
use reader::Reader;
pub use trust::parse_trust_file;

use super::Format;
use super::diagnostic::{Sink, Span, shown};
use super::places::ConfigPlaces;

/// Where problems go and how values are written.
pub(super) struct Context<'a> {
    pub sink: &'a mut Sink,
    pub format: Format,
    /// Where the `config` of tasks stands.
    pub places: ConfigPlaces,
}

impl<'a> Context<'a> {
    pub(super) fn new(sink: &'a mut Sink, format: Format) -> Self {
        Self { sink, format, places: ConfigPlaces::default() }
    }
}

impl Context<'_> {
    fn error(&mut self, at: Span, message: impl Into<String>) {
        self.sink.error(at, message);
    }

    /// The name in the syntax of the file.
    fn name(&self, hcl: &'static str, json: &'static str) -> &'static str {
        match self.format {
            Format::Hcl => hcl,
            Format::Json => json,
        }
    }

    /// One of a closed list of words; anything else is reported.
    fn choice<T: Copy>(
        &mut self,
        what: &str,
        given: Option<(String, Span)>,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        let (text, at) = given?;
        if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text) {
            return Some(*choice);
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let instead = self.sink.nearest(&text, names.iter().copied());
        let message = format!("{} is no {what}; valid are {}", shown(&text), names.join(", "));
        self.sink.suggest(at, message, instead);
        None
    }
}
