//! NameNode calls for schedulers and token renewal, which most file clients lack: block locations, inode ids, delegation
//! tokens, quotas and sizes of directories, erasure coding policies, encryption zones.
//!
//! Hadoop marks all of them `@Idempotent`, so a call is retried until its timeout, whatever the outcome of a try. This
//! module does not read or write files. Source: `hdfs.protocol.ClientProtocol`, `ClientNamenodeProtocol.proto`.

use std::time::Duration;

use bytes::Bytes;

use crate::proto::common::{
    CancelDelegationTokenRequestProto, CancelDelegationTokenResponseProto,
    GetDelegationTokenRequestProto, GetDelegationTokenResponseProto,
    RenewDelegationTokenRequestProto, RenewDelegationTokenResponseProto,
};
use crate::proto::hdfs::{
    DatanodeInfoProto, ErasureCodingPolicyProto, GetBlockLocationsRequestProto,
    GetBlockLocationsResponseProto, GetContentSummaryRequestProto, GetContentSummaryResponseProto,
    GetErasureCodingPolicyRequestProto, GetErasureCodingPolicyResponseProto,
    GetEzForPathRequestProto, GetEzForPathResponseProto, GetFileInfoRequestProto,
    GetFileInfoResponseProto, GetListingRequestProto, GetListingResponseProto, HdfsFileStatusProto,
    LocatedBlockProto, LocatedBlocksProto, SetQuotaRequestProto, SetQuotaResponseProto,
};
use crate::rpc::{CallOptions, Login, RpcClient, RpcError, RpcProxy};
use crate::token::Token;
use crate::{HostPort, proto};

/// `HdfsConstants.QUOTA_DONT_SET`: leaves a quota as it is.
const QUOTA_KEEP: u64 = i64::MAX.cast_unsigned();
/// `HdfsConstants.QUOTA_RESET`, Java's -1: removes a quota, and means no quota in answers.
const QUOTA_NONE: u64 = u64::MAX;

/// A client of the NameNodes of one file system.
#[derive(Debug)]
pub struct NameNode {
    proxy: RpcProxy,
    timeout: Duration,
}

/// The blocks of a file and their locations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileBlocks {
    /// Length of the file in bytes, as the NameNode has it: behind the writer while the file is open.
    pub length: u64,
    /// Whether a writer has the file open.
    pub is_open: bool,
    /// Blocks that overlap the requested range, in order.
    pub blocks: Vec<BlockLocation>,
}

/// One block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockLocation {
    /// Position of its first byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Whether all replicas are corrupt.
    pub is_corrupt: bool,
    /// DataNodes with a replica, the nearest to the caller first. Decommissioning nodes are last.
    pub replicas: Vec<Replica>,
}

/// A DataNode with a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replica {
    /// Host name as the DataNode registered it.
    pub host: String,
    /// IP address.
    pub ip: String,
    /// Port of the data transfer protocol.
    pub port: u32,
    /// Rack, such as `/default-rack`.
    pub rack: String,
}

/// A file or directory, with the number that identifies it while it exists, whatever its path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InodeStatus {
    /// The name in the directory that was listed; empty if its own path was asked for.
    pub name: Bytes,
    /// Length in bytes; 0 for directories.
    pub length: u64,
    /// Time of the last change, milliseconds since 1970.
    pub modified_ms: u64,
    /// Absent from a server without ids. `/.reserved/.inodes/<id>` is a path of it.
    pub id: Option<u64>,
}

/// Content and quotas of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContentSummary {
    /// Bytes of all files, without replicas.
    pub length: u64,
    /// Number of files.
    pub files: u64,
    /// Number of directories, this one included.
    pub directories: u64,
    /// Bytes on disks, with replicas.
    pub space: u64,
    /// Limits of the directory.
    pub quota: Quota,
}

