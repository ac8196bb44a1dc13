//! A parsed template.

use std::sync::Arc;

/// A part of a template, and the byte at which it begins.
#[derive(Debug)]
pub(crate) struct Node {
    pub at: usize,
    pub kind: NodeKind,
}

/// What a part is.
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

/// `if`, `with`, `range`: a value, what follows from it, and otherwise.
#[derive(Debug)]
pub(crate) struct Branch {
    pub pipe: Pipe,
    pub body: Vec<Node>,
    pub otherwise: Vec<Node>,
}

/// `$x := a | b c`
#[derive(Debug)]
pub(crate) struct Pipe {
    pub variables: Vec<Arc<str>>,
    /// The variables are there already.
    pub assigns: bool,
    pub commands: Vec<Command>,
}

/// A value, or a function and its arguments.
#[derive(Debug)]
pub(crate) struct Command {
    pub first: Operand,
    pub arguments: Vec<Operand>,
}

/// A word of a command, and the byte at which it begins.
#[derive(Debug)]
pub(crate) struct Operand {
    pub at: usize,
    pub kind: OperandKind,
    /// `.a.b` behind it.
    pub fields: Vec<Arc<str>>,
}

/// What a word is.
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
