//! Renders a template.
//!
//! Bounded in every way: steps (parts, turns of loops, calls), depth, bytes of output, and bytes that
//! functions make on the way. So a template from a stranger costs what the limits say and no more.

#[path = "eval_field.rs"]
mod field;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostler_text::patterns::{PATTERNS_OF_ONE_BYTES_MAX, Pattern, Patterns};

use crate::error::{TemplateError, TemplateProblem, wide};
use crate::functions::{self, FunctionLookup};
use crate::outside::{Dependency, Outside, OutsideAnswer};
use crate::parse::Template;
use crate::sink::BoundedBuffer;
use crate::tree::{Branch, NodeKind, Operand, OperandKind, Pipe, PipeCommand, TemplateNode};
use crate::value::{MapKind, Value};
use crate::{Options, RenderedTemplate, print};

/// What went wrong, and at which byte.
pub(crate) type Fault = (usize, TemplateProblem);

/// How the rendering goes on after a list of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// The state of one rendering of a template.
pub(crate) struct Renderer<'a> {
    template: &'a Template,
    outside: &'a dyn Outside,
    options: Options,
    variables: Vec<(Arc<str>, Value)>,
    scratch: BTreeMap<String, Value>,
    used: BTreeSet<Dependency>,
    missing: BTreeSet<Dependency>,
    steps: u64,
    depth: usize,
    work: usize,
    patterns: Patterns,
}

impl Template {
    /// Render the template. This may block where `outside` does.
    ///
    /// # Errors
    /// The first problem, with its place.
    pub fn render(
        &self,
        outside: &dyn Outside,
        options: Options,
    ) -> Result<RenderedTemplate, TemplateError> {
        let mut run = Renderer {
            template: self,
            outside,
            options,
            variables: vec![(Arc::from("$"), Value::Nothing)],
            scratch: BTreeMap::new(),
            used: BTreeSet::new(),
            missing: BTreeSet::new(),
            steps: 0,
            depth: 0,
            work: 0,
            patterns: Patterns::new(),
        };
        let mut sink = BoundedBuffer::for_output(options.output_bytes_max);
        run.list(&self.root, &Value::Nothing, &mut sink).map_err(|(at, problem)| {
            TemplateError::from_offset(&self.name, &self.text, at, problem)
        })?;
        Ok(RenderedTemplate { output: sink.into_bytes(), used: run.used, missing: run.missing })
    }
}

/// The steps that reading a whole value counts as; one step stands for a few microseconds.
fn steps_through(value: &Value) -> u64 {
    let steps = match value {
        Value::List(list) => list.items().len() / ITEMS_OF_A_STEP,
        Value::Map(map) => map.entries().len() / ITEMS_OF_A_STEP,
        other => other.as_text().map_or(0, <[u8]>::len) / BYTES_OF_A_STEP,
    };
    wide(steps)
}

const ITEMS_OF_A_STEP: usize = 64;
const BYTES_OF_A_STEP: usize = 4 * 1_024;

