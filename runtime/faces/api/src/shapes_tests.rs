//! Finds the shape of a type, as a schema, from the way in which it is read.
//!
//! ```text
//! type ─ read from a probe, again and again ─► a field more of a struct each time ─► schemas by name
//! ```
//! What a type asks for while it is read is its shape. A probe answers each question with a made-up value, and
//! gives a struct one field only, so that a value that is refused hides no other field. So the schemas follow
//! from the types themselves, and no type has to say anything twice.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer,
    MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde_json::{Value, json};

/// Most readings of one type. The largest needs some hundred.
const READINGS_MAX: usize = 20_000;

/// The schemas of structs and enums, by name.
#[derive(Default)]
pub(crate) struct Shapes {
    named: RefCell<BTreeMap<&'static str, Parts>>,
    /// The names of the types that are being read, from the outermost one.
    stack: RefCell<Vec<&'static str>>,
}

/// The fields of a struct or the variants of an enum, with their schemas as far as they are known.
#[derive(Default)]
struct Parts {
    is_enum: bool,
    /// The names, in the order of the type.
    names: Vec<&'static str>,
    known: BTreeMap<&'static str, Shape>,
}

/// What is known of one place.
#[derive(Clone, Default)]
struct Shape {
    schema: Value,
    /// Whether nothing more can be learned of it.
    whole: bool,
}

impl Parts {
    /// The first one that is not known as a whole.
    fn next(&self) -> Option<&'static str> {
        let whole = |name: &str| self.known.get(name).is_some_and(|shape| shape.whole);
        self.names.iter().copied().find(|name| !whole(name))
    }
}

impl Shapes {
    /// The schema of a type. What it refers to is in [`Shapes::schemas`].
    pub(crate) fn schema_of<T: DeserializeOwned>(&self) -> Value {
        let slot = RefCell::default();
        for _ in 0..READINGS_MAX {
            // An error says that a made-up value was refused; the slot has what was learned.
            let _refused = T::deserialize(Probe { shapes: self, slot: &slot });
            self.stack.borrow_mut().clear();
            if slot.borrow().whole {
                break;
            }
        }
        let Shape { schema, whole } = slot.into_inner();
        assert!(whole, "{} is not read to its end", std::any::type_name::<T>());
        schema
    }

    /// All schemas so far, by name.
    pub(crate) fn schemas(&self) -> BTreeMap<&'static str, Value> {
        self.named.borrow().iter().map(|(name, parts)| (*name, parts.schema())).collect()
    }

    /// Read the next part of a struct or enum with `read`, and put what was learned in its place.
    fn read_part<R>(
        &self,
        (name, names, is_enum): (&'static str, &'static [&'static str], bool),
        slot: &RefCell<Shape>,
        read: impl FnOnce(Option<&'static str>, &RefCell<Shape>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let schema = json!({ "$ref": format!("#/components/schemas/{name}") });
        // The tag of an enum whose variants have their content beside it is read by the name of the enum.
        let is_tag = is_enum && self.stack.borrow().last() == Some(&name);
        if is_tag && self.named.borrow().get(name).is_some_and(|parts| !parts.is_enum) {
            let schema = json!({ "type": "string", "enum": names });
            slot.replace(Shape { schema, whole: true });
            return Err(Error::custom("a tag stands for its enum"));
        }
        if self.stack.borrow().contains(&name) {
            slot.replace(Shape { schema, whole: true });
            return Err(Error::custom("a type inside itself"));
        }
        let next = {
            let mut named = self.named.borrow_mut();
            let parts = named.entry(name).or_default();
            parts.is_enum = is_enum;
            if parts.names.is_empty() {
                parts.names = names.to_vec();
            }
            assert_eq!(parts.names, names, "two types have the name {name}");
            parts.next()
        };
        let part = RefCell::new(Shape { schema: json!({}), whole: true });
        self.stack.borrow_mut().push(name);
        let read = read(next, &part);
        self.stack.borrow_mut().pop();
        let mut named = self.named.borrow_mut();
        let parts = named.entry(name).or_default();
        if let Some(next) = next {
            parts.known.insert(next, part.into_inner());
        }
        slot.replace(Shape { schema, whole: parts.next().is_none() });
        read
    }
}

impl Parts {
    fn schema(&self) -> Value {
        let schema = |name: &&str| self.known.get(*name).map_or(json!({}), |it| it.schema.clone());
        if !self.is_enum {
            let fields: serde_json::Map<String, Value> =
                self.names.iter().map(|name| ((*name).to_owned(), schema(name))).collect();
            return json!({ "type": "object", "properties": fields });
        }
        let (units, others): (Vec<&str>, Vec<&str>) =
            self.names.iter().copied().partition(|name| schema(name).is_null());
        let of_units = (!units.is_empty()).then(|| json!({ "type": "string", "enum": units }));
        let others = others.iter().map(|name| {
            let (fields, required) = (json!({ name.to_string(): schema(name) }), [name]);
            json!({ "type": "object", "properties": fields, "required": required })
        });
        let mut all: Vec<Value> = of_units.into_iter().chain(others).collect();
        if all.len() == 1 { all.remove(0) } else { json!({ "oneOf": all }) }
    }
}

/// Answers a type that is read, and notes what it asks for.
struct Probe<'a> {
    shapes: &'a Shapes,
    slot: &'a RefCell<Shape>,
}

impl Probe<'_> {
    fn note(&self, schema: Value) {
        self.slot.replace(Shape { schema, whole: true });
    }
}

