//! Resources of a container: memory, vcores, and resource types of the cluster.

use std::collections::BTreeMap;
use std::fmt;

use crate::proto;

/// Memory in MiB, YARN's unit (`Resource.memorySize`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Memory(u64);

impl Memory {
    /// Memory of `mib` MiB.
    pub const fn mib(mib: u64) -> Self {
        Self(mib)
    }

    /// The memory in MiB.
    pub const fn as_mib(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB", self.0)
    }
}

/// Virtual cores (`Resource.virtualCores`): shares of processor cores. The administrator sets the number per core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VCores(pub u32);

impl fmt::Display for VCores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0 == 1 { "" } else { "s" };
        write!(f, "{} vcore{plural}", self.0)
    }
}

/// An amount of a named resource (`ResourceInformation`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Amount {
    /// Amount in `unit`.
    pub value: i64,
    /// `""` for countable resources, else a prefix such as `G` or `Gi`. The receiver converts it.
    pub unit: String,
}

impl Amount {
    /// A number of countable resources, such as GPUs.
    pub fn count(value: u32) -> Self {
        Self { value: value.into(), unit: String::new() }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.value, self.unit)
    }
}

/// Resources of an ask or a container (`Resource`). A grant may have more than its ask, because the ResourceManager rounds
/// up to multiples of its minimum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resources {
    /// Memory. The node kills a container that exceeds it.
    pub memory: Memory,
    /// Virtual cores. A scheduler that compares memory only grants 1.
    pub vcores: VCores,
    /// Other resources by name, such as `yarn.io/gpu`; see [`ResourceTypes::check`].
    pub others: BTreeMap<String, Amount>,
}

impl Resources {
    /// Memory and vcores, nothing else.
    pub fn new(memory: Memory, vcores: VCores) -> Self {
        Self { memory, vcores, others: BTreeMap::new() }
    }

    /// With an amount of a named resource.
    pub fn with(mut self, name: impl Into<String>, amount: Amount) -> Self {
        self.others.insert(name.into(), amount);
        self
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.memory, self.vcores)?;
        for (name, amount) in &self.others {
            write!(f, ", {amount} {name}")?;
        }
        Ok(())
    }
}

/// The multiples in which YARN grants resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationSteps {
    /// Of memory, MiB; at least 1.
    pub memory_mib: u64,
    /// Of vcores; at least 1.
    pub vcores: u32,
}

impl AllocationSteps {
    /// The resources that YARN grants for a request.
    #[must_use]
    pub fn rounded(self, asked: &Resources) -> Resources {
        let memory = asked.memory.as_mib().max(1);
        let vcores = asked.vcores.0.max(1);
        Resources {
            memory: Memory::mib(memory.next_multiple_of(self.memory_mib.max(1))),
            vcores: VCores(vcores.next_multiple_of(self.vcores.max(1))),
            others: asked.others.clone(),
        }
    }
}

/// The resource types of a cluster (`ResourceTypeInfo`), by name with their units.
///
/// **A type that the ResourceManager does not know is dropped from a request without a word**, and the container
/// comes without it. So check before asking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceTypes(pub BTreeMap<String, String>);

/// A request that the cluster cannot grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// The cluster does not know the type.
    #[error("the cluster does not have the resource {name}; it has {}", .known.join(", "))]
    UnknownType {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// More than any container of this cluster may have.
    #[error("{asked} is more than the {limit} that a container may have on this cluster")]
    AboveMaximum {
        /// The part that was asked for.
        asked: String,
        /// The most that the ResourceManager grants.
        limit: String,
    },
}

impl ResourceTypes {
    /// Rejects resources that the ResourceManager would ignore, or refuse together with the rest of a call.
    ///
    /// `maximum` is `maximumCapability` of a new application or of a registration. The ResourceManager checks amounts whose
    /// units differ from the maximum's.
    ///
    /// # Errors
    /// The first type that is unknown, or the first part above the maximum.
    pub fn check(&self, asked: &Resources, maximum: &Resources) -> Result<(), ResourceError> {
        let above =
            |asked: String, limit: String| Err(ResourceError::AboveMaximum { asked, limit });
        if asked.memory > maximum.memory {
            return above(asked.memory.to_string(), maximum.memory.to_string());
        }
        if asked.vcores > maximum.vcores {
            return above(asked.vcores.to_string(), maximum.vcores.to_string());
        }
        for (name, amount) in asked.others.iter().filter(|(_, amount)| amount.value != 0) {
            if !self.0.contains_key(name) {
                let known = self.0.keys().cloned().collect();
                return Err(ResourceError::UnknownType { name: name.clone(), known });
            }
            if let Some(limit) = maximum.others.get(name)
                && limit.unit == amount.unit
                && limit.value < amount.value
            {
                return above(format!("{amount} {name}"), format!("{limit} {name}"));
            }
        }
        Ok(())
    }

