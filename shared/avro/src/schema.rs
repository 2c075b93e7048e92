//! Schemas: what is written, in the order of the bytes.

use std::collections::BTreeMap;

use heddle_columns::ValueKind;
use heddle_columns::typed::{ColumnShape, LeafKind, TypedColumn, TypedColumns};
use serde_json::{Map, Value};

use crate::AvroError;

/// Types within each other at the most, in a schema and in values.
pub(crate) const DEPTH_MAX: usize = 64;

/// The number of a type in a schema.
pub(crate) type TypeId = usize;

/// A type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AvroType {
    Null,
    Boolean,
    /// `int`, `long`; dates and times have a name.
    Whole(Option<&'static str>),
    Float,
    Double,
    /// `string`, `bytes`.
    Text,
    /// `bytes` that are a decimal number.
    Decimal {
        scale: i32,
    },
    /// Bytes of a length; with a scale they are a decimal number.
    Fixed {
        len: usize,
        scale: Option<i32>,
    },
    Enum(Vec<Vec<u8>>),
    Array(TypeId),
    Map(TypeId),
    Union(Vec<TypeId>),
    /// Its fields.
    Record(Vec<TypeId>),
}

/// The schema of a file of records.
#[derive(Clone, Debug)]
pub(crate) struct AvroSchema {
    pub(crate) types: Vec<AvroType>,
    /// The fields of a record, with their names.
    pub(crate) fields: Vec<(String, TypeId)>,
}

impl AvroSchema {
    /// Of its JSON.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, AvroError> {
        let json: Value = serde_json::from_slice(json)
            .map_err(|error| AvroError(format!("its schema is not JSON: {error}")))?;
        let mut parser = SchemaParser { types: Vec::new(), named: BTreeMap::new() };
        let root = parser.parse(&json, "", 0)?;
        let names = json.get("fields").and_then(Value::as_array);
        let (Some(names), AvroType::Record(types)) = (names, &parser.types[root]) else {
            return Err(AvroError("its schema is not a record".to_owned()));
        };
        let name = |field: &Value| text_of(field.get("name")).unwrap_or_default().to_owned();
        let fields = names.iter().map(name).zip(types.iter().copied()).collect();
        Ok(Self { types: parser.types, fields })
    }

    /// What a value of this type may be beside null, if that is one type. A union's other branch.
    pub(crate) fn beside_null(&self, id: TypeId) -> Option<TypeId> {
        let AvroType::Union(branches) = &self.types[id] else { return Some(id) };
        let mut others = branches.iter().filter(|branch| self.types[**branch] != AvroType::Null);
        match (others.next(), others.next()) {
            (Some(other), None) if !matches!(self.types[*other], AvroType::Union(_)) => {
                Some(*other)
            }
            _ => None,
        }
    }

    /// The columns; each has the leaf of its number.
    pub(crate) fn columns(&self) -> TypedColumns {
        let mut all = TypedColumns::default();
        for (place, (name, id)) in self.fields.iter().enumerate() {
            let (leaf, (shape, kind)) = self.column(place, *id);
            all.leaves.push(leaf);
            all.columns.push(TypedColumn { name: name.clone(), kind, shape });
        }
        all
    }

    fn column(&self, place: usize, id: TypeId) -> (LeafKind, (ColumnShape, ValueKind)) {
        let other = |name| (LeafKind::Unread(name), ColumnShape::other(name));
        let Some(own) = self.beside_null(id) else { return other("a union of types") };
        match &self.types[own] {
            AvroType::Array(items) => {
                let leaf = self.beside_null(*items).and_then(|items| self.leaf(items));
                let leaf = leaf.unwrap_or(LeafKind::Unread("a list of another type"));
                (leaf, (ColumnShape::List(place), leaf.list()))
            }
            AvroType::Map(values) => {
                match self.beside_null(*values).and_then(|values| self.leaf(values)) {
                    Some(leaf @ (LeafKind::Integer | LeafKind::Number | LeafKind::Decimal)) => {
                        (leaf, ColumnShape::map(place))
                    }
                    _ => other("a map of another type"),
                }
            }
            AvroType::Record(_) => other("a record"),
            AvroType::Null => other("null"),
            _ => match self.leaf(own) {
                Some(leaf) => (leaf, (ColumnShape::Value(place), leaf.value())),
                None => other("another type"),
            },
        }
    }

    fn leaf(&self, id: TypeId) -> Option<LeafKind> {
        Some(match &self.types[id] {
            AvroType::Boolean => LeafKind::Boolean,
            AvroType::Whole(None) => LeafKind::Integer,
            AvroType::Whole(Some(name)) => LeafKind::Instant(name),
            AvroType::Float | AvroType::Double => LeafKind::Number,
            AvroType::Text | AvroType::Enum(_) => LeafKind::Text,
            AvroType::Decimal { .. } | AvroType::Fixed { scale: Some(_), .. } => LeafKind::Decimal,
            AvroType::Fixed { scale: None, .. } => LeafKind::Unread("bytes of a fixed length"),
            AvroType::Null
            | AvroType::Array(_)
            | AvroType::Map(_)
            | AvroType::Union(_)
            | AvroType::Record(_) => return None,
        })
    }
}

struct SchemaParser {
    types: Vec<AvroType>,
    /// By their full names.
    named: BTreeMap<String, TypeId>,
}

