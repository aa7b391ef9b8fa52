//! A flamegraph of unfreed allocations, as SVG.

use std::{borrow::Cow, io};

use inferno::flamegraph::{
    self, TextTruncateDirection,
    color::{BackgroundColor, BasicPalette, Color, Palette, PaletteMap, parse_hex_color},
};

use super::{
    Options, folded,
    label::{self, FileNames},
};
use crate::model::{ProcessSnapshot, Snapshot, is_user};

/// Black on each of these is easily read.
const OWN: &str = "#ffb347";
const LIBRARY: &str = "#c9d9e8";
const STRUCTURE: &str = "#e2e2e2";

const TITLE: &str = "Unfreed GPU memory by Python line";

/// Writes the flamegraph. Widths are live bytes; a tooltip has the exact number. The user's own lines
/// are orange, those of libraries blue, everything else grey.
///
/// # Errors
///
/// Those of the writer.
pub fn write_flamegraph(
    snapshot: &Snapshot,
    options: &Options,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let stacks = folded::stacks(snapshot, options);
    let accuracy = if snapshot.tracer.exact { "exact" } else { "INCOMPLETE, see the report" };
    if stacks.is_empty() {
        return write_empty(accuracy, out);
    }
    let bytes = label::sum(stacks.values().copied());
    // A hostile process can make sizes up, and the renderer adds them.
    let most = (u64::MAX >> 1) / stacks.len() as u64;
    let lines: Vec<String> =
        stacks.iter().map(|(stack, bytes)| format!("{stack} {}", bytes.min(&most))).collect();
    let accuracy = if stacks.values().any(|bytes| *bytes > most) {
        "NOT TO SCALE: sizes beyond any memory are cut"
    } else {
        accuracy
    };

    let mut colors = colors(snapshot);
    let mut style = flamegraph::Options::default();
    style.title = TITLE.to_owned();
    style.subtitle = Some(format!(
        "{} live ({accuracy}) · orange: own code, blue: libraries",
        label::size(bytes)
    ));
    style.count_name = "bytes".to_owned();
    style.name_type = "Line:".to_owned();
    style.bgcolors = parse_hex_color("#ffffff").map(BackgroundColor::Flat);
    style.colors = Palette::Basic(BasicPalette::Aqua);
    style.hash = true;
    style.palette_map = Some(&mut colors);
    style.text_truncate_direction = TextTruncateDirection::Right;
    style.min_width = 0.1;
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut style, lines.iter().map(String::as_str), &mut svg)
        .map_err(|error| io::Error::other(error.to_string()))?;
    out.write_all(with_units(&String::from_utf8_lossy(&svg)).as_bytes())
}

/// A colour for every frame there is, by its name.
fn colors(snapshot: &Snapshot) -> PaletteMap {
    let names = FileNames::of(snapshot);
    let mut map = PaletteMap::default();
    let mut set = |name: &str, hex: &str| {
        if let Some(color) = parse_hex_color(hex) {
            let _before: Option<Color> = map.insert(folded::escape(name), color);
        }
    };
    let frames = |own: bool| {
        let sites = snapshot.processes.iter().flat_map(folded::holders);
        sites.flat_map(|site| &site.frames).filter(move |frame| is_user(frame) == own)
    };
    frames(false).for_each(|frame| set(&names.line(frame), LIBRARY));
    frames(true).for_each(|frame| set(&names.line(frame), OWN));
    set("all", STRUCTURE);
    set("", STRUCTURE);
    for process in &snapshot.processes {
        structure(process).iter().for_each(|name| set(name, STRUCTURE));
    }
    map
}

/// The frames below those of Python.
fn structure(process: &ProcessSnapshot) -> Vec<String> {
    let devices = process.devices.iter().map(|device| label::device(device.index));
    let mut names = vec![folded::root(process), folded::gap(label::BACKWARD_PASS)];
    names.extend([folded::BEFORE_ATTACH, folded::OTHERS].map(str::to_owned));
    names.extend(devices);
    for site in folded::holders(process) {
        names.push(folded::place(site));
        names.extend(site.frames_note.as_deref().map(folded::gap));
    }
    names
}

/// Adds to each tooltip the size in a unit that people read: `(1,280,000,000 bytes, 1.2 GiB, 99%)`.
fn with_units(svg: &str) -> Cow<'_, str> {
    const END: &str = "</title>";
    let mut text = String::with_capacity(svg.len() + svg.len() / 8);
    for part in svg.split_inclusive(END) {
        match part.ends_with(END).then(|| size_of_title(part)).flatten() {
            Some((end, bytes)) => {
                text.push_str(&part[..end]);
                text.push_str(&format!(", {}", label::size(bytes)));
                text.push_str(&part[end..]);
            }
            None => text.push_str(part),
        }
    }
    Cow::Owned(text)
}

/// The number in `… (1,234 bytes, 5.67%)</title>` and where its unit ends. The last bracket is the
/// renderer's, whatever a name holds.
fn size_of_title(part: &str) -> Option<(usize, u64)> {
    const UNIT: &str = " bytes";
    let open = part.rfind('(')?;
    let length = part[open..].find(UNIT)?;
    let digits: String = part[open + 1..open + length].chars().filter(|&c| c != ',').collect();
    Some((open + length + UNIT.len(), digits.parse().ok()?))
}

/// The renderer refuses to draw nothing.
fn write_empty(accuracy: &str, out: &mut impl io::Write) -> io::Result<()> {
    writeln!(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"no\"?>\n\
         <svg version=\"1.1\" xmlns=\"http://www.w3.org/2000/svg\" width=\"1200\" height=\"110\" \
         viewBox=\"0 0 1200 110\" font-family=\"monospace\" text-anchor=\"middle\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"600\" y=\"30\" font-size=\"17\">{TITLE}</text>\n\
         <text x=\"600\" y=\"75\" font-size=\"14\">nothing is allocated ({accuracy})</text>\n\
         </svg>"
    )
}