    pub(crate) fn from_proto(types: &[proto::ResourceTypeInfoProto]) -> Self {
        Self(types.iter().map(|t| (t.name.clone(), t.units.clone().unwrap_or_default())).collect())
    }
}

/// Names of the map's entries that repeat the fields 1 and 2.
const IN_FIELDS: [&str; 2] = ["memory-mb", "vcores"];

impl From<&Resources> for proto::ResourceProto {
    fn from(resources: &Resources) -> Self {
        let others =
            resources.others.iter().map(|(name, amount)| proto::ResourceInformationProto {
                key: name.clone(),
                value: Some(amount.value),
                units: Some(amount.unit.clone()),
                r#type: Some(proto::ResourceTypesProto::Countable.into()),
            });
        Self {
            memory: Some(i64::try_from(resources.memory.0).unwrap_or(i64::MAX)),
            virtual_cores: Some(i32::try_from(resources.vcores.0).unwrap_or(i32::MAX)),
            resource_value_map: others.collect(),
        }
    }
}

impl From<&proto::ResourceProto> for Resources {
    fn from(message: &proto::ResourceProto) -> Self {
        let others = message
            .resource_value_map
            .iter()
            .filter(|info| !IN_FIELDS.contains(&info.key.as_str()))
            .map(|info| {
                (info.key.clone(), Amount { value: info.value(), unit: info.units().to_owned() })
            });
        Self {
            // The headroom of a queue above its share is negative, which means none.
            memory: Memory(u64::try_from(message.memory()).unwrap_or(0)),
            vcores: VCores(u32::try_from(message.virtual_cores()).unwrap_or(0)),
            others: others.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Resources {
        Resources::new(Memory::mib(2048), VCores(2)).with("yarn.io/gpu", Amount::count(1))
    }

    fn known() -> ResourceTypes {
        ResourceTypes(
            [("memory-mb", "Mi"), ("vcores", ""), ("yarn.io/gpu", "")]
                .map(|(n, u)| (n.into(), u.into()))
                .into(),
        )
    }

    #[test]
    fn resources_survive_a_round_trip() {
        assert_eq!(Resources::from(&proto::ResourceProto::from(&asked())), asked());
    }

    #[test]
    fn an_unknown_resource_type_is_rejected() {
        let types = ResourceTypes([("memory-mb".into(), "Mi".into())].into());
        let error = types.check(&asked(), &asked()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the cluster does not have the resource yarn.io/gpu; it has memory-mb"
        );
        let none = Resources::new(Memory::mib(1), VCores(1)).with("yarn.io/gpu", Amount::count(0));
        assert_eq!(types.check(&none, &asked()), Ok(()), "an amount of 0 is not a request");
    }

    #[test]
    fn an_ask_above_the_maximum_names_the_limit() {
        let maximum = Resources::new(Memory::mib(1024), VCores(8));
        let error = known().check(&asked(), &maximum).unwrap_err();
        assert_eq!(
            error.to_string(),
            "2048 MiB is more than the 1024 MiB that a container may have on this cluster"
        );
        let maximum =
            Resources::new(Memory::mib(2048), VCores(8)).with("yarn.io/gpu", Amount::count(0));
        let error = known().check(&asked(), &maximum).unwrap_err();
        assert_eq!(
            error.to_string(),
            "1 yarn.io/gpu is more than the 0 yarn.io/gpu that a container may have on this cluster"
        );
        assert_eq!(known().check(&asked(), &asked()), Ok(()));
    }

    #[test]
    fn memory_and_vcores_of_the_map_are_ignored() {
        let mut message = proto::ResourceProto::from(&asked());
        message.resource_value_map[0].key = "memory-mb".into();
        assert!(Resources::from(&message).others.is_empty());
    }
}
