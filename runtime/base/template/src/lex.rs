//! Text to tokens.
//!
//! ```text
//! text {{- word .field $variable "text" `raw` 'c' 12 | ( ) := = , -}} text
//! ```
//! Comments, and the space that trim markers remove, are left out. Every token records where it begins and
//! whether space stands before it, because `.a.b` is not `.a .b`.

use std::sync::Arc;

use crate::error::TemplateProblem;
use crate::parse::Delimiters;

/// A token: the byte at which it begins, whether space stands before it, and what it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub at: usize,
    pub spaced: bool,
    pub kind: TokenKind,
}

/// The kind of a token, with its content.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TokenKind {
    Text(Arc<str>),
    Open,
    Close,
    Word(Arc<str>),
    Dot,
    Field(Arc<str>),
    Variable(Arc<str>),
    Int(i64),
    Float(f64),
    Quoted(Arc<[u8]>),
    Pipe,
    Declare,
    Assign,
    Comma,
    LeftParen,
    RightParen,
}

impl std::fmt::Display for TokenKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(_) => f.write_str("text"),
            Self::Open => f.write_str("the beginning of an action"),
            Self::Close => f.write_str("the end of the action"),
            Self::Word(word) => write!(f, "{word:?}"),
            Self::Dot => f.write_str("\".\""),
            Self::Field(name) => write!(f, "\".{name}\""),
            Self::Variable(name) => write!(f, "\"{name}\""),
            Self::Int(number) => write!(f, "\"{number}\""),
            Self::Float(number) => write!(f, "\"{number}\""),
            Self::Quoted(_) => f.write_str("a quoted text"),
            Self::Pipe => f.write_str("\"|\""),
            Self::Declare => f.write_str("\":=\""),
            Self::Assign => f.write_str("\"=\""),
            Self::Comma => f.write_str("\",\""),
            Self::LeftParen => f.write_str("\"(\""),
            Self::RightParen => f.write_str("\")\""),
        }
    }
}

/// The byte at which a mistake stands, and the mistake.
pub(crate) type Mistake = (usize, TemplateProblem);

fn mistake<T>(at: usize, text: impl Into<String>) -> Result<T, Mistake> {
    Err((at, TemplateProblem::Syntax(text.into())))
}

/// The characters that Go skips as space, and that trim markers remove.
const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

struct Lexer<'a> {
    text: &'a str,
    delimiters: &'a Delimiters,
    at: usize,
    tokens: Vec<Token>,
    /// The number of open parentheses in this action.
    parens: usize,
}

