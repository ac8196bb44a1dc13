//! The description of what may stand where: [`keys!`] describes each block of a file once. Reading, writing as
//! Nomad's JSON, suggestions and the reference pages are derived from that description.
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

use ostler_text::duration::parse_duration;
use serde_json::Map;

use crate::Syntax;
use crate::decode::RulesCost;
use crate::diagnostic::{Sink, Span, quote_text};
use crate::places::ConfigPlaces;
use crate::tree::{self, SpannedKey};
use crate::tree::{SpannedValue, ValueKind};
pub(crate) use items::{BlockItems, KeyEntry, is_empty};
pub(crate) use kinds::{
    ByName, FieldKind, FreeForm, FreeLists, Setting, TextListMap, Texts, ValueOr,
};
pub(crate) use scalars::{Arguments, ScalarType, choice, keyword, text};

/// The state of decoding one file: where problems go, the syntax, and what was read so far.
pub(crate) struct Context<'a> {
    pub sink: &'a mut Sink,
    pub syntax: Syntax,
    /// The places of the tasks' `config`.
    pub places: ConfigPlaces,
    /// The cost of the constraints and affinities that were read so far.
    pub rules: RulesCost,
    /// The place that says that the job is stopped, if it does.
    pub stop: Option<Span>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(sink: &'a mut Sink, syntax: Syntax) -> Self {
        let (places, rules) = (ConfigPlaces::default(), RulesCost::default());
        Self { sink, syntax, places, rules, stop: None }
    }

    pub(crate) fn error(&mut self, at: Span, message: impl Into<String>) {
        self.sink.error(at, message);
    }

    /// Report a problem of a value that cannot be used, and return `None` for the value.
    pub(crate) fn refuse<T>(&mut self, at: Span, message: impl Into<String>) -> Option<T> {
        self.sink.refuse(at, message)
    }

    /// Add a name to `names`; report a name that is in use already.
    pub(crate) fn add_unique(
        &mut self,
        names: &mut BTreeSet<String>,
        what: &str,
        name: &SpannedKey,
    ) {
        if !names.insert(name.name.clone()) {
            self.error(name.span, format!("{what} {} is already defined", quote_text(&name.name)));
        }
    }

    /// The one of two texts that is for the syntax of the file.
    pub(crate) fn name<'t>(&self, hcl: &'t str, json: &'t str) -> &'t str {
        match self.syntax {
            Syntax::Hcl => hcl,
            Syntax::Json => json,
        }
    }
}

/// The description of a block: its keys and inner blocks.
pub(crate) struct BlockSchema {
    /// What messages call the block: `a task`.
    pub what: &'static str,
    /// The JSON member for the label, if the block has a label in HCL.
    pub label: Option<&'static str>,
    /// The keys and blocks that it may hold. Supported ones come first, for suggestions.
    pub fields: &'static [Field],
    /// The values that hold where keys are left out, as JSON.
    #[cfg(test)]
    pub defaults: fn() -> Vec<Option<serde_json::Value>>,
}

/// The description of one key or inner block.
pub(crate) struct Field {
    /// The name in HCL; empty when only JSON has the key.
    pub hcl: &'static str,
    /// The name in JSON; empty when only HCL has the key.
    pub json: &'static str,
    /// The form of the value.
    pub shape: FieldShape,
    /// The range of values that are accepted.
    pub bounds: FieldBounds,
    /// If the key is required: the message that it is missing, for HCL and for JSON.
    pub needs: Option<(&'static str, &'static str)>,
    /// The value that is always written in the JSON of a job, for a key that is not supported.
    pub written: &'static str,
    /// The text of the reference about the key.
    pub doc: Doc,
}

/// The text of the reference about a key.
pub(crate) struct Doc {
    pub text: &'static str,
    /// The value that holds where the key is left out; or, in `unless`, words about it.
    #[cfg(test)]
    pub default: fn() -> Option<serde_json::Value>,
    #[cfg(test)]
    pub unless: &'static str,
}

