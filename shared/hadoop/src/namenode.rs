//! The calls of the NameNode that a scheduler and a token keeper need, and file clients mostly lack: block locations,
//! delegation tokens, quotas and sizes of directories, erasure coding, safe mode, server defaults.
//!
//! All of them are marked `@Idempotent` by Hadoop, so they are repeated within their time whatever happened to a try.
//! Reading and writing files is not here. Source: `hdfs.protocol.ClientProtocol`, `ClientNamenodeProtocol.proto`.

use std::time::Duration;

use crate::proto::common::{
    CancelDelegationTokenRequestProto, CancelDelegationTokenResponseProto,
    GetDelegationTokenRequestProto, GetDelegationTokenResponseProto,
    RenewDelegationTokenRequestProto, RenewDelegationTokenResponseProto,
};
use crate::proto::hdfs::{
    DatanodeInfoProto, ErasureCodingPolicyProto, FsServerDefaultsProto,
    GetBlockLocationsRequestProto, GetBlockLocationsResponseProto, GetContentSummaryRequestProto,
    GetContentSummaryResponseProto, GetErasureCodingPolicyRequestProto,
    GetErasureCodingPolicyResponseProto, GetEzForPathRequestProto, GetEzForPathResponseProto,
    GetFsStatsResponseProto, GetFsStatusRequestProto, GetQuotaUsageRequestProto,
    GetQuotaUsageResponseProto, GetServerDefaultsRequestProto, GetServerDefaultsResponseProto,
    IsFileClosedRequestProto, IsFileClosedResponseProto, LocatedBlockProto, LocatedBlocksProto,
    SetQuotaRequestProto, SetQuotaResponseProto, SetSafeModeRequestProto, SetSafeModeResponseProto,
};
use crate::rpc::{CallOptions, Login, RpcClient, RpcError, RpcProxy};
use crate::token::Token;
use crate::{HostPort, proto};

/// `HdfsConstants.QUOTA_DONT_SET`: leaves a quota as it is.
const QUOTA_KEEP: u64 = i64::MAX.cast_unsigned();
/// `HdfsConstants.QUOTA_RESET`, Java's -1: takes a quota away, and stands for none in answers.
const QUOTA_NONE: u64 = u64::MAX;

/// `SafeModeActionProto.SAFEMODE_GET`: asks, for everybody, and changes nothing.
const SAFE_MODE_GET: u32 = 3;

/// One file system's NameNodes.
#[derive(Debug)]
pub struct NameNode {
    proxy: RpcProxy,
    timeout: Duration,
}

/// Where the blocks of a file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileBlocks {
    /// Length of the file in bytes, as far as the NameNode knows: less than written while it is being written.
    pub length: u64,
    /// Whether it is being written.
    pub is_open: bool,
    /// Blocks that overlap the range asked for, in order.
    pub blocks: Vec<BlockLocation>,
}

/// One block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLocation {
    /// Of its first byte in the file.
    pub offset: u64,
    /// In bytes.
    pub length: u64,
    /// All replicas are known to be corrupt.
    pub is_corrupt: bool,
    /// Who holds a replica, nearest to the caller first. Nodes that are leaving are last.
    pub replicas: Vec<Replica>,
}

/// A DataNode with a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Host name as the DataNode states it.
    pub host: String,
    /// IP address.
    pub ip: String,
    /// Port for data.
    pub port: u32,
    /// Rack, such as `/default-rack`.
    pub rack: String,
}

/// What a directory holds and may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentSummary {
    /// Bytes of all files, once.
    pub length: u64,
    /// Files.
    pub files: u64,
    /// Directories, the asked one included.
    pub directories: u64,
    /// Bytes on disks: length times replicas.
    pub space: u64,
    /// Limits.
    pub quota: Quota,
}

/// Limits of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Files and directories, the directory itself included; `None` for no limit.
    pub names: Option<u64>,
    /// Bytes on disks, replicas counted; `None` for no limit.
    pub space: Option<u64>,
}

/// Use of a directory's quota; the NameNode keeps it at hand where a quota is set, so asking is cheap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaUsage {
    /// Files and directories, the directory itself included.
    pub names: u64,
    /// Bytes on disks, replicas counted.
    pub space: u64,
    /// Limits.
    pub quota: Quota,
}

