//! Values of a schema.

use heddle_columns::typed::unscaled;

use crate::AvroError;
use crate::schema::{AvroType, DEPTH_MAX, TypeId};
use crate::wire::Wire;

/// A value without parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scalar<'v> {
    /// Null, or a value that is not read.
    Missing,
    Boolean(bool),
    Whole(i64),
    Number(f64),
    Text(&'v [u8]),
}

impl Scalar<'_> {
    /// As a number, if it is one.
    pub(crate) fn number(self) -> Option<f64> {
        match self {
            Self::Boolean(is_true) => Some(f64::from(u8::from(is_true))),
            Self::Whole(number) => Some(number as f64),
            Self::Number(number) => Some(number),
            Self::Missing | Self::Text(_) => None,
        }
    }
}

/// The value of a type. Those with parts are skipped.
#[inline]
pub(crate) fn scalar<'v, 't: 'v, 'w: 'v>(
    types: &'t [AvroType],
    id: TypeId,
    wire: &mut Wire<'w>,
) -> Result<Scalar<'v>, AvroError> {
    Ok(match &types[id] {
        AvroType::Null => Scalar::Missing,
        AvroType::Boolean => Scalar::Boolean(boolean(wire)?),
        AvroType::Whole(_) => Scalar::Whole(wire.long()?),
        AvroType::Float => Scalar::Number(f32::from_le_bytes(wire.array()?).into()),
        AvroType::Double => Scalar::Number(f64::from_le_bytes(wire.array()?)),
        AvroType::Text => Scalar::Text(wire.text()?),
        AvroType::Decimal { scale } => Scalar::Number(decimal(wire.text()?, *scale)),
        AvroType::Fixed { len, scale: Some(scale) } => {
            Scalar::Number(decimal(wire.take(*len)?, *scale))
        }
        AvroType::Enum(symbols) => Scalar::Text(symbol(symbols, wire)?),
        AvroType::Union(branches) => scalar(types, branch(branches, wire)?, wire)?,
        AvroType::Fixed { .. } | AvroType::Array(_) | AvroType::Map(_) | AvroType::Record(_) => {
            skip(types, id, wire, 0)?;
            Scalar::Missing
        }
    })
}

/// Skips a value. `depth`: of the values around it.
pub(crate) fn skip(
    types: &[AvroType],
    id: TypeId,
    wire: &mut Wire<'_>,
    depth: usize,
) -> Result<(), AvroError> {
    if depth > DEPTH_MAX {
        return Err(AvroError(format!("values are nested deeper than {DEPTH_MAX}")));
    }
    match &types[id] {
        AvroType::Null => {}
        AvroType::Boolean => drop(wire.array::<1>()?),
        AvroType::Whole(_) => drop(wire.long()?),
        AvroType::Float => drop(wire.array::<4>()?),
        AvroType::Double => drop(wire.array::<8>()?),
        AvroType::Text | AvroType::Decimal { .. } => drop(wire.text()?),
        AvroType::Fixed { len, .. } => drop(wire.take(*len)?),
        AvroType::Enum(symbols) => drop(symbol(symbols, wire)?),
        AvroType::Union(branches) => skip(types, branch(branches, wire)?, wire, depth + 1)?,
        AvroType::Record(fields) => {
            fields.iter().try_for_each(|field| skip(types, *field, wire, depth + 1))?;
        }
        AvroType::Array(items) => loop {
            let count = wire.items()?;
            if count == 0 {
                break;
            }
            (0..count).try_for_each(|_| skip(types, *items, wire, depth + 1))?;
        },
        AvroType::Map(values) => loop {
            let count = wire.items()?;
            if count == 0 {
                break;
            }
            for _ in 0..count {
                wire.text()?;
                skip(types, *values, wire, depth + 1)?;
            }
        },
    }
    Ok(())
}

/// The branch of a union that is written.
#[inline(always)] // Most values of a table have one.
pub(crate) fn branch(branches: &[TypeId], wire: &mut Wire<'_>) -> Result<TypeId, AvroError> {
    let number = wire.long()?;
    let branch = usize::try_from(number).ok().and_then(|number| branches.get(number));
    branch.copied().ok_or_else(|| unknown_branch(number, branches))
}

#[cold]
fn unknown_branch(number: i64, branches: &[TypeId]) -> AvroError {
    AvroError(format!("branch {number} of {}", branches.len()))
}

fn boolean(wire: &mut Wire<'_>) -> Result<bool, AvroError> {
    match wire.array()? {
        [0] => Ok(false),
        [1] => Ok(true),
        [other] => Err(AvroError(format!("a Boolean of {other}"))),
    }
}

fn symbol<'v>(symbols: &'v [Vec<u8>], wire: &mut Wire<'_>) -> Result<&'v [u8], AvroError> {
    let number = wire.long()?;
    let symbol = usize::try_from(number).ok().and_then(|number| symbols.get(number));
    let symbol =
        symbol.ok_or_else(|| AvroError(format!("symbol {number} of {}", symbols.len())))?;
    Ok(symbol)
}

fn decimal(bytes: &[u8], scale: i32) -> f64 {
    unscaled(bytes) / 10f64.powi(scale)
}