/// Numbers and truth values: the method, the schema and the made-up value.
macro_rules! plain {
    ($($method:ident $visit:ident $value:expr, $schema:tt;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.note(json!($schema));
            visitor.$visit($value)
        }
    )*};
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    plain! {
        deserialize_bool visit_bool false, { "type": "boolean" };
        deserialize_i8 visit_i64 1, { "type": "integer", "format": "int32" };
        deserialize_i16 visit_i64 1, { "type": "integer", "format": "int32" };
        deserialize_i32 visit_i64 1, { "type": "integer", "format": "int32" };
        deserialize_i64 visit_i64 1, { "type": "integer", "format": "int64" };
        deserialize_u8 visit_u64 1, { "type": "integer", "format": "int32", "minimum": 0 };
        deserialize_u16 visit_u64 1, { "type": "integer", "format": "int32", "minimum": 0 };
        deserialize_u32 visit_u64 1, { "type": "integer", "format": "int64", "minimum": 0 };
        deserialize_u64 visit_u64 1, { "type": "integer", "format": "int64", "minimum": 0 };
        deserialize_f32 visit_f64 1.0, { "type": "number", "format": "float" };
        deserialize_f64 visit_f64 1.0, { "type": "number", "format": "double" };
        deserialize_char visit_char 'a', { "type": "string" };
        deserialize_str visit_str "a", { "type": "string" };
        deserialize_string visit_str "a", { "type": "string" };
        deserialize_identifier visit_str "a", { "type": "string" };
        deserialize_bytes visit_bytes b"a", { "type": "array", "items": { "type": "integer" } };
        deserialize_byte_buf visit_bytes b"a", { "type": "array", "items": { "type": "integer" } };
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note(json!({}));
        visitor.visit_unit()
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note(json!({}));
        visitor.visit_unit()
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note(Value::Null);
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let slot = self.slot;
        let read = visitor.visit_some(self);
        let Shape { schema, whole } = slot.take();
        // A reference has no place for more than itself.
        let schema = match schema {
            Value::Object(mut fields) if !fields.is_empty() && !fields.contains_key("$ref") => {
                fields.insert("nullable".to_owned(), true.into());
                Value::Object(fields)
            }
            Value::Object(fields) if !fields.is_empty() => {
                json!({ "nullable": true, "allOf": [fields] })
            }
            other => other,
        };
        slot.replace(Shape { schema, whole });
        read
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let item = RefCell::default();
        let read = visitor.visit_seq(Items { shapes: self.shapes, item: &item, left: 1 });
        let Shape { schema, whole } = item.into_inner();
        self.slot.replace(Shape { schema: json!({ "type": "array", "items": schema }), whole });
        read
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let item = RefCell::default();
        let read = visitor.visit_seq(Items { shapes: self.shapes, item: &item, left });
        let whole = item.into_inner().whole;
        self.slot.replace(Shape { schema: json!({ "type": "array", "items": {} }), whole });
        read
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let value = RefCell::new(Shape { schema: json!({}), whole: true });
        let mut fields = OneField { shapes: self.shapes, key: Some("a"), value: &value };
        let read = visitor.visit_map(&mut fields);
        let Shape { schema, whole } = value.into_inner();
        let schema = json!({ "type": "object", "additionalProperties": schema });
        self.slot.replace(Shape { schema, whole });
        read
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let shapes = self.shapes;
        shapes.read_part((name, fields, false), self.slot, |key, value| {
            visitor.visit_map(&mut OneField { shapes, key, value })
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let shapes = self.shapes;
        shapes.read_part((name, variants, true), self.slot, |next, slot| {
            let variant = next.or(variants.first().copied());
            let variant = variant.ok_or_else(|| Error::custom("no value of this type exists"))?;
            visitor.visit_enum(OneVariant { variant, probe: Probe { shapes, slot } })
        })
    }
}

/// One item of a list, or some of a tuple.
struct Items<'a> {
    shapes: &'a Shapes,
    item: &'a RefCell<Shape>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(Probe { shapes: self.shapes, slot: self.item }).map(Some)
    }
}