/// Quotas of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Most files and directories, the directory itself included; `None` for no limit.
    pub names: Option<u64>,
    /// Most bytes on disks, with replicas; `None` for no limit.
    pub space: Option<u64>,
}

/// A change of one quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaChange {
    /// Keeps the quota.
    Keep,
    /// Removes the quota.
    Remove,
    /// Sets the quota. 0 permits nothing. Values above `i64::MAX - 1` become that number.
    Set(u64),
}

impl NameNode {
    /// Java name of the protocol.
    pub const PROTOCOL: &'static str = "org.apache.hadoop.hdfs.protocol.ClientProtocol";

    /// A client of the NameNodes at these addresses; each call has this timeout.
    pub fn new(
        client: &RpcClient,
        servers: impl IntoIterator<Item = HostPort>,
        login: Login,
        timeout: Duration,
    ) -> Self {
        Self { proxy: client.proxy(Self::PROTOCOL, servers, login), timeout }
    }

    /// Blocks of `path` that overlap `length` bytes from `offset`; `None` when the file does not exist.
    ///
    /// # Errors
    /// See [`RpcError`]; the `FileNotFoundException` of newer servers becomes `None`.
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

    /// The inode of `path`, if it exists.
    ///
    /// # Errors
    /// See [`RpcError`].
    pub async fn inode(&self, path: &str) -> Result<Option<InodeStatus>, RpcError> {
        let request = GetFileInfoRequestProto { src: path.to_owned() };
        let reply: GetFileInfoResponseProto = self.call("getFileInfo", &request).await?;
        Ok(reply.fs.map(Into::into))
    }

    /// Children of the directory `path` whose names are above `after`, in the order of their bytes: as many as the
    /// NameNode gives at once (`dfs.ls.limit`, 1,000 by default). Empty if it does not exist.
    ///
    /// # Errors
    /// See [`RpcError`].
    pub async fn children(&self, path: &str, after: &[u8]) -> Result<Vec<InodeStatus>, RpcError> {
        let src = path.to_owned();
        let request = GetListingRequestProto {
            src,
            start_after: Bytes::copy_from_slice(after),
            need_location: false,
        };
        let reply: GetListingResponseProto = self.call("getListing", &request).await?;
        let listing = reply.dir_list.map(|list| list.partial_listing).unwrap_or_default();
        Ok(listing.into_iter().map(Into::into).collect())
    }

    /// Requests a delegation token that `renewer` may renew. `None` from a cluster without security.
    ///
    /// The caller sets its service field with [`Token::with_service`]: the logical name of an HA group (`ha-hdfs:name`),
    /// or the server's address.
    ///
    /// # Errors
    /// See [`RpcError`]. A secured NameNode issues none to a caller that authenticated with a token.
    pub async fn delegation_token(&self, renewer: &str) -> Result<Option<Token>, RpcError> {
        let request = GetDelegationTokenRequestProto { renewer: renewer.to_owned() };
        let reply: GetDelegationTokenResponseProto =
            self.call("getDelegationToken", &request).await?;
        Ok(reply.token.map(Token::from))
    }

    /// Renews a delegation token. Returns its new expiry in milliseconds since the epoch.
    ///
    /// # Errors
    /// See [`RpcError`].
    pub async fn renew_delegation_token(&self, token: &Token) -> Result<u64, RpcError> {
        let request = RenewDelegationTokenRequestProto { token: token.into() };
        let reply: RenewDelegationTokenResponseProto =
            self.call("renewDelegationToken", &request).await?;
        Ok(reply.new_expiry_time)
    }

    /// Cancels a delegation token.
    ///
    /// # Errors
    /// See [`RpcError`]. A retry after a lost reply fails with `InvalidToken`, because the token is already cancelled.
    pub async fn cancel_delegation_token(&self, token: &Token) -> Result<(), RpcError> {
        let request = CancelDelegationTokenRequestProto { token: token.into() };
        let _: CancelDelegationTokenResponseProto =
            self.call("cancelDelegationToken", &request).await?;
        Ok(())
    }