/// The form of the value of a key.
#[derive(Clone, Copy)]
pub(crate) enum FieldShape {
    /// A text. Numbers and truth values become texts. In JSON, an empty text counts as not given.
    Text,
    /// A text that is one of these words.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the reference pages"))]
    Word(&'static [&'static str]),
    /// A whole number, or one written as a text.
    Integer,
    /// `true` or `false`, or one of them as a text.
    Bool,
    /// A duration such as `"15s"`; in JSON also nanoseconds.
    Duration,
    /// A list of texts.
    TextList,
    /// A list of lists of texts.
    TextLists,
    /// Names with texts, as a block or as an object: `env`, `meta`.
    TextMap,
    /// Names with lists of texts, as a block or as an object: `header`. A single text stands for a list of one.
    TextListMap,
    /// Anything, as a block or as an object: `config`, which the driver checks.
    Free,
    /// One value, whatever it is.
    Any,
    /// A block.
    Block {
        /// The description of the block.
        schema: &'static BlockSchema,
        /// How often the block may be there.
        form: BlockForm,
    },
    /// A key that is valid in Nomad and not supported here.
    Unsupported {
        /// What to do instead; empty where there is nothing to say.
        hint: &'static str,
        /// The values that mean the same as leaving the key out; see [`is_neutral`].
        neutral: &'static [&'static str],
        /// The values that are accepted although they have no effect.
        missed: Option<&'static IgnoredValues>,
        /// Whether the feature is left to other programs, so that the message does not say "yet".
        left_out: bool,
        /// Whether the presence of the block has a meaning, whatever the block holds.
        is_said_by_being_there: bool,
    },
    /// A key of JSON that servers write, or read before the job. It is skipped.
    Served,
}

/// How often a block may be there, and how it stands in JSON.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockForm {
    /// Once; in JSON an object.
    One,
    /// Any number of times; in JSON a list of objects.
    List,
    /// Once for each name; in JSON an object of objects.
    ByName,
}

/// Values that are accepted and have no effect, with a warning that says so.
pub(crate) struct IgnoredValues {
    /// The values, in the form of the neutral values of [`FieldShape::Unsupported`].
    pub values: &'static [&'static str],
    /// What happens instead, in words for the warning.
    pub instead: &'static str,
    /// Whether the warning is also given for JSON. There, clients fill in Nomad's defaults, so this is only for
    /// values whose effect users miss although they did not write them.
    pub in_json: bool,
}

/// The range of values that a key accepts.
#[derive(Clone, Copy)]
pub(crate) enum FieldBounds {
    None,
    /// Whole numbers from the first one to the second one.
    Whole(i64, i64),
    /// Whole numbers as for `Whole`. In JSON, where absent fields are often zero, zero counts as not given.
    NotZero(i64, i64),
    /// Durations from the first one to the second one.
    Time(Duration, Duration),
    /// The key is read and never written as JSON, because no single value of the model corresponds to it.
    Unwritten,
}

/// The largest number that a count can have.
pub(crate) const MOST: i64 = u32::MAX as i64;

/// The shape of a key that is not supported, without a hint.
pub(crate) const LATER: FieldShape = hint("");

/// The shape of a key that is not supported, with a hint at what to do instead.
pub(crate) const fn hint(hint: &'static str) -> FieldShape {
    neutral(hint, &[])
}

/// The shape of a key that is not supported. With one of the neutral values, it is as if it were not there.
pub(crate) const fn neutral(hint: &'static str, neutral: &'static [&'static str]) -> FieldShape {
    let (left_out, is_said_by_being_there) = (false, false);
    FieldShape::Unsupported { hint, neutral, missed: None, left_out, is_said_by_being_there }
}

/// The shape of a key whose feature is left to other programs for good, with a hint at what to do instead.
pub(crate) const fn left_out(hint: &'static str) -> FieldShape {
    neutral_left_out(hint, &[])
}

/// The same shape with neutral values: with one of them, the key is as if it were not there.
pub(crate) const fn neutral_left_out(
    hint: &'static str,
    neutral: &'static [&'static str],
) -> FieldShape {
    let (left_out, is_said_by_being_there) = (true, false);
    FieldShape::Unsupported { hint, neutral, missed: None, left_out, is_said_by_being_there }
}

/// The shape of a block that makes the job another kind of job, even when it is empty. That kind is left to other
/// programs for good.
pub(crate) const fn left_out_kind(hint: &'static str) -> FieldShape {
    let (left_out, is_said_by_being_there) = (true, true);
    FieldShape::Unsupported { hint, neutral: &[], missed: None, left_out, is_said_by_being_there }
}

/// The hint at keys of Consul.
pub(crate) const CONSUL: &str =
    "this agent does not use Consul; it keeps a list of services itself, for provider = \"nomad\"";
/// The hint at keys of the service mesh of Consul.
pub(crate) const MESH: &str = "it belongs to Consul's service mesh, which this agent is not part of; leave it \
                               out and \
                               use ports of the network";
/// The hint at keys of Vault.
pub(crate) const VAULT: &str =
    "this agent does not use Vault; pass secrets by an artifact or a variable";

/// The keys of one block, as a struct with typed members.
pub(crate) trait Keys: Sized {
    /// The description of the block.
    const SCHEMA: &'static BlockSchema;

