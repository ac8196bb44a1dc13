//! Tokens to a template.
//!
//! ```text
//! {{ pipe }}   {{ if pipe }} … {{ else if pipe }} … {{ else }} … {{ end }}   {{ with pipe }} … {{ end }}
//! {{ range $i, $e := pipe }} … {{ break }} {{ continue }} … {{ else }} … {{ end }}
//! {{ define "name" }} … {{ end }}   {{ template "name" pipe }}   {{ block "name" pipe }} … {{ end }}
//! pipe: $x := command | command …   command: operand operand …   operand: (pipe).field.field
//! ```
//! Unknown functions and variables are reported here, before anything is rendered.

#[path = "parse_command.rs"]
mod command;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::limits::{TEMPLATE_BYTES_MAX, TEMPLATE_NESTING_MAX};

use crate::error::{TemplateError, TemplateProblem, wide};
use crate::lex::{self, Mistake, Token, TokenKind};
use crate::tree::{Branch, NodeKind, TemplateNode};

/// The texts that stand before and after each action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delimiters {
    left: String,
    right: String,
}

impl Default for Delimiters {
    fn default() -> Self {
        Self { left: "{{".to_owned(), right: "}}".to_owned() }
    }
}

impl Delimiters {
    /// Delimiters of these texts; an empty text stands for the usual one.
    #[must_use]
    pub fn new(left: &str, right: &str) -> Self {
        let or = |text: &str, usual: &str| if text.is_empty() { usual } else { text }.to_owned();
        Self { left: or(left, "{{"), right: or(right, "}}") }
    }

    /// The text that stands before an action.
    #[must_use]
    pub fn left(&self) -> &str {
        &self.left
    }

    /// The text that stands after an action.
    #[must_use]
    pub fn right(&self) -> &str {
        &self.right
    }
}

/// A template, ready to be rendered.
#[derive(Debug)]
pub struct Template {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) root: Vec<TemplateNode>,
    pub(crate) defined: BTreeMap<Arc<str>, Vec<TemplateNode>>,
}

impl Template {
    /// Parse a template; `name` is its name in errors.
    ///
    /// # Errors
    /// The first mistake, with its place.
    pub fn parse(name: &str, text: &str, delimiters: &Delimiters) -> Result<Self, TemplateError> {
        let told = |(at, problem): Mistake| TemplateError::from_offset(name, text, at, problem);
        if text.len() > TEMPLATE_BYTES_MAX {
            let max = wide(TEMPLATE_BYTES_MAX);
            return Err(told((0, TemplateProblem::Limit { what: "has", max, unit: "bytes" })));
        }
        let tokens = lex::tokens(text, delimiters).map_err(told)?;
        let mut parser = Parser {
            tokens,
            next: 0,
            end: text.len(),
            defined: BTreeMap::new(),
            variables: vec![Arc::from("$")],
            depth: 0,
            loops: 0,
        };
        let root = parser.whole().map_err(told)?;
        let defined = parser.defined;
        Ok(Self { name: name.to_owned(), text: text.to_owned(), root, defined })
    }

    /// The name of the template in errors.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What ends a list of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListEnd {
    End,
    Else,
    Text,
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
    /// The byte at which the text ends.
    end: usize,
    defined: BTreeMap<Arc<str>, Vec<TemplateNode>>,
    /// The variables in sight, the innermost one last.
    variables: Vec<Arc<str>>,
    depth: usize,
    /// The number of loops around the present place.
    loops: usize,
}

