//! SVG to PNG, with the font inside the program: a fresh machine may have none.

use std::sync::Arc;

use anyhow::{Context, Result};
use resvg::{tiny_skia, usvg};

/// Renders an SVG document on white, `scale` pixels per SVG unit.
pub fn render_png(svg: &str, scale: f32) -> Result<Vec<u8>> {
    let mut options = usvg::Options { font_family: "Ubuntu".to_owned(), ..usvg::Options::default() };
    let fonts = Arc::make_mut(&mut options.fontdb);
    fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
    fonts.set_sans_serif_family("Ubuntu");
    let tree = usvg::Tree::from_str(svg, &options).context("the figure is not valid SVG")?;
    let size = tree.size().to_int_size().scale_by(scale).context("the figure has no area")?;
    let mut pixels =
        tiny_skia::Pixmap::new(size.width(), size.height()).context("the figure is too large")?;
    pixels.fill(tiny_skia::Color::WHITE);
    resvg::render(&tree, tiny_skia::Transform::from_scale(scale, scale), &mut pixels.as_mut());
    pixels.encode_png().context("the picture could not be encoded")
}
