//! Bodies of submissions: a named object per kind of subject, so that generated clients know the
//! fields of each.

use std::fmt;

use llmprof_core::domain::{
    command::CommandCall,
    dtype::Dtype,
    input_manifest::ManifestImage,
    json_numbers::{MAX_EXACT, Within, optional_object},
    mode::Mode,
    part::{AlignWith, MockChange, PartPath},
    plain_words::plain_words,
    profiling::Profiling,
    run_config::ResolvedConfig,
    settings::Settings,
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A label to find runs by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(
    min_length = 1,
    max_length = 64,
    pattern = r"^[^,\s\x00-\x1f\x7f-\x9f]([^,\x00-\x1f\x7f-\x9f]*[^,\s\x00-\x1f\x7f-\x9f])?$",
    example = "nightly"
)]
pub struct Label(pub String);

/// A submission: of a model, or of a command that this host allows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SubmitRun {
    Model(Box<SubmitModel>),
    Command(Box<SubmitCommand>),
}

/// Id of stored inputs, or name of a manifest relative to the service's inputs folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(min_length = 1, max_length = 200, example = "inputs.yaml")]
pub struct InputsName(pub String);

/// Inputs of a submission.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum SubmittedInputs {
    Name(InputsName),
    Inline(InlineInputs),
}

/// By the type of the value, so that errors name the field of the object.
impl<'de> Deserialize<'de> for SubmittedInputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfType)
    }
}

struct OfType;

impl<'de> Visitor<'de> for OfType {
    type Value = SubmittedInputs;

    fn expecting(&self, text: &mut fmt::Formatter) -> fmt::Result {
        text.write_str(
            "the id of stored inputs, the name of a manifest, or an object {prompt, images} or \
             {prompt, samples} as a manifest has it",
        )
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(SubmittedInputs::Name(InputsName(name.to_owned())))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        InlineInputs::deserialize(MapAccessDeserializer::new(map)).map(SubmittedInputs::Inline)
    }
}

/// A prompt with its images, or several samples: a manifest as an object, such as the `inputs.yaml`
/// of a run. They are stored like uploaded ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InlineInputs {
    /// Prompt of the images, or of the samples that have none of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 65536, example = "Convert the document to markdown.")]
    pub prompt: Option<String>,
    /// Seed of the run, unless it states another one.
    #[serde(
        default,
        deserialize_with = "Within::<0, MAX_EXACT>::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(minimum = 0, maximum = 9007199254740991i64)]
    pub seed: Option<u64>,
    #[serde(default)]
    #[schema(max_items = 64)]
    pub images: Vec<InlineImage>,
    /// In place of `images`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 256)]
    pub samples: Vec<InlineSample>,
}

/// A sample of inline inputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InlineSample {
    /// The prompt of the inputs when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 65536)]
    pub prompt: Option<String>,
    #[serde(default)]
    #[schema(max_items = 64)]
    pub images: Vec<InlineImage>,
}

/// An image: `sha256:` and the hash of an image of stored inputs or of a run; a data URL
/// (`data:image/png;base64,...`), which an object can name; or an object with a `sha256`, as a
/// manifest has it. Data URLs may have 8 MiB in total, decoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum InlineImage {
    Text(String),
    Named(NamedImageData),
    OfManifest(ManifestImage),
}

/// By its fields, so that errors name them: an object with `data` is not an image of a manifest.
impl<'de> Deserialize<'de> for InlineImage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ImageVisitor)
    }
}

struct ImageVisitor;

impl<'de> Visitor<'de> for ImageVisitor {
    type Value = InlineImage;

