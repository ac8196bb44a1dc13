//! Tokens to a template.
//!
//! ```text
//! {{ pipe }}   {{ if pipe }} … {{ else if pipe }} … {{ else }} … {{ end }}   {{ with pipe }} … {{ end }}
//! {{ range $i, $e := pipe }} … {{ break }} {{ continue }} … {{ else }} … {{ end }}
//! {{ define "name" }} … {{ end }}   {{ template "name" pipe }}   {{ block "name" pipe }} … {{ end }}
//! pipe: $x := command | command …   command: operand operand …   operand: (pipe).field.field
//! ```
//! Unknown functions and variables are found here, before anything is rendered.

#[path = "parse_command.rs"]
mod command;

use std::collections::BTreeMap;
use std::sync::Arc;

use ostler_model::limits::{TEMPLATE_BYTES_MAX, TEMPLATE_NESTING_MAX};

use crate::error::{TemplateError, TemplateProblem, wide};
use crate::lex::{self, Mistake, Token, TokenKind};
use crate::tree::{Branch, Node, NodeKind};

/// What stands around actions.
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
    /// These; an empty one is the usual one.
    #[must_use]
    pub fn new(left: &str, right: &str) -> Self {
        let or = |text: &str, usual: &str| if text.is_empty() { usual } else { text }.to_owned();
        Self { left: or(left, "{{"), right: or(right, "}}") }
    }

    /// Before an action.
    #[must_use]
    pub fn left(&self) -> &str {
        &self.left
    }

    /// Behind an action.
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
    pub(crate) root: Vec<Node>,
    pub(crate) defined: BTreeMap<Arc<str>, Vec<Node>>,
}

