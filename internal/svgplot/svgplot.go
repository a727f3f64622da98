// Package svgplot draws figures over time as SVG that stands alone: panels below one another
// with a common time axis, light or dark as the reader's program is. It has no fonts, no
// scripts and asks for nothing from elsewhere.
package svgplot

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
)

// Figure is what is drawn.
type Figure struct {
	Title    string
	Subtitle []string  // lines
	Span     float64   // seconds of the time axis, which begins with 0
	Panels   []Panel   // from above
	Marks    []float64 // times at which a vertical line stands
}

// Panel is one plot.
type Panel struct {
	Title string
	Log   bool                   // logarithmic; what is not above zero is not drawn then
	Text  func(v float64) string // a value with its unit
	Least float64                // what the axis reaches at least
	Lines []Line
}

// Line is one series. A NaN is a gap.
type Line struct {
	Name   string
	Colour int // 0 … Colours-1
	Style  Style
	Points []Point
}

// Point is a value at a time in seconds.
type Point struct{ X, Y float64 }

// Style tells lines of one colour from one another.
type Style uint8

// Styles.
const (
	Solid Style = iota
	Dashed
	Dotted
)

// Colours is how many there are, each for light and for dark.
const Colours = 4

const style = `
svg { background: #ffffff; font: 12px system-ui, "DejaVu Sans", sans-serif; }
text { fill: #44505d; } .title { font-size: 15px; font-weight: 600; fill: #1b2430; } .panel { font-weight: 600; fill: #1b2430; }
.grid { stroke: #dfe3e8; } .mark { stroke: #8a95a1; stroke-dasharray: 4 3; }
.line { fill: none; stroke-width: 1.5; stroke-linejoin: round; } .s1 { stroke-dasharray: 6 3; } .s2 { stroke-dasharray: 2 2.5; }
.c0 { stroke: #1f6fc4; } .c1 { stroke: #c05a12; } .c2 { stroke: #2a8a4e; } .c3 { stroke: #8a4fb3; }
@media (prefers-color-scheme: dark) {
svg { background: #11151a; } text { fill: #a3afbb; } .title, .panel { fill: #e4e8ed; } .grid { stroke: #2e3742; }
.c0 { stroke: #6fb1f7; } .c1 { stroke: #f2a25f; } .c2 { stroke: #74d39b; } .c3 { stroke: #c79ae6; } }
`

// Sizes in pixels.
const (
	width       = 900
	left, right = 78, 20
	panelHeight = 190
	legend      = 40 // above a panel: its title, and what the lines are
	gap         = 14
	axis        = 34 // below the last one
)

// Write writes the figure.
func (f *Figure) Write(w io.Writer) error {
	var b bytes.Buffer
	top := 28 + 17*len(f.Subtitle)
	height := top + len(f.Panels)*(legend+panelHeight+gap) + axis
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`, width, height, width, height, escape(f.Title))
	fmt.Fprintf(&b, "\n<style>%s</style>\n", style)
	text(&b, left, 22, "start", "title", f.Title)
	for i, s := range f.Subtitle {
		text(&b, left, 40+17*i, "start", "", s)
	}
	for i := range f.Panels {
		f.panel(&b, &f.Panels[i], float64(top+i*(legend+panelHeight+gap)+legend))
	}
	bottom := top + len(f.Panels)*(legend+panelHeight+gap) - gap
	for _, t := range ticks(f.Span, 10) {
		text(&b, int(f.x(t)), bottom+18, "middle", "", strconv.FormatFloat(t, 'g', 6, 64)+" s")
	}
	b.WriteString("</svg>\n")
	_, err := w.Write(b.Bytes())
	return err
}

func (f *Figure) x(t float64) float64 {
	return left + (width-left-right)*t/max(f.Span, math.SmallestNonzeroFloat32)
}

// panel draws one, whose axes begin at top.
func (f *Figure) panel(b *bytes.Buffer, p *Panel, top float64) {
	s := p.scale()
	y := func(v float64) float64 { return top + panelHeight*(1-s.at(v)) }
	text(b, left, int(top)-24, "start", "panel", p.Title)
	at := left
	for i := range p.Lines {
		l := &p.Lines[i]
		fmt.Fprintf(b, `<path class="line %s" d="M%d %.0fh22"/>`+"\n", l.class(), at, top-10)
		text(b, at+27, int(top)-6, "start", "", l.Name)
		at += 27 + 8*len([]rune(l.Name)) + 14
	}
	for _, v := range s.ticks {
		fmt.Fprintf(b, `<path class="grid" d="M%d %.1fH%d"/>`+"\n", left, y(v), width-right)
		text(b, left-7, int(y(v))+4, "end", "", p.Text(v))
	}
	for _, t := range ticks(f.Span, 10) {
		fmt.Fprintf(b, `<path class="grid" d="M%.1f %.1fv%d"/>`+"\n", f.x(t), top, panelHeight)
	}
	for _, t := range f.Marks {
		fmt.Fprintf(b, `<path class="mark" d="M%.1f %.1fv%d"/>`+"\n", f.x(t), top, panelHeight)
	}
	for i := range p.Lines {
		l := &p.Lines[i]
		var d strings.Builder
		open := false
		for k, pt := range l.Points {
			if !s.has(pt.Y) {
				open = false
				continue
			}
			if open {
				fmt.Fprintf(&d, "L%.1f %.1f", f.x(pt.X), y(pt.Y))
				continue
			}
			open = true
			fmt.Fprintf(&d, "M%.1f %.1f", f.x(pt.X), y(pt.Y))
			if k+1 == len(l.Points) || !s.has(l.Points[k+1].Y) {
				d.WriteString("h1.5") // one alone
			}
		}
		if d.Len() > 0 {
			fmt.Fprintf(b, `<path class="line %s" d="%s"/>`+"\n", l.class(), d.String())
		}
	}
}

func (l *Line) class() string { return fmt.Sprintf("c%d s%d", l.Colour%Colours, l.Style) }

func text(b *bytes.Buffer, x, y int, anchor, class, s string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="%s"`, x, y, anchor)
	if class != "" {
		fmt.Fprintf(b, ` class="%s"`, class)
	}
	fmt.Fprintf(b, ">%s</text>\n", escape(s))
}

func escape(s string) string { return html.EscapeString(strings.Map(printable, s)) }

// printable leaves out what XML cannot have in it.
func printable(r rune) rune {
	if r < ' ' || r == 0xfffe || r == 0xffff {
		return '\ufffd'
	}
	return r
}