    fn expecting(&self, text: &mut fmt::Formatter) -> fmt::Result {
        text.write_str("sha256:HASH, data:image/...;base64,... or an object with data or a sha256")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(InlineImage::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
        let fields = Map::<String, Value>::deserialize(MapAccessDeserializer::new(fields))?;
        let has_data = fields.contains_key("data");
        let fields = Value::from(fields);
        let image = match has_data {
            true => serde_path_to_error::deserialize(fields).map(InlineImage::Named),
            false => serde_path_to_error::deserialize(fields).map(InlineImage::OfManifest),
        };
        image.map_err(|error| A::Error::custom(plain_words(&error.to_string())))
    }
}

/// The content of an image with its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedImageData {
    /// A data URL.
    #[schema(example = "data:image/png;base64,iVBORw0KGgo=")]
    pub data: String,
    /// Name in reports and in errors.
    #[schema(min_length = 1, max_length = 200, example = "page.png")]
    pub name: String,
}

/// Settings that both forms have: passes and queueing.
#[derive(Debug, Clone)]
pub(crate) struct PassesRequest {
    pub mode: Mode,
    pub repeats: u32,
    pub warmup: u32,
    pub device: String,
    pub timeout_s: u32,
    pub labels: Vec<Label>,
    pub revision: Option<String>,
    pub priority: i32,
    pub profiling: Settings,
    pub resolved: Option<ResolvedConfig>,
}

/// Declares submissions: the fields of each form, followed by the common ones.
macro_rules! submissions {
    ($($(#[$doc:meta])* $name:ident { $($fields:tt)* })+) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
            #[serde(deny_unknown_fields)]
            pub struct $name {
                $($fields)*
                /// Depth of the profile.
                #[serde(default = "defaults::mode")]
                #[schema(default = "deep")]
                pub mode: Mode,
                /// Measured repeats of the unprofiled pass.
                #[serde(
                    default = "defaults::repeats",
                    deserialize_with = "Within::<1, 100>::integer"
                )]
                #[schema(default = 3, minimum = 1, maximum = 100)]
                pub repeats: u32,
                /// Unmeasured repeats before them.
                #[serde(
                    default = "defaults::warmup",
                    deserialize_with = "Within::<0, 100>::integer"
                )]
                #[schema(default = 2, minimum = 0, maximum = 100)]
                pub warmup: u32,
                /// `auto`, `cpu`, `cuda:INDEX` in the order of nvidia-smi, the UUID of a GPU or of
                /// an instance of one, or the model of either (`GET /devices`).
                #[serde(default = "defaults::device")]
                #[schema(
                    default = "auto",
                    pattern = "^(auto|cpu|cuda:(0|[1-9][0-9]?)\
                               |(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\
                               |[a-z][a-z0-9._-]{1,63})$"
                )]
                pub device: String,
                /// Limit on the whole run, in seconds.
                #[serde(
                    default = "defaults::timeout_s",
                    deserialize_with = "Within::<1, 1800>::integer"
                )]
                #[schema(default = 1800, minimum = 1, maximum = 1800)]
                pub timeout_s: u32,
                /// Labels to find the run by: up to 16, each up to 64 characters without control
                /// characters.
                #[serde(default)]
                #[schema(max_items = 16, inline)]
                pub labels: Vec<Label>,
                /// Revision of the profiled program, such as a commit.
                #[serde(default)]
                #[schema(
                    min_length = 1,
                    max_length = 64,
                    pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$",
                    example = "3f2c1ab"
                )]
                pub revision: Option<String>,
                /// Higher runs first. A queued run gains one point every ten minutes.
                #[serde(default, deserialize_with = "Within::<-100, 100>::integer")]
                #[schema(default = 0, minimum = -100, maximum = 100)]
                pub priority: i32,
                /// Settings of the passes that override the mode's (`GET /profiling`).
                #[serde(default, deserialize_with = "optional_object")]
                #[schema(value_type = Option<Profiling>)]
                pub profiling: Option<Settings>,
                /// Values that an earlier run resolved, as its `config.yaml` has them. A model with
                /// other values or another dtype is refused, and so are all settings of another
                /// mode; the device and the limits are decided again.
                #[serde(default, deserialize_with = "optional_object")]
                #[schema(value_type = Option<ResolvedConfig>)]
                pub resolved: Option<Box<ResolvedConfig>>,
                /// Check everything and return the plan of the run; queue and store nothing.
                #[serde(default)]
                pub dry_run: bool,
            }

            impl $name {
                pub(crate) fn passes(&self) -> PassesRequest {
                    PassesRequest {
                        mode: self.mode.clone(),
                        repeats: self.repeats,
                        warmup: self.warmup,
                        device: self.device.clone(),
                        timeout_s: self.timeout_s,
                        labels: self.labels.clone(),
                        revision: self.revision.clone(),
                        priority: self.priority,
                        profiling: self.profiling.clone().unwrap_or_default(),
                        resolved: self.resolved.as_deref().cloned(),
                    }
                }
            }
        )+
    };
}

