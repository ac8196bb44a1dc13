//! Regular expressions of strangers: in constraints, in functions of job files, in templates.
//!
//! ```text
//! text ─ longer than a person writes? ─► compiled within a bound ─► Pattern, or why not
//!                                          └── both have a price, and are kept in Patterns: bounded, those
//!                                              used last stay
//! ```
//! A few characters stand for tens of thousands of states, and compiling them takes milliseconds; matching takes
//! at most one step for each byte of the text and each state. So a caller that lets a stranger decide how often
//! this happens counts both in a budget. This is the only place that compiles such expressions (those of a
//! plugin's schema have a budget of their own).

use std::collections::BTreeMap;
use std::sync::Arc;

use regex_automata::meta;
use regex_automata::util::syntax;

/// The longest regular expression, in bytes.
pub const PATTERN_BYTES_MAX: usize = 4 * 1024;
/// The most memory of a compiled expression, in bytes: some milliseconds of work. `\w{10}` fits.
pub const PATTERN_MEMORY_BYTES_MAX: usize = 1024 * 1024;
/// The most memory of the expressions that one text keeps while it is read, in bytes.
pub const PATTERNS_OF_ONE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The deepest nesting of groups in an expression: each takes a part of the stack.
const PATTERN_NESTING_MAX: u32 = 100;
/// The most compiled expressions that are kept in one place, with those that could not be compiled.
const PATTERNS_KEPT_MAX: usize = 1_024;

/// Why a text is no pattern, as words that follow "it is".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The text is longer than any pattern that a person writes.
    #[error("too long a regular expression: it has {bytes} bytes; at most {PATTERN_BYTES_MAX}")]
    TooLong {
        /// The length of the text, in bytes.
        bytes: usize,
    },
    /// The pattern stands for too many states.
    #[error(
        "too large a regular expression: compiled, it has more than {PATTERN_MEMORY_BYTES_MAX} bytes; repeat \
         less, or use smaller classes: [A-Za-z] is far smaller than \\p{{L}}, [0-9] than \\d"
    )]
    TooLarge,
    /// The text does not follow the syntax; with what is wrong.
    #[error("not a regular expression: {0}")]
    Syntax(String),
}

/// The compiled pattern of a text, or why the text is none.
pub type PatternResult = Result<Arc<Pattern>, PatternError>;

/// A regular expression, ready to be used.
#[derive(Debug)]
pub struct Pattern {
    regex: meta::Regex,
    memory: usize,
}

impl Pattern {
    /// Compile a text.
    ///
    /// # Errors
    /// [`PatternError`], in words for the author of the text.
    pub fn compile(text: &str) -> Result<Self, PatternError> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(PatternError::TooLong { bytes: text.len() });
        }
        let config = meta::Config::new()
            .nfa_size_limit(Some(PATTERN_MEMORY_BYTES_MAX))
            .onepass_size_limit(Some(PATTERN_MEMORY_BYTES_MAX))
            .hybrid_cache_capacity(PATTERN_MEMORY_BYTES_MAX);
        let syntax = syntax::Config::new().nest_limit(PATTERN_NESTING_MAX);
        let built = meta::Builder::new().configure(config).syntax(syntax).build(text);
        let regex = built.map_err(|error| match error.size_limit() {
            Some(_) => PatternError::TooLarge,
            None => PatternError::Syntax(error_text(&error)),
        })?;
        let memory = regex.memory_usage();
        Ok(Self { regex, memory })
    }

    /// Whether the pattern matches anywhere in the text.
    #[must_use]
    pub fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// Call `each` for every match in the text, in order, with the text that replaces it: `to`, in which `$1`
    /// and `${name}` stand for what the groups matched. The last call has the rest of the text and no match.
    /// The first error of `each` ends the search.
    ///
    /// # Errors
    /// The error of `each`.
    pub fn replace<E>(
        &self,
        text: &str,
        to: &str,
        mut each: impl FnMut(PatternMatch<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = 0;
        for found in self.regex.captures_iter(text) {
            let Some(whole) = found.get_match() else { continue };
            let before = text.get(rest..whole.start()).unwrap_or_default();
            let becomes = |out: &mut String| found.interpolate_string_into(text, to, out);
            each(PatternMatch { before, length: whole.len(), becomes: &becomes })?;
            rest = whole.end();
        }
        let before = text.get(rest..).unwrap_or_default();
        each(PatternMatch { before, length: 0, becomes: &|_| {} })
    }

    /// The most that searching this text can cost, as bytes of a budget. For a small pattern this is the length
    /// of the text, because most searches cost no more than that.
    #[must_use]
    pub fn price_of(&self, text: &str) -> usize {
        text.len().saturating_mul(1 + self.memory / MEMORY_PER_BYTE)
    }
}

