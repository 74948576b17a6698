//! Draws throughput and latency as curves.

use std::{borrow::Borrow, path::Path};

use plotters::{coord::Shift, prelude::*};

use crate::Row;

const SIZE: (u32, u32) = (900, 440);
/// The height of the line that names the colors of both charts.
const NAMES: u32 = 30;
const FONT: &str = "sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws one case, throughput next to latency, against what was changed from point to point.
pub(crate) fn draw<P: Borrow<(usize, Vec<Row>)>>(directory: &Path, case: &str, changed: &str, points: &[P]) {
    let words: Vec<&str> = case.split(|letter: char| !letter.is_alphanumeric()).collect();
    let file = directory.join(format!("{}-by-{changed}.svg", words[0]));
    let points: Vec<&(usize, Vec<Row>)> = points.iter().map(Borrow::borrow).collect();
    let area = SVGBackend::new(&file, SIZE).into_drawing_area();
    area.fill(&WHITE).expect("the picture is written");
    let (names, charts) = area.split_vertically(NAMES);
    write_names(&names, points[0].1.iter().map(|row| row.name));
    let (left, right) = charts.split_horizontally(SIZE.0 / 2);
    half(&left, &format!("{case}: share of the ceiling's requests/s"), changed, &points, |row| {
        row.median().ratio
    });
    half(&right, "99th percentile, ms", changed, &points, |row| row.median().measured.p99);
    area.present().expect("the picture is written");
    println!("drawn: {}", file.display());
}

/// Above the charts, because anywhere inside they would cover a line.
fn write_names<'a>(area: &Area<'_>, names: impl ExactSizeIterator<Item = &'a str>) {
    let width = pixels(SIZE.0) / pixels(names.len());
    let middle = pixels(NAMES) / 2 + 4;
    for (number, name) in names.enumerate() {
        let begin = pixels(number) * width + 20;
        let dash = PathElement::new([(begin, middle), (begin + 18, middle)], color(number).stroke_width(3));
        let text = Text::new(name, (begin + 24, middle - 7), (FONT, 14));
        area.draw(&dash).and_then(|()| area.draw(&text)).expect("the names are written");
    }
}

#[expect(clippy::cast_precision_loss, reason = "connections and pets are far below 2^52")]
fn half(area: &Area<'_>, title: &str, changed: &str, points: &[&(usize, Vec<Row>)], figure: fn(&Row) -> f64) {
    let figures = || points.iter().flat_map(|(_, rows)| rows.iter().map(figure));
    let (low, high) = (figures().fold(f64::INFINITY, f64::min), figures().fold(0.0, f64::max));
    let (first, last) = (points[0].0 as f64, points[points.len() - 1].0 as f64);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 15))
        .margin(10)
        .margin_right(30)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d((first..last).log_scale(), (low * 0.8..high * 1.3).log_scale())
        .expect("the axes fit");
    // A thousandth is exact enough, and 0.1 + 0.2 is then 0.3.
    let label = |figure: &f64| format!("{}", (figure * 1e3).round() / 1e3);
    chart
        .configure_mesh()
        .x_desc(changed)
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .light_line_style(WHITE)
        .draw()
        .expect("the axes are drawn");
    for number in 0..points[0].1.len() {
        let line = points.iter().map(|(changed, rows)| (*changed as f64, figure(&rows[number])));
        let line = LineSeries::new(line, color(number).stroke_width(2));
        chart.draw_series(line).expect("the line is drawn");
    }
}

fn color(number: usize) -> RGBAColor {
    Palette99::pick(number).to_rgba()
}

fn pixels(count: impl TryInto<i32>) -> i32 {
    count.try_into().ok().expect("a picture is small")
}
