//! Draws throughput and latency against the number of connections.

use std::{fs, path::Path};

use plotters::{coord::Shift, prelude::*};

use crate::{Point, Row};

const SIZE: (u32, u32) = (900, 460);
/// The size of the legend of both charts.
const LEGEND: (usize, u32) = (3, 50);
const FONT: &str = "sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws one operation, throughput next to latency.
pub(crate) fn draw(directory: &Path, operation: &str, points: &[Point]) {
    fs::create_dir_all(directory).expect("the directory for the charts can be made");
    let word = operation.split(',').next().unwrap_or(operation);
    let file = directory.join(format!("{word}-by-connections.svg"));
    let area = SVGBackend::new(&file, SIZE).into_drawing_area();
    area.fill(&WHITE).expect("the chart is written");
    let (legend, charts) = area.split_vertically(LEGEND.1);
    draw_legend(&legend, points[0].rows.iter().map(|row| row.name));
    let (left, right) = charts.split_horizontally(SIZE.0 / 2);
    draw_chart(&left, &format!("{operation}: requests/s"), points, |row| {
        row.spread(|measured| measured.rate).median
    });
    draw_chart(&right, "p99, ms", points, |row| row.spread(|measured| measured.p99).median);
    area.present().expect("the chart is written");
}

/// Above the charts, where no name covers a line.
fn draw_legend<'a>(area: &Area<'_>, names: impl Iterator<Item = &'a str>) {
    let (columns, height) = LEGEND;
    let (width, line) = (pixels(SIZE.0) / pixels(columns), pixels(height) / 2);
    for (number, name) in names.enumerate() {
        let left = pixels(number % columns) * width + 20;
        let middle = pixels(number / columns) * line + line / 2 + 2;
        let dash = PathElement::new([(left, middle), (left + 18, middle)], color(number).stroke_width(3));
        let text = Text::new(name, (left + 24, middle - 7), (FONT, 14));
        area.draw(&dash).and_then(|()| area.draw(&text)).expect("the legend is drawn");
    }
}

#[expect(clippy::cast_precision_loss, reason = "connections are far below 2^52")]
fn draw_chart(area: &Area<'_>, title: &str, points: &[Point], figure: fn(&Row) -> f64) {
    let figures = || points.iter().flat_map(|point| point.rows.iter().map(figure));
    let (low, high) = (figures().fold(f64::INFINITY, f64::min), figures().fold(0.0, f64::max));
    let (first, last) = (points[0].connections as f64, points[points.len() - 1].connections as f64);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 15))
        .margin(10)
        .margin_right(30)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d((first..last).log_scale(), (low * 0.8..high * 1.3).log_scale())
        .expect("the axes fit");
    // Rounded, because 0.1 + 0.2 would get a label of 17 digits.
    let label = |figure: &f64| format!("{}", (figure * 1e3).round() / 1e3);
    chart
        .configure_mesh()
        .x_desc("connections")
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .light_line_style(WHITE)
        .draw()
        .expect("the axes are drawn");
    for number in 0..points[0].rows.len() {
        let line = points.iter().map(|point| (point.connections as f64, figure(&point.rows[number])));
        let line = LineSeries::new(line, color(number).stroke_width(2));
        chart.draw_series(line).expect("the line is drawn");
    }
}

fn color(number: usize) -> RGBAColor {
    Palette99::pick(number).to_rgba()
}

fn pixels(count: impl TryInto<i32>) -> i32 {
    count.try_into().ok().expect("a chart is small")
}