impl SchemaParser {
    /// `space`: the namespace around.
    fn parse(&mut self, json: &Value, space: &str, depth: usize) -> Result<TypeId, AvroError> {
        if depth > DEPTH_MAX {
            return Err(AvroError(format!("its schema is nested deeper than {DEPTH_MAX} types")));
        }
        match json {
            Value::String(name) => match primitive(name, &Map::new()) {
                Some(own) => Ok(self.add(own)),
                None => {
                    let id = self.named.get(&full_name(name, space));
                    let id = id.or_else(|| self.named.get(name.as_str())).copied();
                    id.ok_or_else(|| AvroError(format!("its schema has no type {name:?}")))
                }
            },
            Value::Array(branches) => {
                let branches = branches.iter().map(|branch| self.parse(branch, space, depth + 1));
                let branches = branches.collect::<Result<_, _>>()?;
                Ok(self.add(AvroType::Union(branches)))
            }
            Value::Object(object) => self.parse_object(object, space, depth),
            _ => Err(AvroError("its schema has a type that is not a name".to_owned())),
        }
    }

    fn parse_object(
        &mut self,
        object: &Map<String, Value>,
        space: &str,
        depth: usize,
    ) -> Result<TypeId, AvroError> {
        let Some(kind) = object.get("type") else {
            return Err(AvroError("its schema has a type without a name".to_owned()));
        };
        // A type may stand in an object of its own.
        let Some(kind) = kind.as_str() else { return self.parse(kind, space, depth + 1) };
        if let Some(own) = primitive(kind, object) {
            return Ok(self.add(own));
        }
        let inner = |key: &str| {
            object.get(key).ok_or_else(|| AvroError(format!("its schema has {kind} without {key}")))
        };
        match kind {
            "array" => {
                let items = self.parse(inner("items")?, space, depth + 1)?;
                Ok(self.add(AvroType::Array(items)))
            }
            "map" => {
                let values = self.parse(inner("values")?, space, depth + 1)?;
                Ok(self.add(AvroType::Map(values)))
            }
            "enum" => {
                let symbols = inner("symbols")?.as_array().into_iter().flatten();
                let symbols =
                    symbols.map(|name| text_of(Some(name)).unwrap_or_default().as_bytes().to_vec());
                let own = AvroType::Enum(symbols.collect());
                Ok(self.name(object, space, own).0)
            }
            "fixed" => {
                let len = inner("size")?.as_u64().and_then(|len| usize::try_from(len).ok());
                let len =
                    len.ok_or_else(|| AvroError("its schema has fixed without size".into()))?;
                let own = AvroType::Fixed { len, scale: decimal_scale(object) };
                Ok(self.name(object, space, own).0)
            }
            "record" | "error" => {
                let fields = inner("fields")?.as_array().cloned().unwrap_or_default();
                // Named before its fields, which may be of its type.
                let (id, space) = self.name(object, space, AvroType::Record(Vec::new()));
                let field = |field: &Value| {
                    let own = field.get("type").unwrap_or(&Value::Null);
                    self.parse(own, &space, depth + 1)
                };
                let fields = fields.iter().map(field).collect::<Result<_, _>>()?;
                self.types[id] = AvroType::Record(fields);
                Ok(id)
            }
            // A named type.
            other => self.parse(&Value::String(other.to_owned()), space, depth + 1),
        }
    }

    fn add(&mut self, own: AvroType) -> TypeId {
        self.types.push(own);
        self.types.len() - 1
    }

    /// Adds a type with a name; returns its namespace too.
    fn name(
        &mut self,
        object: &Map<String, Value>,
        space: &str,
        own: AvroType,
    ) -> (TypeId, String) {
        let space = text_of(object.get("namespace")).unwrap_or(space);
        let name = full_name(text_of(object.get("name")).unwrap_or_default(), space);
        let space = name.rsplit_once('.').map_or("", |(space, _)| space).to_owned();
        let id = self.add(own);
        self.named.insert(name, id);
        (id, space)
    }
}

fn text_of(value: Option<&Value>) -> Option<&str> {
    value.and_then(Value::as_str)
}

/// A name with its namespace, unless it has one.
fn full_name(name: &str, space: &str) -> String {
    if space.is_empty() || name.contains('.') {
        return name.to_owned();
    }
    format!("{space}.{name}")
}

/// A type without parts, with its logical type.
fn primitive(name: &str, object: &Map<String, Value>) -> Option<AvroType> {
    let instant = match text_of(object.get("logicalType")) {
        Some("date") => Some("a date"),
        Some("time-millis" | "time-micros") => Some("a time"),
        Some(logical) if logical.contains("timestamp-") => Some("a timestamp"),
        _ => None,
    };
    Some(match name {
        "null" => AvroType::Null,
        "boolean" => AvroType::Boolean,
        "int" | "long" => AvroType::Whole(instant),
        "float" => AvroType::Float,
        "double" => AvroType::Double,
        "bytes" | "string" => match decimal_scale(object) {
            Some(scale) if name == "bytes" => AvroType::Decimal { scale },
            _ => AvroType::Text,
        },
        _ => return None,
    })
}

/// The scale, if the type is a decimal number.
fn decimal_scale(object: &Map<String, Value>) -> Option<i32> {
    let is_decimal = text_of(object.get("logicalType")) == Some("decimal");
    let scale = object.get("scale").and_then(Value::as_i64).unwrap_or(0);
    is_decimal.then(|| i32::try_from(scale).unwrap_or(0))
}
