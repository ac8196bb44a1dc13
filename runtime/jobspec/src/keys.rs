//! What may stand where: [`keys!`] describes each block of a file once. Reading, writing as Nomad's
//! JSON, suggestions and the reference pages come from that description.
//!
//! ```text
//! tree::Block ─ items: known? supported? of the right form? ─► kinds: typed values ─► XKeys
//!                                                                                      │ ▲
//!                                  decode: what belongs together is checked ─► model ◄─┘ │
//!                                                                  encode: model ────────┘─► JSON
//! ```

mod free;
mod items;
mod kinds;
mod scalars;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Map;

use crate::Syntax;
use crate::decode::RulesRead;
use crate::diagnostic::{Sink, Span, shown};
use crate::places::ConfigPlaces;
use crate::tree::{self, Key};
use crate::tree::{Value, ValueKind};
use crate::units::parse_duration;
pub(crate) use items::{Entry, Items, is_empty};
pub(crate) use kinds::{ByName, Free, FreeLists, Given, Kind, Over, TextListMap, Texts};
pub(crate) use scalars::{Arguments, Scalar, choice, keyword, text};

/// Where problems go and how values are written.
pub(crate) struct Context<'a> {
    pub sink: &'a mut Sink,
    pub syntax: Syntax,
    /// Where the `config` of tasks stands.
    pub places: ConfigPlaces,
    /// Constraints and affinities that were read.
    pub rules: RulesRead,
    /// Where it stands that the job is stopped.
    pub stop: Option<Span>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(sink: &'a mut Sink, syntax: Syntax) -> Self {
        let (places, rules) = (ConfigPlaces::default(), RulesRead::default());
        Self { sink, syntax, places, rules, stop: None }
    }

    pub(crate) fn error(&mut self, at: Span, message: impl Into<String>) {
        self.sink.error(at, message);
    }

    /// Report a problem of what cannot be used then.
    pub(crate) fn refuse<T>(&mut self, at: Span, message: impl Into<String>) -> Option<T> {
        self.sink.refuse(at, message)
    }

    /// Add a name to `names`, or report that it is in use already.
    pub(crate) fn unique(&mut self, names: &mut BTreeSet<String>, what: &str, name: &Key) {
        if !names.insert(name.name.clone()) {
            self.error(name.span, format!("{what} {} is here already", shown(&name.name)));
        }
    }

    /// The text for the syntax of the file.
    pub(crate) fn name<'t>(&self, hcl: &'t str, json: &'t str) -> &'t str {
        match self.syntax {
            Syntax::Hcl => hcl,
            Syntax::Json => json,
        }
    }
}

/// The keys and blocks of one block.
pub(crate) struct Schema {
    /// The block in messages: `a task`.
    pub what: &'static str,
    /// With a label in HCL: the JSON member that has it.
    pub label: Option<&'static str>,
    /// What it may hold; supported ones first, for suggestions.
    pub fields: &'static [Field],
    /// What holds where a key is left out, as JSON.
    #[cfg(test)]
    pub defaults: fn() -> Vec<Option<serde_json::Value>>,
}

/// One key or block.
pub(crate) struct Field {
    /// Name in HCL; empty when only JSON has it.
    pub hcl: &'static str,
    /// Name in JSON; empty when only HCL has it.
    pub json: &'static str,
    /// What stands there.
    pub shape: Shape,
    /// Which values are accepted.
    pub bounds: Bounds,
    /// It has to be there: what is said otherwise, in both syntaxes.
    pub needs: Option<(&'static str, &'static str)>,
    /// What always stands there in the JSON of a job, where it is not supported.
    pub written: &'static str,
    /// What it does.
    pub doc: Doc,
}

/// What the reference says of a key.
pub(crate) struct Doc {
    pub text: &'static str,
    /// What holds where it is left out: a value, or a sentence about it.
    #[cfg(test)]
    pub default: fn() -> Option<serde_json::Value>,
    #[cfg(test)]
    pub unless: &'static str,
}

