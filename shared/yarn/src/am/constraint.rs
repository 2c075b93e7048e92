//! Placement constraints by tag: which containers may share a node or rack.

use crate::proto;

/// Places containers with the tag [`tag`](Self::tag) only where the number of this application's containers with the tag
/// [`neighbour`](Self::neighbour) is between `min` and `max` (`PlacementConstraints.cardinality`, target `allocationTag`,
/// namespace `self`).
///
/// For asks with [`RequestedPlacement::Tagged`](super::RequestedPlacement::Tagged). It is effective only if
/// `yarn.resourcemanager.placement-constraints.handler` is `scheduler`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// Tag of the constrained containers.
    pub tag: String,
    /// Tag of the counted containers; may be the same.
    pub neighbour: String,
    /// Where they are counted.
    pub scope: Scope,
    /// Smallest number before the new container is added.
    pub min: u32,
    /// Largest number before the new container is added; `None` for no limit.
    pub max: Option<u32>,
}

/// The area in which containers are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The same node.
    Node,
    /// The same rack.
    Rack,
}

impl Constraint {
    /// At most `most` containers with this tag on a node; `most` is at least 1.
    pub fn at_most_per_node(tag: impl Into<String>, most: u32) -> Self {
        let tag = tag.into();
        let max = Some(most.saturating_sub(1));
        Self { neighbour: tag.clone(), tag, scope: Scope::Node, min: 0, max }
    }

    /// Containers with `tag` only on nodes that have one with `neighbour`.
    pub fn beside(tag: impl Into<String>, neighbour: impl Into<String>) -> Self {
        Self { tag: tag.into(), neighbour: neighbour.into(), scope: Scope::Node, min: 1, max: None }
    }
}

impl From<&Constraint> for proto::PlacementConstraintProto {
    fn from(constraint: &Constraint) -> Self {
        let target = proto::PlacementConstraintTargetProto {
            target_type: proto::TargetTypeProto::AllocationTag.into(),
            // The namespace of tags: this application's own.
            target_key: Some("self".to_owned()),
            target_values: vec![constraint.neighbour.clone()],
        };
        let number = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
        let simple = proto::SimplePlacementConstraintProto {
            scope: match constraint.scope {
                Scope::Node => "node".to_owned(),
                Scope::Rack => "rack".to_owned(),
            },
            target_expressions: vec![target],
            min_cardinality: Some(number(constraint.min)),
            max_cardinality: Some(constraint.max.map_or(i32::MAX, number)),
        };
        Self { simple_constraint: Some(simple), composite_constraint: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_one_requires_none_before_it() {
        let message = proto::PlacementConstraintProto::from(&Constraint::at_most_per_node("ps", 1));
        let simple = message.simple_constraint.unwrap();
        assert_eq!((simple.min_cardinality, simple.max_cardinality), (Some(0), Some(0)));
        assert_eq!(
            (simple.target_expressions[0].target_values[0].as_str(), simple.scope.as_str()),
            ("ps", "node")
        );
    }
}
