//! The code cells of a notebook's file (nbformat 4).

use serde::Deserialize;
use serde_json::Value;

use crate::naming::NotebookCell;

#[derive(Deserialize)]
struct File {
    cells: Vec<Cell>,
}

#[derive(Deserialize)]
struct Cell {
    cell_type: String,
    #[serde(default)]
    source: Value,
    #[serde(default)]
    execution_count: Option<u32>,
}

/// Its code cells, in their order; `None` if it is another kind of file.
pub fn cells(text: &[u8]) -> Option<Vec<NotebookCell>> {
    let file: File = serde_json::from_slice(text).ok()?;
    let code = file.cells.into_iter().filter(|cell| cell.cell_type == "code");
    Some(
        code.map(|cell| NotebookCell { source: source(&cell.source), count: cell.execution_count })
            .collect(),
    )
}

/// Text, or a list of lines.
fn source(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_cells_in_their_order() {
        let text = r##"{"nbformat": 4, "cells": [
            {"cell_type": "markdown", "source": "# Title"},
            {"cell_type": "code", "source": ["a = 1\n", "b"], "execution_count": 7, "outputs": []},
            {"cell_type": "code", "source": "c", "execution_count": null},
            {"cell_type": "code"}]}"##;
        let found = cells(text.as_bytes()).unwrap();
        let found: Vec<_> = found.iter().map(|cell| (cell.source.as_str(), cell.count)).collect();
        assert_eq!(found, [("a = 1\nb", Some(7)), ("c", None), ("", None)]);
        for other in ["{}", "[]", "{\"cells\": 1}", "", "\u{0}"] {
            assert!(cells(other.as_bytes()).is_none(), "{other}");
        }
    }
}
