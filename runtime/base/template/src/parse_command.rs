//! Parses pipes, commands and their words.

use std::sync::Arc;

use crate::error::TemplateProblem;
use crate::functions::{self, FunctionLookup};
use crate::lex::{Mistake, TokenKind};
use crate::tree::{Operand, OperandKind, Pipe, PipeCommand};

use super::{Parser, mistake};

impl Parser {
    /// Read `$x := command | command`, up to a token that cannot belong to it.
    pub(super) fn pipe(&mut self, context: &str, ranges: bool) -> Result<Pipe, Mistake> {
        let at = self.current_offset();
        let (variables, assigns) = self.declarations(ranges)?;
        let mut commands = vec![self.command(context)?];
        while self.take(&TokenKind::Pipe) {
            let at = self.current_offset();
            let command = self.command(context)?;
            if !takes_more(&command) {
                return mistake(at, "what follows a | must be a function");
            }
            commands.push(command);
        }
        if let [PipeCommand { first, arguments }] = commands.as_slice()
            && matches!(first.kind, OperandKind::Nil)
            && arguments.is_empty()
        {
            return mistake(at, "nil alone is not a value");
        }
        // The variables are in sight after the pipe, not inside of it.
        if !assigns {
            self.variables.extend(variables.iter().cloned());
        }
        Ok(Pipe { variables, assigns, commands })
    }

    /// Read the variables of a pipe: `$x :=`, `$x =` or `$i, $e :=`.
    fn declarations(&mut self, ranges: bool) -> Result<(Vec<Arc<str>>, bool), Mistake> {
        let (begin, at) = (self.next, self.current_offset());
        let mut variables = Vec::new();
        while let Some(TokenKind::Variable(name)) = self.kind().cloned() {
            self.next += 1;
            variables.push(name);
            match self.kind() {
                Some(TokenKind::Declare | TokenKind::Assign) => {
                    let assigns = self.take(&TokenKind::Assign) || !self.take(&TokenKind::Declare);
                    self.check_variables(at, &variables, assigns)?;
                    return Ok((variables, assigns));
                }
                Some(TokenKind::Comma) if !ranges || variables.len() == 2 => {
                    return mistake(self.current_offset(), "too many variables");
                }
                Some(TokenKind::Comma) => self.next += 1,
                _ => break,
            }
        }
        if variables.len() > 1
            || matches!(self.tokens.get(self.next.wrapping_sub(1)), Some(token) if token.kind == TokenKind::Comma)
        {
            return self.unexpected_error("after the variables, where := belongs");
        }
        self.next = begin;
        Ok((Vec::new(), false))
    }

    fn check_variables(
        &self,
        at: usize,
        variables: &[Arc<str>],
        assigns: bool,
    ) -> Result<(), Mistake> {
        for name in variables {
            if name.as_ref() == "$" {
                return mistake(at, "$ alone cannot be set; give the variable a name");
            }
            if assigns && !self.variables.contains(name) {
                return mistake(at, format!("variable {name} is not known here; write {name} :="));
            }
        }
        Ok(())
    }

    fn command(&mut self, context: &str) -> Result<PipeCommand, Mistake> {
        let Some(first) = self.operand()? else {
            return match self.kind() {
                Some(TokenKind::Close) | None => {
                    mistake(self.current_offset(), format!("{context} lacks a value"))
                }
                _ => self.unexpected_error("where a value belongs"),
            };
        };
        let mut arguments = Vec::new();
        while self.peek().is_some_and(|token| token.spaced) {
            let Some(argument) = self.operand()? else { break };
            arguments.push(argument);
        }
        let ends = matches!(
            self.kind(),
            None | Some(TokenKind::Close | TokenKind::RightParen | TokenKind::Pipe)
        );
        if !ends {
            return self.unexpected_error("directly after a value");
        }
        Ok(PipeCommand { first, arguments })
    }

    /// Read a word with its fields; `None` means that no word begins here.
    fn operand(&mut self) -> Result<Option<Operand>, Mistake> {
        let Some(token) = self.peek().cloned() else { return Ok(None) };
        let at = token.at;
        self.next += 1;
        let mut fields = Vec::new();
        let kind = match token.kind {
            TokenKind::Dot => OperandKind::Dot,
            TokenKind::Field(name) => {
                fields.push(name);
                OperandKind::Dot
            }
            TokenKind::Variable(name) if self.variables.contains(&name) => {
                OperandKind::Variable(name)
            }
            TokenKind::Variable(name) => {
                return mistake(at, format!("variable {name} is not known here"));
            }
            TokenKind::Int(number) => OperandKind::Int(number),
            TokenKind::Float(number) => OperandKind::Float(number),
            TokenKind::Quoted(text) => OperandKind::Text(text),
            TokenKind::Word(word) => self.word_operand(at, word)?,
            TokenKind::LeftParen => {
                self.enter_level()?;
                let pipe = self.pipe("the parenthesis", false)?;
                if !self.take(&TokenKind::RightParen) {
                    return self.unexpected_error("in a parenthesis");
                }
                self.depth -= 1;
                OperandKind::Pipe(Box::new(pipe))
            }
            _ => {
                self.next -= 1;
                return Ok(None);
            }
        };
        while let Some(token) = self.peek().filter(|token| !token.spaced).cloned() {
            let TokenKind::Field(name) = token.kind else { break };
            if !has_fields(&kind) {
                return mistake(token.at, "what comes before the . has no fields");
            }
            self.next += 1;
            fields.push(name);
        }
        Ok(Some(Operand { at, kind, fields }))
    }

    fn word_operand(&mut self, at: usize, word: Arc<str>) -> Result<OperandKind, Mistake> {
        match word.as_ref() {
            "true" => return Ok(OperandKind::Bool(true)),
            "false" => return Ok(OperandKind::Bool(false)),
            "nil" => return Ok(OperandKind::Nil),
            "if" | "else" | "end" | "range" | "with" | "define" | "template" | "block" => {
                return mistake(at, format!("{word:?} is not allowed here"));
            }
            _ => {}
        }
        match functions::find_function(&word) {
            Some(FunctionLookup::Here(_)) => Ok(OperandKind::Function(word)),
            Some(FunctionLookup::Refused(reason)) => {
                Err((at, TemplateProblem::NotHere { function: word.to_string(), reason }))
            }
            None => mistake(at, format!("there is no function {word:?}")),
        }
    }
}

/// Whether a command can take the value of the command before it.
fn takes_more(command: &PipeCommand) -> bool {
    let first = &command.first;
    match first.kind {
        OperandKind::Function(_) => true,
        // A field may be a function: one of the scratch, or of the value of a variable.
        OperandKind::Dot | OperandKind::Variable(_) | OperandKind::Pipe(_) => {
            !first.fields.is_empty()
        }
        _ => false,
    }
}

fn has_fields(kind: &OperandKind) -> bool {
    matches!(
        kind,
        OperandKind::Dot
            | OperandKind::Variable(_)
            | OperandKind::Function(_)
            | OperandKind::Pipe(_)
    )
}
