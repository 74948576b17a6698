//! Draws throughput against the number of connections, both on logarithmic scales.

use std::{fmt::Write as _, fs, path::Path};

use crate::Point;

/// Of the servers, in their order.
const COLORS: [&str; 8] =
    ["#e6194b", "#3cb44b", "#4363d8", "#98c99c", "#9fb0e8", "#f58231", "#911eb4", "#46b0b8"];
const LABELS: [f64; 13] = [10.0, 100.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 5e4, 1e5, 2e5, 5e5];

#[expect(clippy::cast_precision_loss, reason = "connections are far below 2^52")]
pub(crate) fn draw(directory: &Path, operation: &str, points: &[Point]) {
    let rates = || points.iter().flat_map(|point| point.rows.iter().map(crate::Row::rate));
    let (low, high) = (rates().fold(f64::INFINITY, f64::min) * 0.8, rates().fold(0.0, f64::max) * 1.2);
    let last = points[points.len() - 1].connections as f64;
    let x = |connections: usize| 70.0 + 480.0 * (connections as f64).ln() / last.ln().max(1.0);
    let y = |rate: f64| 390.0 - 350.0 * (rate / low).ln() / (high / low).ln();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 430\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"860\" height=\"430\" fill=\"white\"/>\n\
         <text x=\"70\" y=\"22\">{operation}: requests/s by connections</text>\n"
    );
    let mut add = |line: String| writeln!(svg, "{line}").expect("a text can grow");
    for Point { connections, .. } in points {
        let x = x(*connections);
        add(format!(
            "<path d=\"M{x:.0} 40V390\" stroke=\"#ddd\"/><text x=\"{x:.0}\" y=\"410\" text-anchor=\"middle\">{connections}</text>"
        ));
    }
    for rate in LABELS.into_iter().filter(|rate| (low..high).contains(rate)) {
        let y = y(rate);
        add(format!(
            "<path d=\"M70 {y:.0}H550\" stroke=\"#ddd\"/><text x=\"62\" y=\"{:.0}\" text-anchor=\"end\">{rate}</text>",
            y + 4.0
        ));
    }
    for (number, color) in COLORS.into_iter().enumerate().take(points[0].rows.len()) {
        let place =
            |point: &Point| format!("{:.0},{:.0}", x(point.connections), y(point.rows[number].rate()));
        let line = points.iter().map(place).collect::<Vec<_>>().join(" ");
        add(format!("<polyline points=\"{line}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>"));
        let (name, y) = (&points[0].rows[number].name, 60 + 20 * number);
        add(format!("<text x=\"570\" y=\"{y}\" fill=\"{color}\">{name}</text>"));
    }
    svg.push_str("</svg>\n");
    let word = operation.split(',').next().unwrap_or(operation);
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(directory.join(format!("{word}-by-connections.svg")), svg))
        .expect("the chart is written");
}