submissions! {
    /// A run of a model, or of a part of one. Only `model` is required.
    SubmitModel {
        /// Name of a configured model (`GET /models`).
        #[schema(min_length = 1, max_length = 200, example = "deepseek-ocr-tiny")]
        pub model: String,
        /// Profile only this part of the model. The parts of a decoder are its layers and their
        /// `self_attn` and `mlp`; of a vision side `vision.sam`, `vision.clip`, and their blocks
        /// and layers.
        #[serde(default)]
        pub target: Option<PartPath>,
        /// `e2e`: profile the whole model, the part alone (the mock) and the part taken out of its
        /// layer (extracted) with the same inputs, and report whether the mock launches the same
        /// kernels as the model. Requires `target` and a mode with a timeline.
        #[serde(default)]
        pub align_with: Option<AlignWith>,
        /// Deliberate changes of the mock, to test whether the alignment detects them. Requires
        /// `align_with`.
        #[serde(default, deserialize_with = "optional_object")]
        pub mock: Option<MockChange>,
        /// The id of stored inputs or the name of a manifest (`GET /inputs`), or a prompt with
        /// images. When absent, the bundled page, `inputs.yaml`; for a model that reads text only,
        /// the bundled text, `inputs-text.yaml`.
        #[serde(default)]
        pub inputs: Option<SubmittedInputs>,
        /// Name of a manifest, as in `inputs`.
        #[serde(default)]
        #[schema(min_length = 1, max_length = 200, example = "inputs.yaml")]
        pub inputs_manifest: Option<String>,
        /// Tokens to generate after prefill.
        #[serde(
            default = "defaults::max_new_tokens",
            deserialize_with = "Within::<1, 4096>::integer"
        )]
        #[schema(default = 64, minimum = 1, maximum = 4096)]
        pub max_new_tokens: u32,
        /// Sequences generated together, for a whole model. A batch of one measures each sample of
        /// the inputs separately; a larger one has the samples in order, again from the first after
        /// the last.
        #[serde(default = "defaults::batch", deserialize_with = "Within::<1, 1024>::integer")]
        #[schema(default = 1, minimum = 1, maximum = 1024)]
        pub batch: u32,
        /// Seed of synthetic weights; when absent, the seed of the inputs, or 0 if they state none.
        #[serde(default, deserialize_with = "Within::<0, MAX_EXACT>::optional")]
        #[schema(minimum = 0, maximum = 9007199254740991i64)]
        pub seed: Option<u64>,
        /// Dtype; the model's default for the device when absent.
        #[serde(default)]
        pub dtype: Option<Dtype>,
    }

    /// A run of a command that this host allows (`GET /targets`): each repeat is a process of its
    /// own or of its client.
    SubmitCommand {
        pub target: CommandCall,
    }
}

pub(crate) mod defaults {
    use llmprof_core::domain::mode::Mode;

    pub fn inputs_manifest(reads_images: bool) -> String {
        if reads_images { "inputs.yaml" } else { "inputs-text.yaml" }.into()
    }
    pub fn mode() -> Mode {
        Mode::DEEP
    }
    pub fn repeats() -> u32 {
        3
    }
    pub fn warmup() -> u32 {
        2
    }
    pub fn max_new_tokens() -> u32 {
        64
    }
    pub fn batch() -> u32 {
        1
    }
    pub fn device() -> String {
        "auto".into()
    }
    pub fn timeout_s() -> u32 {
        1800
    }
}