    /// Take the values, in the order of the description.
    fn take(items: &mut BlockItems, cx: &mut Context<'_>) -> Self;

    /// The label of the block; always present where the block takes one.
    fn label(&self) -> &tree::SpannedKey;

    /// The values as JSON, in the order of the description.
    fn values(&self) -> Vec<Option<serde_json::Value>>;

    /// The block as Nomad's JSON.
    fn json(&self) -> Map<String, serde_json::Value> {
        let label = |member: &str| (member.to_owned(), self.label().name.clone().into());
        let mut values = self.values().into_iter();
        let member = |field: &Field| {
            let value = match values.next() {
                None => serde_json::from_str(field.written).ok(),
                Some(None) if matches!(field.bounds, FieldBounds::NotZero(..)) => Some(0.into()),
                Some(value) => Some(value.unwrap_or_default()),
            };
            let written = !field.json.is_empty() && !matches!(field.bounds, FieldBounds::Unwritten);
            value.filter(|_| written).map(|value| (field.json.to_owned(), value))
        };
        let label = Self::SCHEMA.label.map(label).into_iter();
        label.chain(Self::SCHEMA.fields.iter().filter_map(member)).collect()
    }

    /// Read a block. A value that cannot be used is reported and counts as not given.
    fn read(block: tree::Block, cx: &mut Context<'_>) -> Self {
        Self::take(&mut BlockItems::sort(block, Self::SCHEMA, cx), cx)
    }
}

/// Describes a block: defines a struct with one member for each key, and its [`BlockSchema`].
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
            pub label: $crate::tree::SpannedKey,
            $($(#[doc = $doc])* pub $field: $kind,)*
        }

        impl $crate::keys::Keys for $name {
            const SCHEMA: &'static $crate::keys::BlockSchema = &$crate::keys::BlockSchema {
                what: $what,
                label: keys!(@label $($label)?),
                fields: &[
                    $($crate::keys::Field {
                        hcl: keys!(@hcl $field $($hcl)?),
                        json: concat!($(stringify!($json))?),
                        shape: <$kind as $crate::keys::FieldKind>::SHAPE,
                        bounds: keys!(@or $crate::keys::FieldBounds::None; $($bounds)?),
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

            fn take(items: &mut $crate::keys::BlockItems, cx: &mut $crate::keys::Context<'_>) -> Self {
                Self {
                    at: items.at,
                    label: std::mem::take(&mut items.label),
                    $($field: items.next::<$kind>(cx)$(.or($default))?,)*
                }
            }

            fn label(&self) -> &$crate::tree::SpannedKey {
                &self.label
            }

            fn values(&self) -> Vec<Option<serde_json::Value>> {
                vec![$($crate::keys::FieldKind::json(&self.$field),)*]
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
    (@default $kind:ty; $given:expr) => { $crate::keys::FieldKind::json(&<$kind>::default().or($given)) };
    (@defaults $name:ident;) => { Vec::new() };
    (@defaults $name:ident; $base:expr) => {
        $crate::keys::Keys::values(&$name::from($base))
    };
    (@model $name:ident [] $($field:ident)*) => {};
    (@model $name:ident [$model:ident] $($field:ident)*) => {
        impl $name {
            /// The values of the block, with those of `base` for the keys that are not given.
            pub(crate) fn apply_to(self, base: $model) -> $model {
                $model { $($field: $crate::keys::ValueOr::value_or(self.$field, base.$field),)* }
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
        bounds: FieldBounds::None,
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

    /// The name of the key in one syntax; empty where the key has none there.
    pub(crate) fn name(&self, syntax: Syntax) -> &'static str {
        match syntax {
            Syntax::Hcl => self.hcl,
            Syntax::Json => self.json,
        }
    }
}

impl BlockSchema {
    /// The names that can be written, for suggestions. Supported ones come first.
    pub(crate) fn names(&self, syntax: Syntax) -> impl Iterator<Item = &'static str> {
        let names = self.fields.iter().filter(|field| !matches!(field.shape, FieldShape::Served));
        names.map(move |field| field.name(syntax)).filter(|n| !n.is_empty() && !n.contains(' '))
    }
}

/// Whether a value is one of those that mean the same as leaving the key out. Scalars are compared as texts and,
/// where they are durations, also as durations, so that `10m` equals `600s` and the same time in nanoseconds. `[]`
/// is the empty list. An object stands for all objects that have its members, and for lists of such objects.
pub(crate) fn is_neutral(value: &SpannedValue, neutral: &[&str]) -> bool {
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
        // In a list of objects, every object has to be neutral.
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
