//! Last values for the API.

use anabranch_admin::backend::{BackendError, Identity};
use anabranch_admin::model::{RetainedPage, RetainedQuery};

use super::{Done, NodeBackend};

impl NodeBackend {
    pub(super) async fn page_of_values(
        &self,
        _: &Identity,
        _: RetainedQuery,
    ) -> Done<RetainedPage> {
        Err(BackendError::Invalid("not supported yet".to_owned()))
    }

    pub(super) async fn drop_value(&self, _: &Identity, _: &str, _: &str) -> Done<()> {
        Err(BackendError::Invalid("not supported yet".to_owned()))
    }
}
