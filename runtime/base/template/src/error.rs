//! What can be wrong with a template.

/// What went wrong, without the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateProblem {
    /// The text is no template.
    #[error("{0}")]
    Syntax(String),
    /// A function of the language that this node cannot answer.
    #[error("function {function} is not available: {reason}")]
    NotHere {
        /// The name of the function, as the template calls it.
        function: String,
        /// Why the function is not available, and what to use instead.
        reason: &'static str,
    },
    /// A call that a function does not take.
    #[error("{function}: {reason}")]
    Call {
        /// The name of the function, as the template calls it.
        function: String,
        /// What the function objects to.
        reason: String,
    },
    /// Something does not fit where it stands.
    #[error("{0}")]
    Value(String),
    /// The template asks for too much.
    #[error("the template {what} more than {max} {unit}, the most that is allowed")]
    Limit {
        /// What the template does too much of, as a verb: "writes", "nests".
        what: &'static str,
        /// The largest number of units that is allowed.
        max: u64,
        /// The unit of the limit, in the plural.
        unit: &'static str,
    },
    /// Nobody waits for the output of the template any more.
    #[error("rendering the template was cancelled")]
    GivenUp,
}

impl TemplateProblem {
    /// Something does not fit where it stands.
    pub(crate) fn value(text: impl Into<String>) -> Self {
        Self::Value(text.into())
    }

    /// Values are nested too deeply.
    pub(crate) fn too_deep(max: usize) -> Self {
        Self::Limit { what: "nests values", max: wide(max), unit: "levels" }
    }

    /// Add the name of the function to a problem that one of its calls has.
    pub(crate) fn with_function(self, function: &str) -> Self {
        match self {
            Self::Value(reason) => Self::Call { function: function.to_owned(), reason },
            other => other,
        }
    }
}

/// A count in the integer type of the errors.
pub(crate) fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// What is wrong with a template, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{template}:{line}:{column}: {problem}")]
pub struct TemplateError {
    /// The name of the template: the path of its source, or the name that its owner gave it.
    pub template: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    /// What is wrong.
    #[source]
    pub problem: TemplateProblem,
}

impl TemplateError {
    /// An error at a byte of a text.
    pub(crate) fn from_offset(
        template: &str,
        text: &str,
        offset: usize,
        problem: TemplateProblem,
    ) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        Self { template: template.to_owned(), line, column, problem }
    }
}