/// What stands at a key.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// A text; numbers and truth values become texts. In JSON the empty one is none.
    Text,
    /// The same, one of these.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the reference pages"))]
    Word(&'static [&'static str]),
    /// A whole number, or one written as a text.
    Integer,
    /// `true`, `false` or these as a text.
    Bool,
    /// `"15s"`; in JSON nanoseconds too.
    Duration,
    /// A list of texts.
    TextList,
    /// A list of lists of texts.
    TextLists,
    /// `env`, `meta`: names with texts, as a block or as an object.
    TextMap,
    /// `header`: names with lists of texts, as a block or as an object; one text is a list of one.
    TextListMap,
    /// `config`: anything, as a block or as an object; the driver checks it.
    Free,
    /// One value, whatever it is.
    Any,
    /// A block.
    Block {
        /// What it holds.
        schema: &'static Schema,
        /// How often it may be there.
        form: Form,
    },
    /// Valid in Nomad, not supported yet.
    Unsupported {
        /// A next step, or empty.
        hint: &'static str,
        /// What means the same as leaving it out; see [`is_neutral`].
        neutral: &'static [&'static str],
        /// What is accepted although it promises something that does not happen.
        missed: Option<&'static Missed>,
        /// It is left to others, so there is no "yet".
        left_out: bool,
        /// A block that says something by being there, whatever it holds.
        is_said_by_being_there: bool,
    },
    /// JSON only: written by servers or read by them before the job; skipped.
    Served,
}

/// How often a block may be there, and what that is in JSON.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Once: an object.
    One,
    /// More than once: a list.
    List,
    /// Once for each name: an object of objects.
    ByName,
}

/// Values that are accepted without doing what they say, which is told in a warning.
pub(crate) struct Missed {
    /// As in [`Shape::Unsupported`].
    pub values: &'static [&'static str],
    /// What happens instead.
    pub instead: &'static str,
    /// Also told of a job in JSON. There clients fill in Nomad's defaults, so only what somebody
    /// would miss who never wrote it.
    pub in_json: bool,
}

/// See [`Field::bounds`].
#[derive(Clone, Copy)]
pub(crate) enum Bounds {
    None,
    /// Numbers from here to there.
    Whole(i64, i64),
    /// The same; in JSON, where absent fields are often zero, zero is none.
    NotZero(i64, i64),
    /// Times from here to there.
    Time(Duration, Duration),
    /// Read, and never written as JSON: nothing of the model is it alone.
    Unwritten,
}

/// Most of what is counted.
pub(crate) const MOST: i64 = u32::MAX as i64;

pub(crate) const LATER: Shape = hint("");

/// Not supported, with a next step.
pub(crate) const fn hint(hint: &'static str) -> Shape {
    neutral(hint, &[])
}

/// Not supported; works as if it were not there when it has one of these values.
pub(crate) const fn neutral(hint: &'static str, neutral: &'static [&'static str]) -> Shape {
    let (left_out, is_said_by_being_there) = (false, false);
    Shape::Unsupported { hint, neutral, missed: None, left_out, is_said_by_being_there }
}

/// Left to others for good, with what to do instead.
pub(crate) const fn left_out(hint: &'static str) -> Shape {
    neutral_left_out(hint, &[])
}

/// The same; works as if it were not there when it has one of these values.
pub(crate) const fn neutral_left_out(
    hint: &'static str,
    neutral: &'static [&'static str],
) -> Shape {
    let (left_out, is_said_by_being_there) = (true, false);
    Shape::Unsupported { hint, neutral, missed: None, left_out, is_said_by_being_there }
}

/// Left to others for good; a block that makes another kind of job of it, even without a word in it.
pub(crate) const fn left_out_kind(hint: &'static str) -> Shape {
    let (left_out, is_said_by_being_there) = (true, true);
    Shape::Unsupported { hint, neutral: &[], missed: None, left_out, is_said_by_being_there }
}

/// What to do instead of Consul, its service mesh and Vault.
pub(crate) const CONSUL: &str =
    "this agent asks no Consul; it keeps a list of services itself, for provider = \"nomad\"";
pub(crate) const MESH: &str = "it is of Consul's service mesh, which this agent is no part of; leave it out and \
                               use ports of the network";
pub(crate) const VAULT: &str =
    "this agent asks no Vault; hand secrets over by an artifact or a variable";

/// The keys of one block, typed.
pub(crate) trait Keys: Sized {
    /// Their description.
    const SCHEMA: &'static Schema;

