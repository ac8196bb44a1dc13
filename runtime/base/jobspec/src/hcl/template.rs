//! Evaluates texts with `${…}`, `%{ if … }` and `%{ for … }`, and with `~`, which removes the blanks beside them.

use hcl_edit::Span as _;
use hcl_edit::expr::Expression;
use hcl_edit::template::{Directive, Element, ForDirective, IfDirective, Strip, Template};

use super::eval::Evaluator;
use super::operators;
use super::value::{HclText, ValKind};
use crate::diagnostic::{Sink, Span};

/// How a text stands in the file.
#[derive(Clone, Copy)]
pub(super) enum TextForm {
    /// The text stands between quotes.
    Quoted,
    /// The text has lines of its own. This many blanks are removed at the beginning of each line.
    Lines(usize),
}

/// How the literal parts of a text are trimmed.
#[derive(Clone, Copy)]
struct Trim {
    /// Whether blanks are removed at the start.
    start: bool,
    /// Whether blanks are removed at the end.
    end: bool,
    written: TextForm,
    /// Whether the text is inside of a directive. There, the parser does not remove the indent of lines.
    inside: bool,
}

impl Evaluator<'_> {
    /// Evaluate a text. A text that is one interpolation, such as `"${var.x}"`, gives the value itself.
    pub(super) fn template<'e>(
        &mut self,
        elements: impl Iterator<Item = &'e Element>,
        written: TextForm,
        span: Span,
        sink: &mut Sink,
    ) -> Option<ValKind> {
        let elements: Vec<&Element> = elements.collect();
        if let [Element::Interpolation(only)] = elements.as_slice() {
            return self.interpolate(&only.expr, sink);
        }
        let mut text = HclText::default();
        let trim = Trim { start: false, end: false, written, inside: false };
        let whole = self.render(&elements, trim, &mut text, span, sink);
        whole.then_some(ValKind::Text(text))
    }

    /// Render the elements of a text. `false` means that a problem was reported.
    fn render(
        &mut self,
        elements: &[&Element],
        trim: Trim,
        out: &mut HclText,
        span: Span,
        sink: &mut Sink,
    ) -> bool {
        let mut whole = true;
        for (index, element) in elements.iter().enumerate() {
            let before = out.as_str().len();
            match element {
                Element::Literal(literal) => {
                    let previous = index.checked_sub(1).and_then(|index| elements.get(index));
                    let next = elements.get(index + 1);
                    let start = previous.map_or(trim.start, |element| strips_after(element));
                    let end = next.map_or(trim.end, |element| self::strips_before(element));
                    out.append(&HclText::literal(strip_blanks(
                        literal,
                        Trim { start, end, ..trim },
                    )));
                }
                Element::Interpolation(part) => {
                    let at = self.span_of(part.expr.span());
                    let kind = self.interpolate(&part.expr, sink);
                    let text = kind.as_ref().map(ValKind::to_text);
                    match (kind, text.flatten()) {
                        (_, Some(text)) => out.append(&text),
                        (Some(kind), None) => {
                            let message = format!("{} is not allowed in a text", kind.describe());
                            sink.error(at, message);
                            whole = false;
                        }
                        (None, _) => whole = false,
                    }
                }
                Element::Directive(directive) => {
                    whole &= match &**directive {
                        Directive::If(directive) => self.if_text(directive, trim, out, span, sink),
                        Directive::For(directive) => {
                            self.for_text(directive, trim, out, span, sink)
                        }
                    };
                }
            }
            let grown =
                u64::try_from(out.as_str().len().saturating_sub(before)).unwrap_or(u64::MAX);
            if !self.pay(grown, span, sink) {
                return false;
            }
        }
        whole
    }

    fn inner(
        &mut self,
        template: &Template,
        trim: Trim,
        out: &mut HclText,
        span: Span,
        sink: &mut Sink,
    ) -> bool {
        let elements: Vec<&Element> = template.iter().collect();
        self.render(&elements, trim, out, span, sink)
    }

    fn if_text(
        &mut self,
        directive: &IfDirective,
        around: Trim,
        out: &mut HclText,
        span: Span,
        sink: &mut Sink,
    ) -> bool {
        let chosen = &directive.if_expr;
        let Some(condition) = self.value(&chosen.cond_expr, sink) else { return false };
        let Some(truth) = operators::truth(&condition, sink) else { return false };
        let last = directive.endif_expr.strip;
        match (&directive.else_expr, truth) {
            (other, true) => {
                let end = starts(other.as_ref().map_or(last, |other| other.strip));
                let trim = Trim { start: ends(chosen.strip), end, inside: true, ..around };
                self.inner(&chosen.template, trim, out, span, sink)
            }
            (Some(other), false) => {
                let trim =
                    Trim { start: ends(other.strip), end: starts(last), inside: true, ..around };
                self.inner(&other.template, trim, out, span, sink)
            }
            (None, false) => true,
        }
    }

    fn for_text(
        &mut self,
        directive: &ForDirective,
        around: Trim,
        out: &mut HclText,
        span: Span,
        sink: &mut Sink,
    ) -> bool {
        let each = &directive.for_expr;
        let trim = Trim {
            start: ends(each.strip),
            end: starts(directive.endfor_expr.strip),
            inside: true,
            ..around
        };
        let names = (each.key_var.as_ref().map(|name| name.as_str()), each.value_var.as_str());
        let Some(entries) = self.entries(&each.collection_expr, sink) else { return false };
        let mut whole = true;
        for entry in entries {
            let frames = self.enter(names, entry);
            let fine = self.inner(&each.template, trim, out, span, sink);
            self.frames.truncate(frames);
            whole &= fine;
            // The problems of one element are enough: the loop ends here.
            if !fine {
                break;
            }
        }
        whole
    }

    fn interpolate(&mut self, expr: &Expression, sink: &mut Sink) -> Option<ValKind> {
        let span = self.span_of(expr.span());
        match expr {
            Expression::Variable(_) => self.reference(expr, None, true, span, sink),
            Expression::Traversal(path) => self.reference(expr, Some(path), true, span, sink),
            other => self.value(other, sink).map(|value| value.kind),
        }
    }
}