/// One entry of a map, or one field of a struct.
struct OneField<'a> {
    shapes: &'a Shapes,
    key: Option<&'static str>,
    value: &'a RefCell<Shape>,
}

impl<'de> MapAccess<'de> for &mut OneField<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(key) = self.key.take() else { return Ok(None) };
        let key: StrDeserializer<'_, Error> = key.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(Probe { shapes: self.shapes, slot: self.value })
    }
}

/// One variant of an enum. That of a unit has the schema `null`.
struct OneVariant<'a> {
    variant: &'static str,
    probe: Probe<'a>,
}

impl<'de, 'a> EnumAccess<'de> for OneVariant<'a> {
    type Error = Error;
    type Variant = Probe<'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Probe<'a>), Error> {
        let name: StrDeserializer<'_, Error> = self.variant.into_deserializer();
        Ok((seed.deserialize(name)?, self.probe))
    }
}

impl<'de> VariantAccess<'de> for Probe<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        self.note(Value::Null);
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_tuple(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.note(json!({ "type": "object" }));
        let value = RefCell::default();
        visitor.visit_map(&mut OneField { shapes: self.shapes, key: None, value: &value })
    }
}

#[derive(serde::Deserialize)]
#[expect(dead_code, reason = "only its shape counts")]
#[serde(rename_all = "PascalCase")]
struct Tree {
    name: Option<String>,
    size: u64,
    kind: Kind,
    below: Vec<Tree>,
    more: BTreeMap<String, Value>,
}

#[derive(serde::Deserialize)]
#[expect(dead_code, reason = "only its shape counts")]
#[serde(rename_all = "lowercase")]
enum Kind {
    Leaf,
    Node(u8),
}

#[test]
fn a_type_is_known_by_the_way_it_is_read() {
    let shapes = Shapes::default();
    let list = shapes.schema_of::<Vec<Tree>>();
    let tree = json!({ "$ref": "#/components/schemas/Tree" });
    assert_eq!(list, json!({ "type": "array", "items": tree }));
    let wanted = json!({ "type": "object", "properties": {
        "Name": { "type": "string", "nullable": true },
        "Size": { "type": "integer", "format": "int64", "minimum": 0 },
        "Kind": { "$ref": "#/components/schemas/Kind" },
        "Below": { "type": "array", "items": tree },
        "More": { "type": "object", "additionalProperties": {} },
    }});
    assert_eq!(shapes.schemas().get("Tree"), Some(&wanted));
    let node = json!({ "type": "integer", "format": "int32", "minimum": 0 });
    let node = json!({
        "type": "object", "properties": { "node": node }, "required": ["node"],
    });
    let kind = json!({ "oneOf": [{ "type": "string", "enum": ["leaf"] }, node] });
    assert_eq!(shapes.schemas().get("Kind"), Some(&kind));
}