/// For each such amount of memory that a pattern takes, searching costs one byte more for each byte of the text.
const MEMORY_PER_BYTE: usize = 4 * 1024;
/// The cost of parsing one byte of a pattern: some bytes stand for a class of several hundred ranges.
const PRICE_OF_TEXT_BYTE: usize = 256;

/// A match of a pattern in a text.
pub struct PatternMatch<'a> {
    /// The text between the end of the previous match and this one.
    pub before: &'a str,
    /// The length of the matched text, in bytes.
    pub length: usize,
    /// Appends the text that replaces the match.
    pub becomes: &'a dyn Fn(&mut String),
}

/// The last line of the library's message, without the lines that point at the place.
fn error_text(error: &meta::BuildError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    let last = text.lines().last().unwrap_or_default();
    last.trim().trim_start_matches("error: ").to_owned()
}

/// A cache of the patterns that were used last, and of texts that are no patterns.
#[derive(Debug, Default)]
pub struct Patterns {
    kept: BTreeMap<String, CachedPattern>,
    /// The bytes that all entries take, estimated.
    bytes: usize,
    uses: u64,
}

#[derive(Debug)]
struct CachedPattern {
    compiled: PatternResult,
    used: u64,
}

impl CachedPattern {
    /// The bytes that the entry takes: the pattern, and the memory that a thread needs to use it.
    fn bytes(&self, text: &str) -> usize {
        let memory = self.compiled.as_ref().map_or(0, |pattern| pattern.memory);
        memory.saturating_mul(2).saturating_add(text.len()).saturating_add(256)
    }
}

impl Patterns {
    /// An empty cache.
    #[must_use]
    pub const fn new() -> Self {
        Self { kept: BTreeMap::new(), bytes: 0, uses: 0 }
    }

    /// The cached result of compiling this text, if there is one.
    pub fn get_compiled(&mut self, text: &str) -> Option<PatternResult> {
        self.uses += 1;
        let kept = self.kept.get_mut(text)?;
        kept.used = self.uses;
        Some(kept.compiled.clone())
    }

