//! Asks, and their rows in the ResourceManager's table of requests.

use std::collections::BTreeMap;

use super::constraint::Constraint;
use crate::container::{AskId, ExecutionType, Priority};
use crate::proto;
use crate::resource::Resources;

/// One kind of container to request. The target number is separate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Smallest resources of each container.
    pub resources: Resources,
    /// Lower numbers are served first. The ResourceManager separates asks of one priority by their [`AskId`].
    pub priority: Priority,
    /// Where the containers are placed.
    pub placement: RequestedPlacement,
    /// One node label (`node_label_expression`); `None` for the queue's default.
    pub label: Option<String>,
    /// Guaranteed or opportunistic.
    pub execution_type: ExecutionType,
}

/// Where the scheduler places containers (`ResourceRequest.resource_name`, `relax_locality`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RequestedPlacement {
    /// On any node.
    #[default]
    Any,
    /// On these nodes or racks.
    Near {
        /// Preferred nodes. Their racks are requested too, because YARN grants a node only through its rack.
        nodes: Vec<NodeName>,
        /// Further preferred racks.
        racks: Vec<String>,
        /// Whether any node is accepted after some scheduling rounds (`relax_locality` of the `*` row).
        relax: bool,
    },
    /// Where the constraint permits. The container gets its tag. The ask becomes a scheduling request, which **needs
    /// `yarn.resourcemanager.placement-constraints.handler`**: a default cluster refuses it.
    Tagged(Constraint),
}

/// Name of a node in asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName {
    /// Host of its [`NodeId`](crate::NodeId); with `yarn.scheduler.include-port-in-node-name` `host:port`.
    pub host: String,
    /// Its rack, from [`NodeReport::rack`](crate::NodeReport::rack).
    pub rack: String,
}

/// The rack of nodes without a configured rack.
pub const DEFAULT_RACK: &str = "/default-rack";
/// Name of the row with the total count.
pub(super) const ANY: &str = "*";

/// Key of a row of the ResourceManager's table: a row replaces an earlier one with the same key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RowKey {
    pub(super) ask: AskId,
    pub(super) priority: Priority,
    pub(super) name: String,
}

/// Value of a row. `count` is absolute: the number of outstanding containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestRow {
    pub(super) count: u32,
    pub(super) resources: Resources,
    pub(super) relax: bool,
    pub(super) label: Option<String>,
    pub(super) execution_type: ExecutionType,
    /// A row with a constraint becomes a scheduling request.
    pub(super) constraint: Option<Constraint>,
}

/// The rows that request `count` more containers of an ask.
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
                // A strict ask has strict rows for rack and *. The row of the node itself relaxes.
                add(&node.rack, *relax, None, None);
                add(&node.host, true, None, None);
            }
            for rack in racks {
                add(rack, true, None, None);
            }
            // Only the * row may have a label.
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
            // A guaranteed container may fill an opportunistic ask.
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
                // Always present: the ResourceManager compares it with the last one and fails if it is absent.
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
    fn a_node_is_requested_with_its_rack_and_the_star() {
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
