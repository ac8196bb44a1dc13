//! The functions of templates.
//!
//! | from | functions |
//! |---|---|
//! | Go | `and or not eq ne lt le gt ge index slice len print printf println html js urlquery` |
//! | texts | `join split trimSpace trim trimPrefix trimSuffix toLower toUpper toTitle replaceAll regexMatch regexReplaceAll indent contains containsAll containsAny containsNone containsNotAll in` |
//! | codes | `base64Encode base64Decode base64URLEncode base64URLDecode sha256Hex toJSON toJSONPretty toUnescapedJSON toUnescapedJSONPretty toYAML toTOML parseJSON parseYAML parseBool parseInt parseUint parseFloat` |
//! | numbers | `add subtract multiply divide modulo minimum maximum loop` |
//! | maps | `explode explodeMap byTag scratch executeTemplate` |
//! | outside | `env envOrDefault mustEnv timestamp file nomadService nomadServices nomadVar nomadVarExists nomadVarList nomadVarListSafe` |
//!
//! Functions that need Consul or Vault, run programs or write files are known by name. A template that calls
//! one of them is refused with the reason when it is read.

mod builtin;
mod encoders;
mod math;
mod outside;
mod parsers;
mod texts;
mod yaml_read;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::error::TemplateProblem;
use crate::eval::Renderer;
use crate::value::Value;

/// The signature that all functions have.
pub(crate) type FunctionBody = fn(&mut Renderer<'_>, &[Value]) -> Result<Value, TemplateProblem>;

/// A function that templates can call.
pub(crate) struct Function {
    /// The smallest number of arguments.
    pub(crate) least: usize,
    /// The largest number of arguments; `None` means any number.
    pub(crate) most: Option<usize>,
    pub(crate) call: FunctionBody,
}

impl Function {
    pub(crate) fn wrong_count(&self, count: usize) -> String {
        let wants = match (self.least, self.most) {
            (least, Some(most)) if least == most => format!("{least}"),
            (least, Some(most)) => format!("{least} to {most}"),
            (least, None) => format!("at least {least}"),
        };
        format!("takes {wants} arguments, not {count}")
    }
}

/// A function name of the language: whether this node has the function.
pub(crate) enum FunctionLookup {
    /// The function can be called.
    Here(&'static Function),
    /// The language has the function and this node refuses it, for this reason.
    Refused(&'static str),
}

const CONSUL: &str = "it asks Consul, which Ostler does not talk to; put what it answers into a file or the environment";
const VAULT: &str = "it asks Vault, which Ostler does not talk to; put what it answers into a file";
const RUNS: &str = "it runs a program on the node";
const WRITES: &str = "it writes a file; use another template block";

/// The names of the refused functions, with the reasons.
const REFUSED: &[(&str, &str)] = &[
    ("byKey", CONSUL),
    ("byMeta", CONSUL),
    ("caLeaf", CONSUL),
    ("caRoots", CONSUL),
    ("connect", CONSUL),
    ("datacenters", CONSUL),
    ("key", CONSUL),
    ("keyExists", CONSUL),
    ("keyExistsGet", CONSUL),
    ("keyOrDefault", CONSUL),
    ("ls", CONSUL),
    ("node", CONSUL),
    ("nodes", CONSUL),
    ("partitions", CONSUL),
    ("peerings", CONSUL),
    ("pkiCert", VAULT),
    ("plugin", RUNS),
    ("safeLs", CONSUL),
    ("safeTree", CONSUL),
    ("secret", VAULT),
    ("secrets", VAULT),
    ("service", CONSUL),
    ("services", CONSUL),
    ("sockaddr", "it reads the addresses of the node; use env \"attr.unique.network.ip-address\""),
    ("tree", CONSUL),
    ("writeToFile", WRITES),
];

static HERE: LazyLock<BTreeMap<&'static str, Function>> = LazyLock::new(|| {
    let lists = [builtin::ALL, math::ALL, outside::ALL, parsers::ALL, texts::ALL, encoders::ALL];
    let all = lists.into_iter().flatten();
    all.map(|(name, least, most, call)| {
        (*name, Function { least: *least, most: *most, call: *call })
    })
    .collect()
});

/// A row of a table of functions: the name, the smallest and the largest number of arguments, and the function.
pub(crate) type Row = (&'static str, usize, Option<usize>, FunctionBody);

/// Look up a function name; `None` means that the language has no such function.
#[must_use]
pub(crate) fn find_function(name: &str) -> Option<FunctionLookup> {
    if let Some(function) = HERE.get(name) {
        return Some(FunctionLookup::Here(function));
    }
    let refused = REFUSED.iter().find(|(refused, _)| *refused == name);
    refused.map(|(_, reason)| FunctionLookup::Refused(reason))
}

/// The names of the functions that can be called, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    HERE.keys().copied()
}

/// The names of the refused functions, in order, each with the reason.
pub fn refused_functions() -> impl Iterator<Item = (&'static str, &'static str)> {
    REFUSED.iter().copied()
}

/// The argument at an index, or nothing where there is none.
pub(crate) fn argument(arguments: &[Value], index: usize) -> &Value {
    arguments.get(index).unwrap_or(&Value::Nothing)
}

/// The argument at an index, which has to be a text.
pub(crate) fn text(arguments: &[Value], index: usize) -> Result<&[u8], TemplateProblem> {
    let value = argument(arguments, index);
    value.as_text().ok_or_else(|| {
        let (place, what) = (index + 1, value.describe());
        TemplateProblem::Value(format!("argument {place} is {what}, not a string"))
    })
}

/// The argument at an index, which has to be a text in UTF-8.
pub(crate) fn string(arguments: &[Value], index: usize) -> Result<&str, TemplateProblem> {
    let text = text(arguments, index)?;
    let wrong = |_| TemplateProblem::Value(format!("argument {} is not UTF-8", index + 1));
    std::str::from_utf8(text).map_err(wrong)
}

/// The argument at an index, which has to be a whole number.
pub(crate) fn whole(arguments: &[Value], index: usize) -> Result<i64, TemplateProblem> {
    let wrong = |what: &str| {
        TemplateProblem::Value(format!("argument {} is {what}, not a whole number", index + 1))
    };
    match argument(arguments, index) {
        Value::Int(number) => Ok(*number),
        Value::Uint(number) => i64::try_from(*number).map_err(|_| wrong("too large a number")),
        other => Err(wrong(other.describe())),
    }
}