fn mistake<T>(at: usize, text: impl Into<String>) -> Result<T, Mistake> {
    Err((at, TemplateProblem::Syntax(text.into())))
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    fn kind(&self) -> Option<&TokenKind> {
        self.peek().map(|token| &token.kind)
    }

    fn current_offset(&self) -> usize {
        self.peek().map_or(self.end, |token| token.at)
    }

    fn word(&self, ahead: usize) -> Option<&str> {
        match self.tokens.get(self.next + ahead).map(|token| &token.kind) {
            Some(TokenKind::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn take(&mut self, wanted: &TokenKind) -> bool {
        let is = self.kind() == Some(wanted);
        if is {
            self.next += 1;
        }
        is
    }

    /// The mistake that the next token may not stand here.
    fn unexpected_error<T>(&self, context: &str) -> Result<T, Mistake> {
        match self.peek() {
            Some(token) => mistake(token.at, format!("{} is not allowed {context}", token.kind)),
            None => mistake(self.end, format!("the template ends {context}")),
        }
    }

    fn close(&mut self, context: &str) -> Result<(), Mistake> {
        if self.take(&TokenKind::Close) { Ok(()) } else { self.unexpected_error(context) }
    }

    fn enter_level(&mut self) -> Result<(), Mistake> {
        self.depth += 1;
        if self.depth > TEMPLATE_NESTING_MAX {
            let max = wide(TEMPLATE_NESTING_MAX);
            return Err((
                self.current_offset(),
                TemplateProblem::Limit { what: "nests", max, unit: "levels" },
            ));
        }
        Ok(())
    }

    fn whole(&mut self) -> Result<Vec<TemplateNode>, Mistake> {
        let (root, ends) = self.list(true)?;
        let at = self.current_offset();
        match ends {
            ListEnd::Text => Ok(root),
            ListEnd::End => mistake(at, "an end without an if, with, range, define or block"),
            ListEnd::Else => mistake(at, "an else without an if, with or range"),
        }
    }

    /// Read parts up to an `end` or `else`. That word is the next token then.
    fn list(&mut self, top: bool) -> Result<(Vec<TemplateNode>, ListEnd), Mistake> {
        let mut nodes = Vec::new();
        while let Some(token) = self.peek().cloned() {
            self.next += 1;
            let kind = match token.kind {
                TokenKind::Text(text) => NodeKind::Text(text),
                TokenKind::Open => match self.word(0) {
                    Some("end") => return Ok((nodes, ListEnd::End)),
                    Some("else") => return Ok((nodes, ListEnd::Else)),
                    Some("define") if top => {
                        self.define()?;
                        continue;
                    }
                    _ => self.action(token.at)?,
                },
                _ => {
                    self.next -= 1;
                    return self.unexpected_error("here");
                }
            };
            nodes.push(TemplateNode { at: token.at, kind });
        }
        Ok((nodes, ListEnd::Text))
    }

    fn action(&mut self, at: usize) -> Result<NodeKind, Mistake> {
        let Some(word) = self.word(0).map(str::to_owned) else {
            return self.plain();
        };
        let first = self.current_offset();
        match word.as_str() {
            "if" | "with" | "range" => {
                self.next += 1;
                let ranges = word == "range";
                let branch = self.branch(at, &word)?;
                Ok(match word.as_str() {
                    "if" => NodeKind::If(branch),
                    "with" => NodeKind::With(branch),
                    _ if ranges => NodeKind::Range(branch),
                    _ => return self.unexpected_error("here"),
                })
            }
            "template" => {
                self.next += 1;
                self.call("template")
            }
            "block" => self.block(at),
            "define" => mistake(first, "a define stands by itself, not inside of another block"),
            "break" | "continue" if self.only_word() => {
                self.next += 2;
                if self.loops == 0 {
                    return mistake(first, format!("a {word} outside of a range"));
                }
                Ok(if word == "break" { NodeKind::Break } else { NodeKind::Continue })
            }
            _ => self.plain(),
        }
    }

    fn only_word(&self) -> bool {
        self.tokens.get(self.next + 1).is_some_and(|token| token.kind == TokenKind::Close)
    }

    fn plain(&mut self) -> Result<NodeKind, Mistake> {
        let pipe = self.pipe("an action", false)?;
        self.close("in an action")?;
        Ok(NodeKind::Action(pipe))
    }

    /// Read an `if`, `with` or `range` from behind its word up to its end.
    fn branch(&mut self, at: usize, word: &str) -> Result<Branch, Mistake> {
        self.enter_level()?;
        let (seen, ranges) = (self.variables.len(), word == "range");
        let pipe = self.pipe(word, ranges)?;
        self.close("here")?;
        self.loops += usize::from(ranges);
        let (body, ends) = self.list(false)?;
        self.loops -= usize::from(ranges);
        let otherwise = match ends {
            ListEnd::Else => self.else_branch(at, word)?,
            ListEnd::End => {
                self.end_of(at, word)?;
                Vec::new()
            }
            ListEnd::Text => return unended_error(at, word),
        };
        self.variables.truncate(seen);
        self.depth -= 1;
        Ok(Branch { pipe, body, otherwise })
    }

    /// Read the parts from the word `else` up to the end.
    fn else_branch(&mut self, at: usize, word: &str) -> Result<Vec<TemplateNode>, Mistake> {
        self.next += 1;
        let here = self.current_offset();
        let again =
            self.word(0).filter(|next| *next == word && *next != "range").map(str::to_owned);
        if let Some(word) = again {
            // An `else if` shares the end of the whole.
            self.next += 1;
            let branch = self.branch(here, &word)?;
            let kind = if word == "if" { NodeKind::If(branch) } else { NodeKind::With(branch) };
            return Ok(vec![TemplateNode { at: here, kind }]);
        }
        self.close("behind else")?;
        let (nodes, ends) = self.list(false)?;
        match ends {
            ListEnd::End => self.end_of(at, word)?,
            ListEnd::Else => return mistake(self.current_offset(), "a second else"),
            ListEnd::Text => return unended_error(at, word),
        }
        Ok(nodes)
    }

    /// Read the word `end` and the end of its action.
    fn end_of(&mut self, at: usize, word: &str) -> Result<(), Mistake> {
        if self.word(0) != Some("end") {
            return unended_error(at, word);
        }
        self.next += 1;
        self.close("behind end")
    }

    fn define(&mut self) -> Result<(), Mistake> {
        let at = self.current_offset();
        self.next += 1;
        let name = self.name("define")?;
        self.close("after the name of a define")?;
        let nodes = self.body(at, "define")?;
        self.add_definition(at, name, nodes)
    }

    /// Read the body of a definition. It sees no variable but `$`, and is in no loop.
    fn body(&mut self, at: usize, word: &str) -> Result<Vec<TemplateNode>, Mistake> {
        self.enter_level()?;
        let outer = std::mem::replace(&mut self.variables, vec![Arc::from("$")]);
        let loops = std::mem::take(&mut self.loops);
        let (nodes, ends) = self.list(false)?;
        if ends != ListEnd::End {
            return match ends {
                ListEnd::Else => mistake(self.current_offset(), format!("an else in a {word}")),
                _ => unended_error(at, word),
            };
        }
        self.end_of(at, word)?;
        (self.variables, self.loops) = (outer, loops);
        self.depth -= 1;
        Ok(nodes)
    }

    fn add_definition(
        &mut self,
        at: usize,
        name: Arc<str>,
        nodes: Vec<TemplateNode>,
    ) -> Result<(), Mistake> {
        let empty = |nodes: &[TemplateNode]| {
            nodes.iter().all(|node| match &node.kind {
                NodeKind::Text(text) => text.trim().is_empty(),
                _ => false,
            })
        };
        // As in Go, an empty definition replaces no other one, and any other one replaces it.
        match self.defined.get(&name) {
            Some(_) if empty(&nodes) => Ok(()),
            Some(known) if !empty(known) => {
                mistake(at, format!("template {name:?} is defined twice"))
            }
            _ => {
                self.defined.insert(name, nodes);
                Ok(())
            }
        }
    }

    fn name(&mut self, word: &str) -> Result<Arc<str>, Mistake> {
        let Some(TokenKind::Quoted(name)) = self.kind().cloned() else {
            return self.unexpected_error(&format!("after {word}, where a name in quotes belongs"));
        };
        let Ok(name) = std::str::from_utf8(&name).map(Arc::from) else {
            return mistake(self.current_offset(), "the name is not UTF-8");
        };
        self.next += 1;
        Ok(name)
    }

    /// Read the name and the argument of a call.
    fn call(&mut self, word: &str) -> Result<NodeKind, Mistake> {
        let name = self.name(word)?;
        let argument = match self.kind() {
            Some(TokenKind::Close) => None,
            _ => Some(self.pipe(word, false)?),
        };
        self.close("here")?;
        Ok(NodeKind::Call { name, argument })
    }

    /// Read a `block`, which is a definition and its call in one.
    fn block(&mut self, at: usize) -> Result<NodeKind, Mistake> {
        self.next += 1;
        let name = self.name("block")?;
        let argument = self.pipe("block", false)?;
        self.close("here")?;
        let nodes = self.body(at, "block")?;
        self.add_definition(at, Arc::clone(&name), nodes)?;
        Ok(NodeKind::Call { name, argument: Some(argument) })
    }
}

fn unended_error<T>(at: usize, word: &str) -> Result<T, Mistake> {
    mistake(at, format!("the {word} that begins here has no end"))
}
