//! A parsed template.

use std::sync::Arc;

/// A part of a template, and the byte at which it begins.
#[derive(Debug)]
pub(crate) struct TemplateNode {
    pub at: usize,
    pub kind: NodeKind,
}

/// The kind of a part, with its content.
#[derive(Debug)]
pub(crate) enum NodeKind {
    Text(Arc<str>),
    Action(Pipe),
    If(Branch),
    With(Branch),
    Range(Branch),
    Call { name: Arc<str>, argument: Option<Pipe> },
    Break,
    Continue,
}

/// An `if`, `with` or `range`: a value, the parts for it, and the parts of its `else`.
#[derive(Debug)]
pub(crate) struct Branch {
    pub pipe: Pipe,
    pub body: Vec<TemplateNode>,
    pub otherwise: Vec<TemplateNode>,
}

/// A pipe such as `$x := a | b c`.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub variables: Vec<Arc<str>>,
    /// The pipe assigns to variables that exist already.
    pub assigns: bool,
    pub commands: Vec<PipeCommand>,
}

/// A value, or a function and its arguments.
#[derive(Debug)]
pub(crate) struct PipeCommand {
    pub first: Operand,
    pub arguments: Vec<Operand>,
}

/// A word of a command, and the byte at which it begins.
#[derive(Debug)]
pub(crate) struct Operand {
    pub at: usize,
    pub kind: OperandKind,
    /// The fields that follow the word, as in `.a.b`.
    pub fields: Vec<Arc<str>>,
}

/// The kind of a word, with its content.
#[derive(Debug)]
pub(crate) enum OperandKind {
    Dot,
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Arc<[u8]>),
    Variable(Arc<str>),
    Function(Arc<str>),
    Pipe(Box<Pipe>),
}
