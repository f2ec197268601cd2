//! The messages of TensorBoard's event files, with the fields that scalars need.
//!
//! The fields and their numbers are defined in `event.proto` and `summary.proto` of TensorBoard.

use prost::{Message, Oneof};

/// The file version that the first event of a file names.
pub(super) const FILE_VERSION: &str = "brain.Event:2";

/// A record of an event file.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// The time of the event, in seconds since 1970.
    #[prost(double, tag = "1")]
    pub(super) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(super) step: i64,
    #[prost(oneof = "Content", tags = "3, 5")]
    pub(super) content: Option<Content>,
}

/// The content of an [`Event`]: the version of the file, or scalars.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Content {
    /// The version of the file, in its first event.
    #[prost(string, tag = "3")]
    FileVersion(String),
    /// The scalars of a step.
    #[prost(message, tag = "5")]
    Summary(Summary),
}

/// The scalars of an event.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(super) value: Vec<ScalarValue>,
}

/// A scalar, `Summary.Value` in TensorBoard.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ScalarValue {
    #[prost(string, tag = "1")]
    pub(super) tag: String,
    /// The value. It is optional, because a plain field with value 0 is not written, and TensorBoard leaves out scalars without a value.
    #[prost(float, optional, tag = "2")]
    pub(super) simple_value: Option<f32>,
    /// The description of the tag. TensorBoard needs it only in the first event of the tag.
    #[prost(message, optional, tag = "9")]
    pub(super) metadata: Option<SummaryMetadata>,
}

/// The texts that TensorBoard shows for a tag.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SummaryMetadata {
    #[prost(message, optional, tag = "1")]
    pub(super) plugin_data: Option<PluginData>,
    #[prost(string, tag = "3")]
    pub(super) summary_description: String,
}

/// The part of TensorBoard that shows a tag, `SummaryMetadata.PluginData` in TensorBoard.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PluginData {
    #[prost(string, tag = "1")]
    pub(super) plugin_name: String,
}