/// The tokens of a text.
pub(crate) fn tokens(text: &str, delimiters: &Delimiters) -> Result<Vec<Token>, Mistake> {
    let mut lexer = Lexer { text, delimiters, at: 0, tokens: Vec::new(), parens: 0 };
    let mut trim = false;
    while lexer.at < text.len() {
        trim = lexer.text_and_action(trim)?;
    }
    Ok(lexer.tokens)
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn push(&mut self, at: usize, spaced: bool, kind: TokenKind) {
        self.tokens.push(Token { at, spaced, kind });
    }

    /// Read the text up to the next action, and that action. Returns whether the text after it is trimmed.
    fn text_and_action(&mut self, trim: bool) -> Result<bool, Mistake> {
        let (start, rest) = (self.at, self.rest());
        let open = rest.find(self.delimiters.left());
        let mut text = rest.get(..open.unwrap_or(rest.len())).unwrap_or_default();
        self.at = start + text.len();
        let begin = self.at;
        if open.is_some() {
            self.at += self.delimiters.left().len();
            if self.trims_before() {
                self.at += 1;
                text = text.trim_end_matches(SPACE);
            }
        }
        if trim {
            text = text.trim_start_matches(SPACE);
        }
        if !text.is_empty() {
            self.push(start, false, TokenKind::Text(Arc::from(text)));
        }
        if open.is_none() {
            return Ok(false);
        }
        if self.comment_starts() {
            return self.comment(begin);
        }
        self.push(begin, false, TokenKind::Open);
        self.action(begin)
    }

    /// Whether a trim marker, `- `, follows the left delimiter.
    fn trims_before(&self) -> bool {
        let mut rest = self.rest().chars();
        rest.next() == Some('-') && rest.next().is_some_and(|c| SPACE.contains(&c))
    }

    fn comment_starts(&self) -> bool {
        let rest = self.rest();
        let trimmed = self.text.get(..self.at).is_some_and(|before| before.ends_with('-'));
        let rest = if trimmed { rest.trim_start_matches(SPACE) } else { rest };
        rest.starts_with("/*")
    }

    fn comment(&mut self, begin: usize) -> Result<bool, Mistake> {
        let Some(end) = self.rest().find("*/") else {
            return mistake(begin, "the comment has no end; write */ before the end of the action");
        };
        self.at += end + 2;
        match self.close() {
            Some((length, trim)) => {
                self.at += length;
                Ok(trim)
            }
            None => mistake(begin, "the comment ends before the end of its action"),
        }
    }

    /// The right delimiter, if it stands here: its length with the trim marker, and whether it has one.
    fn close(&self) -> Option<(usize, bool)> {
        let (rest, right) = (self.rest(), self.delimiters.right());
        if let Some(marked) = rest.strip_prefix(SPACE).and_then(|rest| rest.strip_prefix('-'))
            && marked.starts_with(right)
        {
            return Some((2 + right.len(), true));
        }
        rest.starts_with(right).then_some((right.len(), false))
    }

    /// Read the tokens up to the right delimiter.
    fn action(&mut self, begin: usize) -> Result<bool, Mistake> {
        self.parens = 0;
        let mut spaced = false;
        loop {
            if let Some((length, trim)) = self.close() {
                if self.parens > 0 {
                    return mistake(self.at, "a \"(\" of the action is not closed");
                }
                self.push(self.at, spaced, TokenKind::Close);
                self.at += length;
                return Ok(trim);
            }
            let Some(next) = self.rest().chars().next() else {
                let right = self.delimiters.right();
                return mistake(begin, format!("the action has no end; write {right}"));
            };
            if SPACE.contains(&next) {
                self.at += 1;
                spaced = true;
                continue;
            }
            self.token(next, spaced)?;
            spaced = false;
        }
    }

    fn token(&mut self, next: char, spaced: bool) -> Result<(), Mistake> {
        let at = self.at;
        let kind = match next {
            '|' => self.one(TokenKind::Pipe),
            ',' => self.one(TokenKind::Comma),
            '=' => self.one(TokenKind::Assign),
            '(' => {
                self.parens += 1;
                self.one(TokenKind::LeftParen)
            }
            ')' => {
                let Some(open) = self.parens.checked_sub(1) else {
                    return mistake(at, "a \")\" without a \"(\"");
                };
                self.parens = open;
                self.one(TokenKind::RightParen)
            }
            ':' if self.rest().starts_with(":=") => {
                self.at += 2;
                TokenKind::Declare
            }
            '"' => self.quoted_text()?,
            '`' => self.raw()?,
            '\'' => self.character()?,
            '$' => {
                self.at += 1;
                let name = self.name();
                self.ends_word(at)?;
                TokenKind::Variable(Arc::from(format!("${name}")))
            }
            '.' if !self.rest().chars().nth(1).is_some_and(|c| c.is_ascii_digit()) => {
                self.at += 1;
                let name = self.name();
                if name.is_empty() {
                    TokenKind::Dot
                } else {
                    self.ends_word(at)?;
                    TokenKind::Field(Arc::from(name))
                }
            }
            c if c.is_ascii_digit() || matches!(c, '.' | '+' | '-') => self.number()?,
            c if is_letter(c) => {
                let name = self.name();
                self.ends_word(at)?;
                TokenKind::Word(Arc::from(name))
            }
            c => return mistake(at, format!("{c:?} has no meaning here")),
        };
        self.push(at, spaced, kind);
        Ok(())
    }

    fn one(&mut self, kind: TokenKind) -> TokenKind {
        self.at += 1;
        kind
    }

    /// Read the letters and digits that follow.
    fn name(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !is_letter(c) && !c.is_numeric()).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    /// Check that the word ends here: at a place where a new token may begin.
    fn ends_word(&self, at: usize) -> Result<(), Mistake> {
        let next = self.rest().chars().next();
        let ends = next.is_none_or(|c| SPACE.contains(&c) || ".,|:=()".contains(c));
        if ends || self.close().is_some() {
            return Ok(());
        }
        mistake(at, format!("{:?} has no meaning here", next.unwrap_or_default()))
    }

    fn number(&mut self) -> Result<TokenKind, Mistake> {
        let (at, rest) = (self.at, self.rest());
        let mut before = '0';
        let end = rest.char_indices().find(|(index, c)| {
            let sign = matches!(c, '+' | '-') && (*index == 0 || matches!(before, 'e' | 'E'));
            before = *c;
            !(sign || c.is_alphanumeric() || matches!(c, '.' | '_'))
        });
        let text = rest.get(..end.map_or(rest.len(), |(index, _)| index)).unwrap_or_default();
        self.at += text.len();
        match crate::number::read(text) {
            Ok(kind) => Ok(kind),
            Err(problem) => mistake(at, problem),
        }
    }

    fn raw(&mut self) -> Result<TokenKind, Mistake> {
        let (at, rest) = (self.at, self.rest());
        let inside = rest.get(1..).unwrap_or_default();
        let Some(end) = inside.find('`') else {
            return mistake(at, "the text has no closing `");
        };
        self.at += end + 2;
        // As in Go, carriage returns are removed.
        let text = inside.get(..end).unwrap_or_default().replace('\r', "");
        Ok(TokenKind::Quoted(Arc::from(text.as_bytes())))
    }

    fn quoted_text(&mut self) -> Result<TokenKind, Mistake> {
        let at = self.at;
        self.at += 1;
        let mut text = Vec::new();
        loop {
            let Some(next) = self.rest().chars().next().filter(|c| *c != '\n') else {
                return mistake(
                    at,
                    "the text has no closing \"; a text over several lines must be in `",
                );
            };
            self.at += next.len_utf8();
            match next {
                '"' => return Ok(TokenKind::Quoted(Arc::from(text))),
                '\\' => {
                    self.escape('"', &mut text)?;
                }
                c => push_char(&mut text, c),
            }
        }
    }

    fn character(&mut self) -> Result<TokenKind, Mistake> {
        let at = self.at;
        self.at += 1;
        let wrong = || (at, TemplateProblem::Syntax("' must enclose one character".to_owned()));
        let next = self.rest().chars().next().filter(|c| !matches!(c, '\n' | '\''));
        let next = next.ok_or_else(wrong)?;
        self.at += next.len_utf8();
        let mut text = Vec::new();
        let value = match next {
            '\\' => self.escape('\'', &mut text)?,
            c => u32::from(c),
        };
        if !self.rest().starts_with('\'') {
            return Err(wrong());
        }
        self.at += 1;
        Ok(TokenKind::Int(i64::from(value)))
    }

    /// Read what follows a backslash.
    fn escape(&mut self, quote: char, text: &mut Vec<u8>) -> Result<u32, Mistake> {
        let at = self.at.saturating_sub(1);
        let next = self.rest().chars().next().unwrap_or('\n');
        self.at += next.len_utf8();
        let simple = match next {
            'a' => '\x07',
            'b' => '\x08',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\x0b',
            '\\' => '\\',
            c if c == quote => c,
            'x' => return self.byte(at, 2, 16, text),
            '0'..='7' => {
                self.at -= 1;
                return self.byte(at, 3, 8, text);
            }
            'u' => return self.unicode(at, 4, text),
            'U' => return self.unicode(at, 8, text),
            c => return mistake(at, format!("\\{} is not an escape", c.escape_default())),
        };
        push_char(text, simple);
        Ok(u32::from(simple))
    }

    fn digits(&mut self, at: usize, count: usize, radix: u32) -> Result<u32, Mistake> {
        let digits = self.rest().get(..count).unwrap_or_default();
        let plain = digits.len() == count && digits.chars().all(|c| c.is_digit(radix));
        match u32::from_str_radix(digits, radix) {
            Ok(value) if plain => {
                self.at += count;
                Ok(value)
            }
            _ => mistake(at, format!("the escape needs {count} digits")),
        }
    }

    fn byte(
        &mut self,
        at: usize,
        count: usize,
        radix: u32,
        text: &mut Vec<u8>,
    ) -> Result<u32, Mistake> {
        let value = self.digits(at, count, radix)?;
        let Ok(byte) = u8::try_from(value) else {
            return mistake(at, "the escape is larger than a byte");
        };
        text.push(byte);
        Ok(value)
    }

    fn unicode(&mut self, at: usize, count: usize, text: &mut Vec<u8>) -> Result<u32, Mistake> {
        let value = self.digits(at, count, 16)?;
        let Some(c) = char::from_u32(value) else {
            return mistake(at, "the escape is not a character");
        };
        push_char(text, c);
        Ok(value)
    }
}

fn is_letter(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}

fn push_char(text: &mut Vec<u8>, c: char) {
    text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}