    /// Cache what a text was compiled to. While the cache holds more than `bytes_max` bytes, the entry that has
    /// been unused for the longest time is dropped.
    pub fn keep(&mut self, text: &str, compiled: &PatternResult, bytes_max: usize) {
        // A text that is too long is refused without compiling, so caching it saves nothing.
        if text.len() > PATTERN_BYTES_MAX {
            return;
        }
        self.uses += 1;
        let kept = CachedPattern { compiled: compiled.clone(), used: self.uses };
        self.bytes = self.bytes.saturating_add(kept.bytes(text));
        if let Some(before) = self.kept.insert(text.to_owned(), kept) {
            self.bytes = self.bytes.saturating_sub(before.bytes(text));
        }
        while self.bytes > bytes_max || self.kept.len() > PATTERNS_KEPT_MAX {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used);
            let Some(oldest) = oldest.map(|(text, _)| text.clone()) else { break };
            if let Some(gone) = self.kept.remove(&oldest) {
                self.bytes = self.bytes.saturating_sub(gone.bytes(&oldest));
            }
        }
    }

    /// The pattern of a text, cached or compiled now, and the cost of that as bytes of a budget. A cached pattern
    /// costs nothing.
    pub fn compile(&mut self, text: &str, bytes_max: usize) -> (PatternResult, usize) {
        if let Some(compiled) = self.get_compiled(text) {
            return (compiled, 0);
        }
        let compiled = Pattern::compile(text).map(Arc::new);
        let price = match &compiled {
            Ok(pattern) => pattern.memory,
            Err(PatternError::TooLarge) => PATTERN_MEMORY_BYTES_MAX,
            Err(PatternError::TooLong { .. } | PatternError::Syntax(_)) => 0,
        };
        let read = text.len().min(PATTERN_BYTES_MAX).saturating_mul(PRICE_OF_TEXT_BYTE);
        self.keep(text, &compiled, bytes_max);
        (compiled, price.saturating_add(read))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Five hundred classes of all letters.
    const LARGE: &str = r"\p{L}{500}";
    const KEPT: usize = 1024 * 1024;

    #[test]
    fn a_pattern_costs_what_it_takes_once() {
        let mut patterns = Patterns::new();
        let (first, price) = patterns.compile("^a+$", KEPT);
        assert!(first.unwrap().is_match("aaa"));
        assert!((1..100 * 1024).contains(&price), "{price}");
        let (again, price) = patterns.compile("^a+$", KEPT);
        assert!(again.is_ok() && price == 0);
        let (letters, dear) = patterns.compile(r"\p{L}{2}", KEPT);
        assert!(letters.is_ok() && dear > 20 * 1024, "{dear}");
    }

    #[test]
    fn what_is_too_large_has_its_price_and_is_known_the_next_time() {
        let mut patterns = Patterns::new();
        let (none, price) = patterns.compile(LARGE, KEPT);
        assert_eq!(none.unwrap_err(), PatternError::TooLarge);
        assert!(price >= PATTERN_MEMORY_BYTES_MAX);
        assert_eq!(patterns.compile(LARGE, KEPT).1, 0);
        let long = "x".repeat(PATTERN_BYTES_MAX + 1);
        assert!(matches!(patterns.compile(&long, KEPT).0, Err(PatternError::TooLong { .. })));
        let (broken, _) = patterns.compile("a(", KEPT);
        assert_eq!(broken.unwrap_err(), PatternError::Syntax("unclosed group".to_owned()));
    }

    #[test]
    fn those_that_were_not_used_for_the_longest_go_first() {
        let mut patterns = Patterns::new();
        let each = Pattern::compile("^[0-9]{9}$").unwrap().memory * 2 + 300;
        for text in ["^[0-9]{9}$", "^[1-9]{9}$", "^[0-9]{9}$", "^[2-9]{9}$"] {
            let (compiled, _) = patterns.compile(text, each * 5 / 2);
            assert!(compiled.is_ok());
        }
        assert!(patterns.get_compiled("^[0-9]{9}$").is_some());
        assert!(patterns.get_compiled("^[1-9]{9}$").is_none());
        assert!(patterns.bytes <= each * 5 / 2);
        for number in 0..2 * PATTERNS_KEPT_MAX {
            let _broken = patterns.compile(&format!("^{number}("), usize::MAX);
        }
        assert_eq!(patterns.kept.len(), PATTERNS_KEPT_MAX);
    }

    #[test]
    fn each_place_is_replaced_by_what_its_groups_found() {
        let pattern = Pattern::compile("(?P<name>[a-z]+)=([0-9]+)").unwrap();
        let mut out = String::new();
        let each = |found: PatternMatch<'_>| {
            out.push_str(found.before);
            (found.becomes)(&mut out);
            Ok::<_, ()>(())
        };
        pattern.replace("a=1, b=2;", "$2:${name}$$", each).unwrap();
        assert_eq!(out, "1:a$, 2:b$;");
    }

    #[test]
    fn a_large_pattern_is_dearer_to_use() {
        let (small, large) = (Pattern::compile("-").unwrap(), Pattern::compile(r"\w+").unwrap());
        assert_eq!(small.price_of("a-b-c"), 5);
        assert!(large.price_of("a-b-c") > 5);
    }
}
