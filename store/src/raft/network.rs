//! Reaching the other members of a group.
//!
//! Owns: the network of a group that has no other members: whoever is asked for is unreachable.
//! The network between nodes takes its place by the same trait of the library
//! ([`openraft::RaftNetworkFactory`]). Read next: [`crate::group`].

use super::types::{Types, Vote};
use crate::checkpoint::Manifest;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use std::future::Future;

/// The network of a group of one.
#[derive(Debug, Default, Clone, Copy)]
pub struct NoPeers;

impl NoPeers {
    fn unreachable() -> Unreachable<Types> {
        Unreachable::from_string("this node has no network to other members")
    }
}

impl RaftNetworkFactory<Types> for NoPeers {
    type Network = NoPeers;

    async fn new_client(&mut self, _target: u64, _node: &BasicNode) -> Self::Network {
        NoPeers
    }
}

impl RaftNetworkV2<Types> for NoPeers {
    type SnapshotData = Manifest;

    async fn append_entries(
        &mut self,
        _rpc: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(Self::unreachable().into())
    }

    async fn vote(
        &mut self,
        _rpc: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(Self::unreachable().into())
    }

    async fn pre_vote(
        &mut self,
        _rpc: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(Self::unreachable().into())
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: openraft::type_config::alias::SnapshotOf<Types, Manifest>,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(Self::unreachable().into())
    }
}
