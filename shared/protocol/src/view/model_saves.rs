//! Saves of the model during training, as a view shows them.

use serde::{Deserialize, Serialize};

use crate::ids::{SaveNo, Slot};

/// Saves that trainers' programs asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSavesView {
    /// The save that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<OpenSaveView>,
    /// The last one that was published, and its directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<PublishedSaveView>,
}

/// A save that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSaveView {
    /// Its number.
    pub save: SaveNo,
    /// The trainer whose lease it is; none while the save waits for its checkpoint, a trainer, or its publication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<Slot>,
}

/// A published save.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedSaveView {
    /// Its number.
    pub save: SaveNo,
    /// Its directory.
    pub dir: String,
}

impl ModelSavesView {
    /// `save 3 is written by trainer-1; last published: save 2, DIR`.
    #[must_use]
    pub fn text(&self) -> String {
        let open = self.open.as_ref().map(|open| match open.writer {
            Some(writer) => format!("save {} is written by {writer}", open.save),
            None => format!("save {} is under way", open.save),
        });
        let published = self.published.as_ref().map(|it| {
            let PublishedSaveView { save, dir } = it;
            format!("last published: save {save}, {dir}")
        });
        open.into_iter().chain(published).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_the_writer_and_the_last_save() {
        let open = Some(OpenSaveView { save: SaveNo(3), writer: None });
        let mut saves = ModelSavesView { open, published: None };
        assert_eq!(saves.text(), "save 3 is under way");
        saves.open = Some(OpenSaveView { save: SaveNo(3), writer: Some(Slot::trainer(1)) });
        let dir = "hdfs://nn/m/save-2".to_owned();
        saves.published = Some(PublishedSaveView { save: SaveNo(2), dir });
        let text = "save 3 is written by trainer-1; last published: save 2, hdfs://nn/m/save-2";
        assert_eq!(saves.text(), text);
        saves.open = None;
        assert_eq!(saves.text(), "last published: save 2, hdfs://nn/m/save-2");
    }
}