    /// Take the values, in the order of the description.
    fn take(items: &mut Items, cx: &mut Context<'_>) -> Self;

    /// The label; of a block that takes one, it is there.
    fn label(&self) -> &tree::Key;

    /// The values as JSON, in the order of the description.
    fn values(&self) -> Vec<Option<serde_json::Value>>;

    /// The block as Nomad's JSON.
    fn json(&self) -> Map<String, serde_json::Value> {
        let label = |member: &str| (member.to_owned(), self.label().name.clone().into());
        let mut values = self.values().into_iter();
        let member = |field: &Field| {
            let value = match values.next() {
                None => serde_json::from_str(field.written).ok(),
                Some(None) if matches!(field.bounds, Bounds::NotZero(..)) => Some(0.into()),
                Some(value) => Some(value.unwrap_or_default()),
            };
            let written = !field.json.is_empty() && !matches!(field.bounds, Bounds::Unwritten);
            value.filter(|_| written).map(|value| (field.json.to_owned(), value))
        };
        let label = Self::SCHEMA.label.map(label).into_iter();
        label.chain(Self::SCHEMA.fields.iter().filter_map(member)).collect()
    }

    /// Read a block. What cannot be used is reported and counts as not given.
    fn read(block: tree::Block, cx: &mut Context<'_>) -> Self {
        Self::take(&mut Items::sort(block, Self::SCHEMA, cx), cx)
    }
}

/// Describes a block: a struct with one member per key, and its [`Schema`].
///
/// ```text
/// member "name in HCL, where it is another" / NameInJson: Kind [bounds] = default => needs, "default in words";
/// ```
/// `for Model (defaults)` is for blocks whose members are those of a type of the model.
macro_rules! keys {
    (
        $(#[$meta:meta])*
        struct $name:ident: $what:literal $(, label $label:ident)? $(, for $model:ident $(($base:expr))?)? {
            $(
                $(#[doc = $doc:literal])*
                $field:ident $($hcl:literal)? $(/ $json:ident)?: $kind:ty
                $([$bounds:expr])? $(= $default:expr)? $(=> $needs:expr)? $(, $unless:literal)?;
            )*
        }
        $(not_yet {
            $($later:literal $(/ $later_json:ident)? $([$how:expr])? $(=> $written:tt)?;)*
        })?
    ) => {
        $(#[$meta])*
        #[derive(Default)]
        pub(crate) struct $name {
            /// Where the block begins.
            #[allow(dead_code, reason = "of some blocks, nothing is said as a whole")]
            pub at: $crate::diagnostic::Span,
            pub label: $crate::tree::Key,
            $($(#[doc = $doc])* pub $field: $kind,)*
        }

        impl $crate::keys::Keys for $name {
            const SCHEMA: &'static $crate::keys::Schema = &$crate::keys::Schema {
                what: $what,
                label: keys!(@label $($label)?),
                fields: &[
                    $($crate::keys::Field {
                        hcl: keys!(@hcl $field $($hcl)?),
                        json: concat!($(stringify!($json))?),
                        shape: <$kind as $crate::keys::Kind>::SHAPE,
                        bounds: keys!(@or $crate::keys::Bounds::None; $($bounds)?),
                        needs: keys!(@or None; $(Some($needs))?),
                        doc: $crate::keys::Doc {
                            text: concat!($($doc, "\n"),*),
                            #[cfg(test)]
                            default: || keys!(@default $kind; $($default)?),
                            #[cfg(test)]
                            unless: concat!($($unless)?),
                        },
                        ..$crate::keys::Field::NOTHING
                    },)*
                    $($($crate::keys::Field {
                        hcl: $later,
                        json: concat!($(stringify!($later_json))?),
                        shape: keys!(@or $crate::keys::LATER; $($how)?),
                        written: concat!($(stringify!($written))?),
                        ..$crate::keys::Field::NOTHING
                    },)*)?
                ],
                #[cfg(test)]
                defaults: || keys!(@defaults $name; $($($base)?)?),
            };

            fn take(items: &mut $crate::keys::Items, cx: &mut $crate::keys::Context<'_>) -> Self {
                Self {
                    at: items.at,
                    label: std::mem::take(&mut items.label),
                    $($field: items.next::<$kind>(cx)$(.or($default))?,)*
                }
            }

            fn label(&self) -> &$crate::tree::Key {
                &self.label
            }

            fn values(&self) -> Vec<Option<serde_json::Value>> {
                vec![$($crate::keys::Kind::json(&self.$field),)*]
            }
        }

        keys!(@model $name [$($model)?] $($field)*);
    };
    (@label) => { None };
    (@label $label:ident) => { Some(stringify!($label)) };
    (@hcl $field:ident) => { stringify!($field) };
    (@hcl $field:ident $hcl:literal) => { $hcl };
    (@or $or:expr;) => { $or };
    (@or $or:expr; $given:expr) => { $given };
    (@default $kind:ty;) => { None };
    (@default $kind:ty; $given:expr) => { $crate::keys::Kind::json(&<$kind>::default().or($given)) };
    (@defaults $name:ident;) => { Vec::new() };
    (@defaults $name:ident; $base:expr) => {
        $crate::keys::Keys::values(&$name::from($base))
    };
    (@model $name:ident [] $($field:ident)*) => {};
    (@model $name:ident [$model:ident] $($field:ident)*) => {
        impl $name {
            /// What the block says, and where it says nothing, `base`.
            pub(crate) fn over(self, base: $model) -> $model {
                $model { $($field: $crate::keys::Over::over(self.$field, base.$field),)* }
            }
        }

        impl From<$model> for $name {
            fn from(model: $model) -> Self {
                Self { $($field: model.$field.into(),)* ..Self::default() }
            }
        }
    };
}
pub(crate) use keys;

impl Field {
    /// A key without a name.
    pub(crate) const NOTHING: Self = Self {
        hcl: "",
        json: "",
        shape: LATER,
        bounds: Bounds::None,
        needs: None,
        written: "",
        doc: Doc {
            text: "",
            #[cfg(test)]
            default: || None,
            #[cfg(test)]
            unless: "",
        },
    };

    /// The name in one syntax; empty where it has none there.
    pub(crate) fn name(&self, syntax: Syntax) -> &'static str {
        match syntax {
            Syntax::Hcl => self.hcl,
            Syntax::Json => self.json,
        }
    }
}

impl Schema {
    /// Names that can be written, for suggestions; supported ones first.
    pub(crate) fn names(&self, syntax: Syntax) -> impl Iterator<Item = &'static str> {
        let names = self.fields.iter().filter(|field| !matches!(field.shape, Shape::Served));
        names.map(move |field| field.name(syntax)).filter(|n| !n.is_empty() && !n.contains(' '))
    }
}

/// Is `value` one of those that mean the same as leaving the key out? Scalars are compared as texts
/// and, where they are durations, as such, so that `10m` is also `600s` and in JSON the same in
/// nanoseconds; `[]` is the empty list; an object stands for all that have its members, and for lists
/// of such.
pub(crate) fn is_neutral(value: &Value, neutral: &[&str]) -> bool {
    neutral.iter().any(|neutral| match &value.kind {
        ValueKind::Text(text) => {
            let duration = |text: &str| parse_duration(text).ok();
            text == neutral || duration(neutral).is_some_and(|d| duration(text) == Some(d))
        }
        ValueKind::Number(number) => {
            let nanos =
                |duration: Duration| Some(duration.as_nanos()) == number.as_u64().map(u128::from);
            number.to_string() == *neutral || parse_duration(neutral).is_ok_and(nanos)
        }
        ValueKind::Bool(truth) => truth.to_string() == *neutral,
        ValueKind::List(items) if items.is_empty() => *neutral == "[]",
        // Of objects: all of them.
        ValueKind::List(items) => {
            neutral.starts_with('{') && items.iter().all(|item| is_neutral(item, &[neutral]))
        }
        ValueKind::Object(members) => {
            let wanted: Map<_, _> = serde_json::from_str(neutral).unwrap_or_default();
            let has = |(name, wanted): (&String, &serde_json::Value)| {
                let member = members.iter().find(|(key, _)| key.name == *name);
                member.is_some_and(|(_, value)| value.clone().into_json() == *wanted)
            };
            !wanted.is_empty() && wanted.iter().all(has)
        }
        ValueKind::Null | ValueKind::Refused => false,
    })
}

#[cfg(test)]
pub(crate) mod tests;
