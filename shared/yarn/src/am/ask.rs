//! What is wanted, and the rows that say it to the ResourceManager.

use std::collections::BTreeMap;

use super::constraint::Constraint;
use crate::container::{AskId, ExecutionType, Priority};
use crate::proto;
use crate::resource::Resources;

/// One kind of container that is wanted. How many is said beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// What each has at least.
    pub resources: Resources,
    /// Lower is served first. The ResourceManager keeps asks of one priority apart by their [`AskId`].
    pub priority: Priority,
    /// Where.
    pub placement: RequestedPlacement,
    /// One node label (`node_label_expression`); `None`: the queue's default.
    pub label: Option<String>,
    /// Guaranteed or opportunistic.
    pub execution_type: ExecutionType,
}

/// Where containers should be (`ResourceRequest.resource_name`, `relax_locality`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RequestedPlacement {
    /// Anywhere.
    #[default]
    Any,
    /// On these nodes or racks.
    Near {
        /// Wanted nodes. Their racks are asked for too, because YARN gives a node only through its rack.
        nodes: Vec<NodeName>,
        /// Further wanted racks.
        racks: Vec<String>,
        /// After some scheduling rounds take any node (`relax_locality` of the `*` row). `false`: these or none.
        relax: bool,
    },
    /// Where the constraint allows; the container gets its tag. Sent as a scheduling request. **Only where
    /// `yarn.resourcemanager.placement-constraints.handler` is on**: a default cluster refuses it.
    Tagged(Constraint),
}

/// A node as asks name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName {
    /// Host of its [`NodeId`](crate::NodeId); with `yarn.scheduler.include-port-in-node-name` `host:port`.
    pub host: String,
    /// Its rack, from [`NodeReport::rack`](crate::NodeReport::rack).
    pub rack: String,
}

/// The rack of nodes for which the administrator named none.
pub const DEFAULT_RACK: &str = "/default-rack";
/// The row that counts all.
pub(super) const ANY: &str = "*";

/// What tells rows of the ResourceManager's table apart: a row with the same key replaces the earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RowKey {
    pub(super) ask: AskId,
    pub(super) priority: Priority,
    pub(super) name: String,
}

/// The rest of a row. `count` is absolute: how many are still wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestRow {
    pub(super) count: u32,
    pub(super) resources: Resources,
    pub(super) relax: bool,
    pub(super) label: Option<String>,
    pub(super) execution_type: ExecutionType,
    /// A constraint makes it a scheduling request.
    pub(super) constraint: Option<Constraint>,
}

/// The rows that say "`count` more of this".
pub(super) fn rows(id: AskId, ask: &Ask, count: u32) -> BTreeMap<RowKey, RequestRow> {
    let mut rows = BTreeMap::new();
    let mut add = |name: &str,
                   relax: bool,
                   label: Option<String>,
                   constraint: Option<Constraint>| {
        let key = RowKey { ask: id, priority: ask.priority, name: name.to_owned() };
        let (resources, execution_type) = (ask.resources.clone(), ask.execution_type);
        rows.insert(key, RequestRow { count, resources, relax, label, execution_type, constraint });
    };
    match &ask.placement {
        RequestedPlacement::Any => add(ANY, true, ask.label.clone(), None),
        RequestedPlacement::Tagged(constraint) => add(ANY, true, None, Some(constraint.clone())),
        RequestedPlacement::Near { nodes, racks, relax } => {
            for node in nodes {
                // A hard ask is hard by the rows above it: rack and * do not relax, the node's own row does.
                add(&node.rack, *relax, None, None);
                add(&node.host, true, None, None);
            }
            for rack in racks {
                add(rack, true, None, None);
            }
            // A label may stand on the * row alone.
            add(ANY, *relax, ask.label.clone(), None);
        }
    }
    rows
}

/// The rows as messages: resource requests and, for tagged asks, scheduling requests.
pub(super) fn to_proto(
    rows: &BTreeMap<RowKey, RequestRow>,
) -> (Vec<proto::ResourceRequestProto>, Vec<proto::SchedulingRequestProto>) {
    let (mut asks, mut scheduling) = (Vec::new(), Vec::new());
    for (key, row) in rows {
        let priority = Some(proto::PriorityProto { priority: Some(key.priority.0) });
        let count = Some(i32::try_from(row.count).unwrap_or(i32::MAX));
        let execution_type = Some(proto::ExecutionTypeRequestProto {
            execution_type: Some(proto::ExecutionTypeProto::from(row.execution_type).into()),
            // A guaranteed container instead of an opportunistic one is welcome.
            enforce_execution_type: Some(false),
        });
        let resources = proto::ResourceProto::from(&row.resources);
        if let Some(constraint) = &row.constraint {
            scheduling.push(proto::SchedulingRequestProto {
                allocation_request_id: Some(key.ask.0),
                priority,
                execution_type,
                allocation_tags: vec![constraint.tag.clone()],
                resource_sizing: Some(proto::ResourceSizingProto {
                    num_allocations: count,
                    resources: Some(resources),
                }),
                // Never without: the ResourceManager compares it with the last one's and fails on none.
                placement_constraint: Some(constraint.into()),
            });
        } else {
            asks.push(proto::ResourceRequestProto {
                priority,
                resource_name: Some(key.name.clone()),
                capability: Some(resources),
                num_containers: count,
                relax_locality: Some(row.relax),
                node_label_expression: row.label.clone(),
                execution_type_request: execution_type,
                allocation_request_id: Some(key.ask.0),
            });
        }
    }
    (asks, scheduling)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(ask: &Ask) -> Vec<(String, bool)> {
        rows(AskId(1), ask, 2).into_iter().map(|(key, row)| (key.name, row.relax)).collect()
    }

    fn near(relax: bool) -> Ask {
        let nodes = vec![NodeName { host: "n1".into(), rack: "/r1".into() }];
        Ask {
            placement: RequestedPlacement::Near { nodes, racks: vec!["/r2".into()], relax },
            ..Ask::default()
        }
    }

    #[test]
    fn a_node_is_asked_for_with_its_rack_and_the_star() {
        let all = |relax| {
            vec![
                ("*".to_owned(), relax),
                ("/r1".to_owned(), relax),
                ("/r2".to_owned(), true),
                ("n1".to_owned(), true),
            ]
        };
        assert_eq!(names(&near(true)), all(true));
        assert_eq!(names(&near(false)), all(false));
        assert_eq!(names(&Ask::default()), [("*".to_owned(), true)]);
    }

    #[test]
    fn only_the_star_row_has_the_label() {
        let ask = Ask { label: Some("gpu".into()), ..near(true) };
        let labelled: Vec<_> =
            rows(AskId(1), &ask, 1).into_iter().filter(|(_, row)| row.label.is_some()).collect();
        assert_eq!(labelled.len(), 1);
        assert_eq!(labelled[0].0.name, "*");
    }

    #[test]
    fn a_tagged_ask_is_a_scheduling_request() {
        let ask = Ask {
            placement: RequestedPlacement::Tagged(Constraint::at_most_per_node("ps", 1)),
            ..Ask::default()
        };
        let (asks, scheduling) = to_proto(&rows(AskId(7), &ask, 3));
        assert!(asks.is_empty());
        assert_eq!(scheduling[0].allocation_request_id, Some(7));
        assert_eq!(
            scheduling[0].resource_sizing.as_ref().and_then(|sizing| sizing.num_allocations),
            Some(3)
        );
    }
}