fn starts(strip: Strip) -> bool {
    matches!(strip, Strip::Start | Strip::Both)
}

fn ends(strip: Strip) -> bool {
    matches!(strip, Strip::End | Strip::Both)
}

/// Whether an element removes the blanks before it.
fn strips_before(element: &Element) -> bool {
    match element {
        Element::Literal(_) => false,
        Element::Interpolation(part) => starts(part.strip),
        Element::Directive(directive) => match &**directive {
            Directive::If(directive) => starts(directive.if_expr.strip),
            Directive::For(directive) => starts(directive.for_expr.strip),
        },
    }
}

/// Whether an element removes the blanks after it.
fn strips_after(element: &Element) -> bool {
    match element {
        Element::Literal(_) => false,
        Element::Interpolation(part) => ends(part.strip),
        Element::Directive(directive) => match &**directive {
            Directive::If(directive) => ends(directive.endif_expr.strip),
            Directive::For(directive) => ends(directive.endfor_expr.strip),
        },
    }
}

/// A literal without the blanks beside a `~`. In a text of several lines, only blanks on the same line are removed:
/// those after the `~` with the line end, and those before it up to the beginning of the line. Where the `~` stands at
/// the beginning of a line, the blanks of the line before are removed.
fn strip_blanks(literal: &str, trim: Trim) -> String {
    let TextForm::Lines(indent) = trim.written else {
        let text = if trim.start { literal.trim_start() } else { literal };
        return if trim.end { text.trim_end() } else { text }.to_owned();
    };
    let mut text = literal;
    if trim.start {
        let line = text.find('\n').map_or(text.len(), |end| end + 1);
        let (first, rest) = text.split_at_checked(line).unwrap_or((text, ""));
        text = if first.trim().is_empty() { rest } else { text.trim_start() };
    }
    if trim.end {
        let before = text.strip_suffix('\n').unwrap_or(text);
        let line = before.rfind('\n').map_or(0, |end| end + 1);
        let (rest, last) = text.split_at_checked(line).unwrap_or(("", text));
        text = if last.trim().is_empty() { rest } else { text.trim_end() };
    }
    if trim.inside && indent > 0 { without_indent(text, indent) } else { text.to_owned() }
}

/// The text without `indent` blanks at the beginning of each line but the first.
fn without_indent(text: &str, indent: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let blanks = line.len() - line.trim_start_matches([' ', '\t']).len();
        let cut = if index == 0 { 0 } else { blanks.min(indent) };
        out.push_str(line.get(cut..).unwrap_or_default());
    }
    out
}
