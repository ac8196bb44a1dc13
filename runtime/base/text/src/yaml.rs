//! Reads YAML, from the events of the parser, into values that the caller makes. Nothing is
//! recursive: the depth is bounded before a value is made.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

/// How a language makes its values of YAML.
pub trait YamlValues {
    /// A value of the language.
    type Value;
    /// Why a value cannot be made.
    type Error;

    /// The value of a scalar. A plain one may be a number or another word of YAML; any other is a
    /// text.
    fn make_scalar(&mut self, text: &str, is_plain: bool) -> Self::Value;

    /// A list of values.
    ///
    /// # Errors
    /// When there can be no such list.
    fn make_list(&mut self, items: Vec<Self::Value>) -> Result<Self::Value, Self::Error>;

    /// A map of values.
    ///
    /// # Errors
    /// When there can be no such map.
    fn make_map(
        &mut self,
        entries: BTreeMap<String, Self::Value>,
    ) -> Result<Self::Value, Self::Error>;

    /// The text of a value that is a key.
    ///
    /// # Errors
    /// When the value cannot be a key.
    fn key_text(&mut self, key: Self::Value) -> Result<String, Self::Error>;

    /// A copy of a value, for the anchor that names it and for each alias that repeats it.
    ///
    /// # Errors
    /// When there are too many copies.
    fn copy_value(&mut self, value: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// Add those entries of a map, or of each map of a list, whose keys are missing (`<<`). `false`
    /// if the value is neither.
    fn merge_entries(
        &mut self,
        into: &mut BTreeMap<String, Self::Value>,
        from: Self::Value,
    ) -> bool;
}

/// Why a text is not read as YAML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum YamlError<E> {
    /// The text does not follow the syntax; with what is wrong.
    Syntax(String),
    /// Lists and maps are nested more deeply than allowed.
    TooDeep,
    /// An alias stands inside the value that it names.
    SelfReference,
    /// What `<<` merges is neither a map nor a list of maps.
    Merge,
    /// There is a second document.
    SecondDocument,
    /// A value cannot be made.
    Value(E),
}

impl<E> From<E> for YamlError<E> {
    fn from(error: E) -> Self {
        Self::Value(error)
    }
}

/// What to read of a text, and how much of it.
#[derive(Clone, Copy, Debug)]
pub struct YamlOptions {
    /// The deepest nesting of lists and maps.
    pub depth_max: usize,
    /// Whether what follows the first document is not read. Otherwise a second one is an error.
    pub first_document_only: bool,
}

/// A list or a map whose end was not read yet, and the number of the anchor that names it.
struct OpenYaml<V> {
    anchor: usize,
    content: OpenContent<V>,
}

enum OpenContent<V> {
    List(Vec<V>),
    /// The entries of a map, and the key of the next value.
    Map(BTreeMap<String, V>, Option<String>),
}

/// Read a text. `None` means that there is no document in it.
///
/// # Errors
/// See [`YamlError`].
pub fn read<M: YamlValues>(
    text: &str,
    options: YamlOptions,
    make: &mut M,
) -> Result<Option<M::Value>, YamlError<M::Error>> {
    let mut open: Vec<OpenYaml<M::Value>> = Vec::new();
    let mut anchors: BTreeMap<usize, M::Value> = BTreeMap::new();
    let mut document = None;
    for event in Parser::new_from_str(text) {
        let event = match event {
            Ok((event, _)) => event,
            Err(error) => return Err(YamlError::Syntax(error.to_string())),
        };
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (make.make_scalar(&text, is_plain(style, tag.as_deref())), anchor)
            }
            Event::Alias(anchor) => {
                let Some(known) = anchors.get(&anchor) else {
                    return Err(YamlError::SelfReference);
                };
                (make.copy_value(known)?, 0)
            }
            Event::SequenceStart(anchor, ..) | Event::MappingStart(anchor, ..) => {
                if open.len() >= options.depth_max {
                    return Err(YamlError::TooDeep);
                }
                let content = match event {
                    Event::SequenceStart(..) => OpenContent::List(Vec::new()),
                    _ => OpenContent::Map(BTreeMap::new(), None),
                };
                open.push(OpenYaml { anchor, content });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(OpenYaml { anchor, content: OpenContent::List(items) }) => {
                    (make.make_list(items)?, anchor)
                }
                Some(OpenYaml { anchor, content: OpenContent::Map(entries, _) }) => {
                    (make.make_map(entries)?, anchor)
                }
                None => continue,
            },
            Event::DocumentEnd if options.first_document_only => break,
            Event::DocumentStart(_) if document.is_some() => {
                return Err(YamlError::SecondDocument);
            }
            _ => continue,
        };
        if anchor != 0 {
            anchors.insert(anchor, make.copy_value(&value)?);
        }
        match open.last_mut() {
            None => document = Some(value),
            Some(parent) => put_value(&mut parent.content, value, make)?,
        }
    }
    Ok(document)
}