    /// Content and quotas of a directory or file. The NameNode traverses the whole tree, so do not poll large ones.
    ///
    /// # Errors
    /// See [`RpcError`]; `FileNotFoundException` when `path` does not exist.
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

    /// Changes the quotas of a directory. Only the superuser may do this.
    ///
    /// # Errors
    /// See [`RpcError`]; `AccessControlException` for other users.
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

    /// Name of the erasure coding policy of new files in a directory; `None` when they are replicated. Erasure-coded files
    /// cannot be synced while they are written. A NameNode without the call has no erasure coding (HDFS 2, and other
    /// storage systems with this protocol).
    ///
    /// # Errors
    /// See [`RpcError`]; `FileNotFoundException` when `path` does not exist.
    pub async fn erasure_coding_policy(&self, path: &str) -> Result<Option<String>, RpcError> {
        let request = GetErasureCodingPolicyRequestProto { src: path.to_owned() };
        match self.call("getErasureCodingPolicy", &request).await {
            Ok(GetErasureCodingPolicyResponseProto { ec_policy }) => Ok(ec_policy.map(policy_name)),
            Err(error) if error.is_no_such_method() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Root directory of the encryption zone that contains `path`; `None` outside of encryption zones. A NameNode without
    /// the call has no encryption zones.
    ///
    /// # Errors
    /// See [`RpcError`]; `FileNotFoundException` when `path` does not exist, `AccessControlException` when the caller may
    /// not read it.
    pub async fn encryption_zone(&self, path: &str) -> Result<Option<String>, RpcError> {
        let request = GetEzForPathRequestProto { src: path.to_owned() };
        match self.call("getEZForPath", &request).await {
            Ok(GetEzForPathResponseProto { zone }) => Ok(zone.map(|zone| zone.path)),
            Err(error) if error.is_no_such_method() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The proxy, for other calls of the protocol and to change the login.
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

/// The policy's name. Messages have only the ids of Hadoop's own policies (`SystemErasureCodingPolicies`).
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
        // The root directory has Java's largest number, which also means no limit.
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

impl From<HdfsFileStatusProto> for InodeStatus {
    fn from(message: HdfsFileStatusProto) -> Self {
        let id = Some(message.file_id()).filter(|id| *id != 0);
        Self {
            name: message.path,
            length: message.length,
            modified_ms: message.modification_time,
            id,
        }
    }
}

impl From<LocatedBlockProto> for BlockLocation {
    fn from(message: LocatedBlockProto) -> Self {
        use proto::hdfs::datanode_info_proto::AdminState;
        // The sort is stable, so the NameNode's order (nearest first) remains among equals.
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
    fn decommissioning_nodes_come_last() {
        let block = LocatedBlockProto {
            b: ExtendedBlockProto { num_bytes: Some(5), ..ExtendedBlockProto::default() },
            offset: 10,
            locs: vec![
                node("decommissioning", 1),
                node("nearest", 0),
                node("of the future", 77),
                node("far", 0),
            ],
            ..LocatedBlockProto::default()
        };
        let location = BlockLocation::from(block);
        let hosts: Vec<_> = location.replicas.iter().map(|replica| replica.host.as_str()).collect();
        // An unknown state reads as the default.
        assert_eq!(hosts, ["nearest", "of the future", "far", "decommissioning"]);
        assert_eq!((location.offset, location.length), (10, 5));
    }

    #[test]
    fn erasure_coding_policies_are_named_by_id() {
        let policy = |id, name: Option<&str>| {
            policy_name(ErasureCodingPolicyProto { name: name.map(str::to_owned), id })
        };
        assert_eq!(policy(4, None), "XOR-2-1-1024k");
        assert_eq!(policy(65, Some("ours")), "ours");
        assert_eq!(policy(65, None), "policy 65");
    }

    #[test]
    fn quotas_of_java_have_distinct_meanings() {
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
