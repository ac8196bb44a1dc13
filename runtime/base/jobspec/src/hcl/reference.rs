//! Recognises references whose values are known only when a task runs.

use hcl_edit::expr::{Expression, TraversalOperator};
use ostler_text::suggest::nearest;

/// The first words of references of Nomad, and one of Ostler (`job.dir`).
const ROOTS: [&str; 6] = ["attr", "meta", "node", "env", "device", "job"];
/// The first words that have a meaning in the file itself.
const NAMES: [&str; 2] = ["var", "local"];

/// The kind of a reference.
pub(super) enum ReferenceKind {
    /// A reference to the file itself: `var.x` or `local.x`.
    Own,
    /// A reference that is known later; with the text that is kept, including `${` and `}`.
    Later(String),
    /// An unknown reference; with what may have been meant.
    Unknown(Option<&'static str>),
}

/// Classify a name or a dotted path. `in_text` tells that it stands in a text, `"${…}"`. There, any single name is
/// kept, because it may be meant for a shell.
pub(super) fn classify(expr: &Expression, in_text: bool) -> ReferenceKind {
    let Some((root, path)) = render(expr) else {
        return ReferenceKind::Unknown(None);
    };
    if NAMES.contains(&root) {
        return ReferenceKind::Own;
    }
    let dotted = path.len() > root.len();
    let of_nomad = root.starts_with("NOMAD_") || dotted && ROOTS.contains(&root);
    let later = of_nomad || in_text && !dotted;
    if later {
        return ReferenceKind::Later(format!("${{{path}}}"));
    }
    let known = NAMES.iter().chain(&ROOTS).copied();
    ReferenceKind::Unknown(nearest(root, known).filter(|_| dotted))
}

/// The first word, and the whole path as it is written without blanks.
fn render(expr: &Expression) -> Option<(&str, String)> {
    match expr {
        Expression::Variable(name) => Some((name.as_str(), name.as_str().to_owned())),
        Expression::Traversal(traversal) => {
            let (root, mut path) = render(&traversal.expr)?;
            for operator in &traversal.operators {
                match operator.value() {
                    TraversalOperator::GetAttr(name) => {
                        path.push('.');
                        path.push_str(name.as_str());
                    }
                    TraversalOperator::LegacyIndex(index) => {
                        path.push_str(&format!(".{}", index.value()));
                    }
                    TraversalOperator::Index(Expression::String(key)) => {
                        path.push_str(&format!("[\"{}\"]", key.as_str()));
                    }
                    TraversalOperator::Index(Expression::Number(index)) => {
                        path.push_str(&format!("[{}]", index.value()));
                    }
                    _ => return None,
                }
            }
            Some((root, path))
        }
        _ => None,
    }
}