/// Put a value into the list or the map that it stands in: in a map, keys and values take turns.
fn put_value<M: YamlValues>(
    parent: &mut OpenContent<M::Value>,
    value: M::Value,
    make: &mut M,
) -> Result<(), YamlError<M::Error>> {
    match parent {
        OpenContent::List(items) => items.push(value),
        OpenContent::Map(entries, key) => match key.take() {
            None => *key = Some(make.key_text(value)?),
            // Entries that are written in the map itself override those that are merged.
            Some(merge) if merge == "<<" => {
                if !make.merge_entries(entries, value) {
                    return Err(YamlError::Merge);
                }
            }
            Some(known) => {
                entries.insert(known, value);
            }
        },
    }
    Ok(())
}

fn is_plain(style: ScalarStyle, tag: Option<&Tag>) -> bool {
    style == ScalarStyle::Plain && tag.is_none_or(|tag| tag.suffix != "str")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes texts: `[a b]`, `{k:v}`, and `"a"` where a scalar is not plain.
    struct Texts {
        copies_left: usize,
    }

    impl YamlValues for Texts {
        type Value = String;
        type Error = &'static str;

        fn make_scalar(&mut self, text: &str, is_plain: bool) -> String {
            if is_plain { text.to_owned() } else { format!("{text:?}") }
        }

        fn make_list(&mut self, items: Vec<String>) -> Result<String, &'static str> {
            Ok(format!("[{}]", items.join(" ")))
        }

        fn make_map(&mut self, entries: BTreeMap<String, String>) -> Result<String, &'static str> {
            let entries: Vec<_> =
                entries.iter().map(|(key, value)| format!("{key}:{value}")).collect();
            Ok(format!("{{{}}}", entries.join(" ")))
        }

        fn key_text(&mut self, key: String) -> Result<String, &'static str> {
            if key.starts_with('[') { Err("a list is no key") } else { Ok(key) }
        }

        fn copy_value(&mut self, value: &String) -> Result<String, &'static str> {
            self.copies_left = self.copies_left.checked_sub(1).ok_or("too many copies")?;
            Ok(value.clone())
        }

        fn merge_entries(&mut self, into: &mut BTreeMap<String, String>, from: String) -> bool {
            let inner = from.strip_prefix('{').and_then(|from| from.strip_suffix('}'));
            for (key, value) in inner
                .into_iter()
                .flat_map(str::split_whitespace)
                .filter_map(|one| one.split_once(':'))
            {
                into.entry(key.to_owned()).or_insert_with(|| value.to_owned());
            }
            inner.is_some()
        }
    }

    fn read_text(text: &str) -> Result<Option<String>, YamlError<&'static str>> {
        let options = YamlOptions { depth_max: 3, first_document_only: false };
        read(text, options, &mut Texts { copies_left: 4 })
    }

    #[test]
    fn documents_are_read_with_anchors_and_merged_maps() {
        for (text, read) in [
            ("a: [1, \"b\"]", "{a:[1 \"b\"]}"),
            ("- !!str 1\n- ~", "[\"1\" ~]"),
            ("x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\n", "{x:{a:1 b:2} y:{a:1 b:3}}"),
            ("- &a 1\n- *a", "[1 1]"),
        ] {
            assert_eq!(read_text(text), Ok(Some(read.to_owned())), "{text}");
        }
        assert_eq!(read_text("# nothing"), Ok(None));
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        for (text, why) in [
            ("[[[[1]]]]", YamlError::TooDeep),
            ("&a [*a]", YamlError::SelfReference),
            ("<<: 1", YamlError::Merge),
            ("1\n---\n2", YamlError::SecondDocument),
            ("[1]: 2", YamlError::Value("a list is no key")),
            ("[&a 1, *a, *a, *a, *a]", YamlError::Value("too many copies")),
        ] {
            assert_eq!(read_text(text), Err(why), "{text}");
        }
        assert!(matches!(read_text("[1"), Err(YamlError::Syntax(_))));
        let options = YamlOptions { depth_max: 3, first_document_only: true };
        let first = read("1\n---\n2", options, &mut Texts { copies_left: 0 });
        assert_eq!(first, Ok(Some("1".to_owned())));
    }
}