impl Template {
    /// Read a template; `name` is what errors call it.
    ///
    /// # Errors
    /// The first mistake, with its place.
    pub fn parse(name: &str, text: &str, delimiters: &Delimiters) -> Result<Self, TemplateError> {
        let told = |(at, problem): Mistake| TemplateError::at(name, text, at, problem);
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

    /// What errors call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What ends a list of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    End,
    Else,
    Text,
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
    /// Where the text ends.
    end: usize,
    defined: BTreeMap<Arc<str>, Vec<Node>>,
    /// Those in sight, the innermost last.
    variables: Vec<Arc<str>>,
    depth: usize,
    /// Loops around here.
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

    fn here(&self) -> usize {
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

    /// What stands here is not what may stand here.
    fn unexpected<T>(&self, context: &str) -> Result<T, Mistake> {
        match self.peek() {
            Some(token) => mistake(token.at, format!("{} cannot stand {context}", token.kind)),
            None => mistake(self.end, format!("the template ends {context}")),
        }
    }

    fn close(&mut self, context: &str) -> Result<(), Mistake> {
        if self.take(&TokenKind::Close) { Ok(()) } else { self.unexpected(context) }
    }

    fn deeper(&mut self) -> Result<(), Mistake> {
        self.depth += 1;
        if self.depth > TEMPLATE_NESTING_MAX {
            let max = wide(TEMPLATE_NESTING_MAX);
            return Err((
                self.here(),
                TemplateProblem::Limit { what: "nests", max, unit: "levels" },
            ));
        }
        Ok(())
    }

    fn whole(&mut self) -> Result<Vec<Node>, Mistake> {
        let (root, ends) = self.list(true)?;
        let at = self.here();
        match ends {
            Ends::Text => Ok(root),
            Ends::End => mistake(at, "an end without an if, with, range, define or block"),
            Ends::Else => mistake(at, "an else without an if, with or range"),
        }
    }

    /// Parts up to an `end` or `else`, whose word is the next token then.
    fn list(&mut self, top: bool) -> Result<(Vec<Node>, Ends), Mistake> {
        let mut nodes = Vec::new();
        while let Some(token) = self.peek().cloned() {
            self.next += 1;
            let kind = match token.kind {
                TokenKind::Text(text) => NodeKind::Text(text),
                TokenKind::Open => match self.word(0) {
                    Some("end") => return Ok((nodes, Ends::End)),
                    Some("else") => return Ok((nodes, Ends::Else)),
                    Some("define") if top => {
                        self.define()?;
                        continue;
                    }
                    _ => self.action(token.at)?,
                },
                _ => {
                    self.next -= 1;
                    return self.unexpected("here");
                }
            };
            nodes.push(Node { at: token.at, kind });
        }
        Ok((nodes, Ends::Text))
    }

    fn action(&mut self, at: usize) -> Result<NodeKind, Mistake> {
        let Some(word) = self.word(0).map(str::to_owned) else {
            return self.plain();
        };
        let first = self.here();
        match word.as_str() {
            "if" | "with" | "range" => {
                self.next += 1;
                let ranges = word == "range";
                let branch = self.branch(at, &word)?;
                Ok(match word.as_str() {
                    "if" => NodeKind::If(branch),
                    "with" => NodeKind::With(branch),
                    _ if ranges => NodeKind::Range(branch),
                    _ => return self.unexpected("here"),
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

    /// `if`, `with`, `range` behind their word, up to their end.
    fn branch(&mut self, at: usize, word: &str) -> Result<Branch, Mistake> {
        self.deeper()?;
        let (seen, ranges) = (self.variables.len(), word == "range");
        let pipe = self.pipe(word, ranges)?;
        self.close("here")?;
        self.loops += usize::from(ranges);
        let (body, ends) = self.list(false)?;
        self.loops -= usize::from(ranges);
        let otherwise = match ends {
            Ends::Else => self.otherwise(at, word)?,
            Ends::End => {
                self.end_of(at, word)?;
                Vec::new()
            }
            Ends::Text => return unended(at, word),
        };
        self.variables.truncate(seen);
        self.depth -= 1;
        Ok(Branch { pipe, body, otherwise })
    }

    /// From the word `else` on.
    fn otherwise(&mut self, at: usize, word: &str) -> Result<Vec<Node>, Mistake> {
        self.next += 1;
        let here = self.here();
        let again =
            self.word(0).filter(|next| *next == word && *next != "range").map(str::to_owned);
        if let Some(word) = again {
            // `else if`: its end is that of the whole.
            self.next += 1;
            let branch = self.branch(here, &word)?;
            let kind = if word == "if" { NodeKind::If(branch) } else { NodeKind::With(branch) };
            return Ok(vec![Node { at: here, kind }]);
        }
        self.close("behind else")?;
        let (nodes, ends) = self.list(false)?;
        match ends {
            Ends::End => self.end_of(at, word)?,
            Ends::Else => return mistake(self.here(), "a second else"),
            Ends::Text => return unended(at, word),
        }
        Ok(nodes)
    }

    /// The word `end` and the end of its action.
    fn end_of(&mut self, at: usize, word: &str) -> Result<(), Mistake> {
        if self.word(0) != Some("end") {
            return unended(at, word);
        }
        self.next += 1;
        self.close("behind end")
    }

    fn define(&mut self) -> Result<(), Mistake> {
        let at = self.here();
        self.next += 1;
        let name = self.name("define")?;
        self.close("behind the name of a define")?;
        let nodes = self.body(at, "define")?;
        self.defines(at, name, nodes)
    }

    /// What is defined sees no variables but `$`, and is in no loop.
    fn body(&mut self, at: usize, word: &str) -> Result<Vec<Node>, Mistake> {
        self.deeper()?;
        let outer = std::mem::replace(&mut self.variables, vec![Arc::from("$")]);
        let loops = std::mem::take(&mut self.loops);
        let (nodes, ends) = self.list(false)?;
        if ends != Ends::End {
            return match ends {
                Ends::Else => mistake(self.here(), format!("an else in a {word}")),
                _ => unended(at, word),
            };
        }
        self.end_of(at, word)?;
        (self.variables, self.loops) = (outer, loops);
        self.depth -= 1;
        Ok(nodes)
    }

    fn defines(&mut self, at: usize, name: Arc<str>, nodes: Vec<Node>) -> Result<(), Mistake> {
        let empty = |nodes: &[Node]| {
            nodes.iter().all(|node| match &node.kind {
                NodeKind::Text(text) => text.trim().is_empty(),
                _ => false,
            })
        };
        // As in Go: what is empty does not replace, and is replaced.
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
            return self.unexpected(&format!("behind {word}, where a name in quotes stands"));
        };
        let Ok(name) = std::str::from_utf8(&name).map(Arc::from) else {
            return mistake(self.here(), "the name is not UTF-8");
        };
        self.next += 1;
        Ok(name)
    }

    /// The name and the argument of a call.
    fn call(&mut self, word: &str) -> Result<NodeKind, Mistake> {
        let name = self.name(word)?;
        let argument = match self.kind() {
            Some(TokenKind::Close) => None,
            _ => Some(self.pipe(word, false)?),
        };
        self.close("here")?;
        Ok(NodeKind::Call { name, argument })
    }

    /// A definition and its call in one.
    fn block(&mut self, at: usize) -> Result<NodeKind, Mistake> {
        self.next += 1;
        let name = self.name("block")?;
        let argument = self.pipe("block", false)?;
        self.close("here")?;
        let nodes = self.body(at, "block")?;
        self.defines(at, Arc::clone(&name), nodes)?;
        Ok(NodeKind::Call { name, argument: Some(argument) })
    }
}

fn unended<T>(at: usize, word: &str) -> Result<T, Mistake> {
    mistake(at, format!("the {word} that begins here has no end"))
}