impl Renderer<'_> {
    fn take_step(&mut self) -> Result<(), TemplateProblem> {
        self.take_steps(1)
    }

    fn take_steps(&mut self, steps: u64) -> Result<(), TemplateProblem> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > self.options.steps_max {
            let max = self.options.steps_max;
            return Err(TemplateProblem::Limit { what: "takes", max, unit: "steps" });
        }
        if self.outside.is_given_up() {
            return Err(TemplateProblem::GivenUp);
        }
        Ok(())
    }

    fn enter_level(&mut self) -> Result<(), TemplateProblem> {
        self.depth += 1;
        if self.depth > self.options.nesting_max {
            let max = wide(self.options.nesting_max);
            return Err(TemplateProblem::Limit { what: "nests", max, unit: "levels" });
        }
        Ok(())
    }

    /// Count bytes that a function made, and fail when all functions together made too many.
    pub(crate) fn charge_bytes(&mut self, bytes: usize) -> Result<(), TemplateProblem> {
        self.work = self.work.saturating_add(bytes);
        if self.work > self.options.work_bytes_max {
            let max = wide(self.options.work_bytes_max);
            return Err(TemplateProblem::Limit { what: "makes values of", max, unit: "bytes" });
        }
        Ok(())
    }

    /// The compiled pattern, to search this text with. The costs of compiling and searching count as bytes made.
    pub(crate) fn pattern(
        &mut self,
        pattern: &str,
        text: &str,
    ) -> Result<Arc<Pattern>, TemplateProblem> {
        let (compiled, price) = self.patterns.compile(pattern, PATTERNS_OF_ONE_BYTES_MAX);
        self.charge_bytes(price)?;
        let wrong = |error| TemplateProblem::Value(format!("{pattern:?} is {error}"));
        let compiled = compiled.map_err(wrong)?;
        self.charge_bytes(compiled.price_of(text))?;
        Ok(compiled)
    }

    /// A buffer for the result of a function. Its bound is what is left of the bytes that functions may make.
    pub(crate) fn sink(&self) -> BoundedBuffer {
        BoundedBuffer::for_value(self.options.work_bytes_max.saturating_sub(self.work))
    }

    pub(crate) fn outside(&self) -> &dyn Outside {
        self.outside
    }

    pub(crate) fn scratch(&mut self) -> &mut BTreeMap<String, Value> {
        &mut self.scratch
    }

    /// Ask the outside for something that may change. `None` means that it does not exist yet.
    pub(crate) fn ask(&mut self, what: Dependency) -> Result<Option<Value>, TemplateProblem> {
        let answer = self.outside.ask(&what);
        self.used.insert(what.clone());
        match answer {
            OutsideAnswer::Is(value) => Ok(Some(value)),
            OutsideAnswer::Missing => {
                self.missing.insert(what);
                Ok(None)
            }
            OutsideAnswer::Refused(reason) => Err(TemplateProblem::Value(reason)),
        }
    }

    /// Render another template of this file into bytes.
    pub(crate) fn execute(&mut self, name: &str, data: Value) -> Result<Vec<u8>, TemplateProblem> {
        let mut sink = self.sink();
        self.call(name, data, &mut sink).map_err(|(_, problem)| problem)?;
        Ok(sink.into_bytes())
    }

    fn list(
        &mut self,
        nodes: &[TemplateNode],
        dot: &Value,
        out: &mut BoundedBuffer,
    ) -> Result<Flow, Fault> {
        for node in nodes {
            let flow = self.node(node, dot, out)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn node(
        &mut self,
        node: &TemplateNode,
        dot: &Value,
        out: &mut BoundedBuffer,
    ) -> Result<Flow, Fault> {
        let placed = |problem| (node.at, problem);
        self.take_step().map_err(placed)?;
        match &node.kind {
            NodeKind::Text(text) => out.push(text.as_bytes()).map_err(placed)?,
            NodeKind::Action(pipe) => {
                let value = self.pipe(pipe, dot)?;
                if pipe.variables.is_empty() {
                    print::print_action(&value, out).map_err(placed)?;
                }
            }
            NodeKind::If(branch) | NodeKind::With(branch) | NodeKind::Range(branch) => {
                self.enter_level().map_err(placed)?;
                let seen = self.variables.len();
                let flow = self.branch(node, branch, dot, out)?;
                self.variables.truncate(seen);
                self.depth -= 1;
                return Ok(flow);
            }
            NodeKind::Call { name, argument } => {
                let data = match argument {
                    Some(pipe) => self.pipe(pipe, dot)?,
                    None => Value::Nothing,
                };
                self.call(name, data, out).map_err(|(at, problem)| match problem {
                    TemplateProblem::Limit { .. } => (node.at, problem),
                    _ => (at, problem),
                })?;
            }
            NodeKind::Break => return Ok(Flow::Break),
            NodeKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn branch(
        &mut self,
        node: &TemplateNode,
        branch: &Branch,
        dot: &Value,
        out: &mut BoundedBuffer,
    ) -> Result<Flow, Fault> {
        if matches!(node.kind, NodeKind::Range(_)) {
            return self.range(node, branch, dot, out);
        }
        let value = self.pipe(&branch.pipe, dot)?;
        if !value.truth() {
            return self.list(&branch.otherwise, dot, out);
        }
        let inner = if matches!(node.kind, NodeKind::With(_)) { &value } else { dot };
        self.list(&branch.body, inner, out)
    }

    fn range(
        &mut self,
        node: &TemplateNode,
        branch: &Branch,
        dot: &Value,
        out: &mut BoundedBuffer,
    ) -> Result<Flow, Fault> {
        let value = self.commands(&branch.pipe, dot)?;
        let at = branch.pipe.commands.first().map_or(node.at, |command| command.first.at);
        let mut turns = 0_u64;
        let mut turn = |run: &mut Self, key: Value, item: Value| -> Result<Flow, Fault> {
            turns += 1;
            run.take_step().map_err(|problem| (node.at, problem))?;
            run.turn(branch, key, item, out)
        };
        match &value {
            Value::Nothing | Value::Null => {}
            Value::List(list) => {
                for (index, item) in list.items().iter().enumerate() {
                    let index = i64::try_from(index).unwrap_or(i64::MAX);
                    if turn(self, Value::Int(index), item.clone())? == Flow::Break {
                        break;
                    }
                }
            }
            Value::Map(map) if map.kind() != MapKind::Record => {
                for (key, item) in map.entries() {
                    if turn(self, Value::text(key), item.clone())? == Flow::Break {
                        break;
                    }
                }
            }
            Value::Loop(from, to) => {
                for (index, number) in (*from..*to).enumerate() {
                    let index = i64::try_from(index).unwrap_or(i64::MAX);
                    if turn(self, Value::Int(index), Value::Int(number))? == Flow::Break {
                        break;
                    }
                }
            }
            other => {
                let what = other.describe();
                return Err((
                    at,
                    TemplateProblem::Value(format!("range needs a list or a map, not {what}")),
                ));
            }
        }
        if turns == 0 {
            return self.list(&branch.otherwise, dot, out);
        }
        Ok(Flow::Next)
    }

    /// Render the body of a loop once.
    fn turn(
        &mut self,
        branch: &Branch,
        key: Value,
        item: Value,
        out: &mut BoundedBuffer,
    ) -> Result<Flow, Fault> {
        let seen = self.variables.len();
        let values: Vec<Value> = match branch.pipe.variables.len() {
            0 => Vec::new(),
            1 => vec![item.clone()],
            _ => vec![key, item.clone()],
        };
        for (name, value) in branch.pipe.variables.iter().zip(values) {
            self.set(name, value, branch.pipe.assigns);
        }
        let flow = self.list(&branch.body, &item, out)?;
        self.variables.truncate(seen);
        Ok(flow)
    }

    fn set(&mut self, name: &Arc<str>, value: Value, assigns: bool) {
        let known = self.variables.iter_mut().rev().find(|(known, _)| known == name);
        match known.filter(|_| assigns) {
            Some((_, known)) => *known = value,
            None => self.variables.push((Arc::clone(name), value)),
        }
    }

    /// Render a template of this file. It sees its argument and nothing else.
    fn call(&mut self, name: &str, data: Value, out: &mut BoundedBuffer) -> Result<(), Fault> {
        let template = self.template;
        let nodes = match template.defined.get(name) {
            Some(nodes) => nodes,
            None if name == template.name => &template.root,
            None => {
                return Err((
                    0,
                    TemplateProblem::Value(format!("template {name:?} is not defined")),
                ));
            }
        };
        self.enter_level().map_err(|problem| (0, problem))?;
        let frame = vec![(Arc::from("$"), data.clone())];
        let outer = std::mem::replace(&mut self.variables, frame);
        self.list(nodes, &data, out)?;
        self.variables = outer;
        self.depth -= 1;
        Ok(())
    }

    /// Evaluate a pipe, and set its variables to the value.
    fn pipe(&mut self, pipe: &Pipe, dot: &Value) -> Result<Value, Fault> {
        let value = self.commands(pipe, dot)?;
        for name in &pipe.variables {
            self.set(name, value.clone(), pipe.assigns);
        }
        Ok(value)
    }

    fn commands(&mut self, pipe: &Pipe, dot: &Value) -> Result<Value, Fault> {
        let mut last = None;
        for command in &pipe.commands {
            last = Some(self.command(command, dot, last)?);
        }
        Ok(last.unwrap_or(Value::Nothing))
    }

    fn command(
        &mut self,
        command: &PipeCommand,
        dot: &Value,
        last: Option<Value>,
    ) -> Result<Value, Fault> {
        let first = &command.first;
        self.take_step().map_err(|problem| (first.at, problem))?;
        if let OperandKind::Function(name) = &first.kind
            && first.fields.is_empty()
        {
            return self.function(name, command, dot, last);
        }
        let receiver = self.operand_without_fields(first, dot)?;
        self.fields(receiver, command, dot, last)
    }

    fn function(
        &mut self,
        name: &str,
        command: &PipeCommand,
        dot: &Value,
        last: Option<Value>,
    ) -> Result<Value, Fault> {
        let at = command.first.at;
        if matches!(name, "and" | "or") {
            return self.logic(name == "or", command, dot, last);
        }
        let mut arguments = Vec::with_capacity(command.arguments.len() + 1);
        for argument in &command.arguments {
            arguments.push(self.operand(argument, dot)?);
        }
        arguments.extend(last);
        self.invoke(name, &arguments).map_err(|problem| (at, problem.with_function(name)))
    }

    fn invoke(&mut self, name: &str, arguments: &[Value]) -> Result<Value, TemplateProblem> {
        let Some(FunctionLookup::Here(function)) = functions::find_function(name) else {
            return Err(TemplateProblem::value("there is no such function"));
        };
        let count = arguments.len();
        if count < function.least || function.most.is_some_and(|most| count > most) {
            return Err(TemplateProblem::Value(function.wrong_count(count)));
        }
        // Reading the arguments takes time too, even where the result is small.
        self.take_steps(arguments.iter().map(steps_through).sum())?;
        let value = (function.call)(self, arguments)?;
        self.charge_bytes(value.weight())?;
        Ok(value)
    }

    /// Evaluate `and` or `or`, which stop at the first argument that decides the result.
    fn logic(
        &mut self,
        stop_at: bool,
        command: &PipeCommand,
        dot: &Value,
        last: Option<Value>,
    ) -> Result<Value, Fault> {
        let mut result = None;
        for argument in &command.arguments {
            let value = self.operand(argument, dot)?;
            if value.truth() == stop_at {
                return Ok(value);
            }
            result = Some(value);
        }
        let lacks = || (command.first.at, TemplateProblem::value("and, or need an argument"));
        last.or(result).ok_or_else(lacks)
    }

    /// The value of a word.
    fn operand(&mut self, operand: &Operand, dot: &Value) -> Result<Value, Fault> {
        let receiver = self.operand_without_fields(operand, dot)?;
        self.follow(receiver, operand, &operand.fields, &[])
    }

    fn operand_without_fields(&mut self, operand: &Operand, dot: &Value) -> Result<Value, Fault> {
        Ok(match &operand.kind {
            OperandKind::Dot => dot.clone(),
            OperandKind::Nil => Value::Nothing,
            OperandKind::Bool(value) => Value::Bool(*value),
            OperandKind::Int(number) => Value::Int(*number),
            OperandKind::Float(number) => Value::Float(*number),
            OperandKind::Text(text) => Value::Text(Arc::clone(text)),
            OperandKind::Variable(name) => {
                let known = self.variables.iter().rev().find(|(known, _)| known == name);
                known.map_or(Value::Nothing, |(_, value)| value.clone())
            }
            OperandKind::Function(name) => {
                self.take_step().map_err(|problem| (operand.at, problem))?;
                self.invoke(name, &[])
                    .map_err(|problem| (operand.at, problem.with_function(name)))?
            }
            OperandKind::Pipe(pipe) => {
                self.enter_level().map_err(|problem| (operand.at, problem))?;
                let seen = self.variables.len();
                let value = self.pipe(pipe, dot)?;
                self.variables.truncate(seen);
                self.depth -= 1;
                value
            }
        })
    }
}