/// A change of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaChange {
    /// Leave it.
    Keep,
    /// Take it away.
    Remove,
    /// Set it; 0 is allowed for nothing, values above `i64::MAX - 1` count as that.
    Set(u64),
}

impl NameNode {
    /// Java name of the protocol.
    pub const PROTOCOL: &'static str = "org.apache.hadoop.hdfs.protocol.ClientProtocol";

    /// The NameNodes at these addresses; each call may take `timeout` in all.
    pub fn new(
        client: &RpcClient,
        servers: impl IntoIterator<Item = HostPort>,
        login: Login,
        timeout: Duration,
    ) -> Self {
        Self { proxy: client.proxy(Self::PROTOCOL, servers, login), timeout }
    }

    /// Blocks of `path` that overlap `length` bytes from `offset` on; `None` when there is no such file.
    ///
    /// # Errors
    /// See [`RpcError`]; `FileNotFoundException` of newer servers becomes `None`.
    pub async fn block_locations(
        &self,
        path: &str,
        offset: u64,
        length: u64,
    ) -> Result<Option<FileBlocks>, RpcError> {
        let request = GetBlockLocationsRequestProto { src: path.to_owned(), offset, length };
        match self.call("getBlockLocations", &request).await {
            Ok(GetBlockLocationsResponseProto { locations }) => Ok(locations.map(Into::into)),
            Err(error) if error.is_remote("FileNotFoundException") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A delegation token that `renewer` may renew. `None` from a cluster without security.
    ///
    /// Its service field is for the caller to set with [`Token::with_service`]: the logical name of an HA group
    /// (`ha-hdfs:name`), or the server's address.
    ///
    /// # Errors
    /// See [`RpcError`]. A secured NameNode gives none to a caller that authenticated with a token.
    pub async fn delegation_token(&self, renewer: &str) -> Result<Option<Token>, RpcError> {
        let request = GetDelegationTokenRequestProto { renewer: renewer.to_owned() };
        let reply: GetDelegationTokenResponseProto =
            self.call("getDelegationToken", &request).await?;
        Ok(reply.token.map(Token::from))
    }

    /// Prolongs a delegation token; gives its new end in milliseconds since the epoch.
    ///
    /// # Errors
    /// See [`RpcError`].
    pub async fn renew_delegation_token(&self, token: &Token) -> Result<u64, RpcError> {
        let request = RenewDelegationTokenRequestProto { token: token.into() };
        let reply: RenewDelegationTokenResponseProto =
            self.call("renewDelegationToken", &request).await?;
        Ok(reply.new_expiry_time)
    }

    /// Ends a delegation token.
    ///
    /// # Errors
    /// See [`RpcError`]. A repeat after a lost reply finds the token gone: `InvalidToken`.
    pub async fn cancel_delegation_token(&self, token: &Token) -> Result<(), RpcError> {
        let request = CancelDelegationTokenRequestProto { token: token.into() };
        let _: CancelDelegationTokenResponseProto =
            self.call("cancelDelegationToken", &request).await?;
        Ok(())
    }

    /// What a directory (or file) holds. The NameNode walks the whole tree for it: not for large ones in a loop.
    ///
    /// # Errors
    /// See [`RpcError`]; `FileNotFoundException` when it does not exist.
    pub async fn content_summary(&self, path: &str) -> Result<ContentSummary, RpcError> {
        let request = GetContentSummaryRequestProto { path: path.to_owned() };
        let reply: GetContentSummaryResponseProto =
            self.call("getContentSummary", &request).await?;
        let summary = reply.summary;
        Ok(ContentSummary {
            length: summary.length,
            files: summary.file_count,
            directories: summary.directory_count,
            space: summary.space_consumed,
            quota: Quota::from_wire(summary.quota, summary.space_quota),
        })
    }

    /// Use and limits of a directory.
    ///
    /// # Errors
    /// See [`RpcError`]; `FileNotFoundException` when it does not exist.
    pub async fn quota_usage(&self, path: &str) -> Result<QuotaUsage, RpcError> {
        let request = GetQuotaUsageRequestProto { path: path.to_owned() };
        let GetQuotaUsageResponseProto { usage } = self.call("getQuotaUsage", &request).await?;
        Ok(QuotaUsage {
            names: usage.file_and_directory_count,
            space: usage.space_consumed,
            quota: Quota::from_wire(usage.quota, usage.space_quota),
        })
    }

    /// Changes a directory's limits. For the superuser.
    ///
    /// # Errors
    /// See [`RpcError`]; `AccessControlException` for everybody else.
    pub async fn set_quota(
        &self,
        path: &str,
        names: QuotaChange,
        space: QuotaChange,
    ) -> Result<(), RpcError> {
        let request = SetQuotaRequestProto {
            path: path.to_owned(),
            namespace_quota: names.to_wire(),
            storagespace_quota: space.to_wire(),
        };
        let _: SetQuotaResponseProto = self.call("setQuota", &request).await?;
        Ok(())
    }

    /// Whether a file has been closed by its writer, or by the recovery of its lease.
    ///
    /// # Errors
    /// See [`RpcError`]; `FileNotFoundException` when it does not exist.
    pub async fn is_file_closed(&self, path: &str) -> Result<bool, RpcError> {
        let request = IsFileClosedRequestProto { src: path.to_owned() };
        let reply: IsFileClosedResponseProto = self.call("isFileClosed", &request).await?;
        Ok(reply.result)
    }

    /// Name of the erasure coding policy that new files in a directory get; `None` where they are replicated. Such
    /// files cannot be synced while they are written. A NameNode without the call (HDFS 2, storage systems that speak
    /// the protocol) has no erasure coding: `None`.
    ///
    /// # Errors
    /// See [`RpcError`]; `FileNotFoundException` when it does not exist.
    pub async fn erasure_coding_policy(&self, path: &str) -> Result<Option<String>, RpcError> {
        let request = GetErasureCodingPolicyRequestProto { src: path.to_owned() };
        match self.call("getErasureCodingPolicy", &request).await {
            Ok(GetErasureCodingPolicyResponseProto { ec_policy }) => Ok(ec_policy.map(policy_name)),
            Err(error) if error.is_no_such_method() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Root directory of the encryption zone that contains `path`; `None` outside of encryption zones, and from a
    /// NameNode without the call, which has none.
    ///
    /// # Errors
    /// See [`RpcError`]; `FileNotFoundException` when it does not exist, `AccessControlException` when the caller has
    /// no read permission on it.
    pub async fn encryption_zone(&self, path: &str) -> Result<Option<String>, RpcError> {
        let request = GetEzForPathRequestProto { src: path.to_owned() };
        match self.call("getEZForPath", &request).await {
            Ok(GetEzForPathResponseProto { zone }) => Ok(zone.map(|zone| zone.path)),
            Err(error) if error.is_no_such_method() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the NameNode takes no changes just now: it starts, too many blocks are missing, or an administrator
    /// has ordered it.
    ///
    /// # Errors
    /// See [`RpcError`].
    pub async fn is_in_safe_mode(&self) -> Result<bool, RpcError> {
        let request = SetSafeModeRequestProto { action: SAFE_MODE_GET, checked: None };
        let reply: SetSafeModeResponseProto = self.call("setSafeMode", &request).await?;
        Ok(reply.result)
    }

    /// Block size, replication and other values that the server takes for new files.
    ///
    /// # Errors
    /// See [`RpcError`].
    pub async fn server_defaults(&self) -> Result<FsServerDefaultsProto, RpcError> {
        let reply: GetServerDefaultsResponseProto =
            self.call("getServerDefaults", &GetServerDefaultsRequestProto {}).await?;
        Ok(reply.server_defaults)
    }

    /// Capacity and use of the file system in bytes, and its sick blocks.
    ///
    /// # Errors
    /// See [`RpcError`].
    pub async fn status(&self) -> Result<GetFsStatsResponseProto, RpcError> {
        self.call("getFsStats", &GetFsStatusRequestProto {}).await
    }

    /// The proxy, for other calls of the protocol and for a change of login.
    pub fn proxy(&self) -> &RpcProxy {
        &self.proxy
    }

    async fn call<Request, Reply>(&self, method: &str, request: &Request) -> Result<Reply, RpcError>
    where
        Request: prost::Message,
        Reply: prost::Message + Default,
    {
        self.proxy.call(method, request, CallOptions::idempotent(self.timeout)).await
    }
}

/// The policy's name; those that come with Hadoop travel by their ids alone (`SystemErasureCodingPolicies`).
fn policy_name(policy: ErasureCodingPolicyProto) -> String {
    let known = match policy.id {
        1 => "RS-6-3-1024k",
        2 => "RS-3-2-1024k",
        3 => "RS-LEGACY-6-3-1024k",
        4 => "XOR-2-1-1024k",
        5 => "RS-10-4-1024k",
        id => return policy.name.unwrap_or_else(|| format!("policy {id}")),
    };
    known.to_owned()
}

impl Quota {
    fn from_wire(names: u64, space: u64) -> Self {
        // The root directory's limit is Java's largest number, which is none either.
        let limit = |value: u64| (value < QUOTA_KEEP).then_some(value);
        Self { names: limit(names), space: limit(space) }
    }
}

impl QuotaChange {
    fn to_wire(self) -> u64 {
        match self {
            Self::Keep => QUOTA_KEEP,
            Self::Remove => QUOTA_NONE,
            Self::Set(value) => value.min(QUOTA_KEEP - 1),
        }
    }
}

impl From<LocatedBlocksProto> for FileBlocks {
    fn from(message: LocatedBlocksProto) -> Self {
        Self {
            length: message.file_length,
            is_open: message.under_construction,
            blocks: message.blocks.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<LocatedBlockProto> for BlockLocation {
    fn from(message: LocatedBlockProto) -> Self {
        use proto::hdfs::datanode_info_proto::AdminState;
        // A stable sort: among equals the NameNode's order, nearest first, stays.
        let mut nodes = message.locs;
        nodes.sort_by_key(|node| node.admin_state() != AdminState::Normal);
        Self {
            offset: message.offset,
            length: message.b.num_bytes(),
            is_corrupt: message.corrupt,
            replicas: nodes.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<DatanodeInfoProto> for Replica {
    fn from(message: DatanodeInfoProto) -> Self {
        let rack = message.location().to_owned();
        let id = message.id;
        Self { host: id.host_name, ip: id.ip_addr, port: id.xfer_port, rack }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::hdfs::{DatanodeIdProto, ExtendedBlockProto};

    fn node(host: &str, state: i32) -> DatanodeInfoProto {
        DatanodeInfoProto {
            id: DatanodeIdProto {
                host_name: host.into(),
                xfer_port: 9866,
                ..DatanodeIdProto::default()
            },
            location: Some("/rack".into()),
            admin_state: Some(state),
        }
    }

    #[test]
    fn nodes_that_leave_come_last_and_the_order_of_the_others_stays() {
        let block = LocatedBlockProto {
            b: ExtendedBlockProto { num_bytes: Some(5), ..ExtendedBlockProto::default() },
            offset: 10,
            locs: vec![
                node("leaving", 1),
                node("near", 0),
                node("of the future", 77),
                node("far", 0),
            ],
            ..LocatedBlockProto::default()
        };
        let location = BlockLocation::from(block);
        let hosts: Vec<_> = location.replicas.iter().map(|replica| replica.host.as_str()).collect();
        // A state that we do not know reads as the default.
        assert_eq!(hosts, ["near", "of the future", "far", "leaving"]);
        assert_eq!((location.offset, location.length), (10, 5));
    }

    #[test]
    fn policies_of_hadoop_are_named_though_only_their_ids_travel() {
        let policy = |id, name: Option<&str>| {
            policy_name(ErasureCodingPolicyProto { name: name.map(str::to_owned), id })
        };
        assert_eq!(policy(4, None), "XOR-2-1-1024k");
        assert_eq!(policy(65, Some("ours")), "ours");
        assert_eq!(policy(65, None), "policy 65");
    }

    #[test]
    fn quotas_of_java_are_told_apart() {
        assert_eq!(Quota::from_wire(u64::MAX, 7), Quota { names: None, space: Some(7) });
        assert_eq!(
            Quota::from_wire(i64::MAX.cast_unsigned(), 0),
            Quota { names: None, space: Some(0) }
        );
        assert_eq!(QuotaChange::Keep.to_wire(), 0x7fff_ffff_ffff_ffff);
        assert_eq!(QuotaChange::Remove.to_wire().cast_signed(), -1);
        assert_eq!(QuotaChange::Set(u64::MAX).to_wire().cast_signed(), i64::MAX - 1);
    }
}
