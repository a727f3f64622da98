package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"

	"softiser/internal/terminal"
)

// progress shows how far long work has come, on a terminal only.
type progress struct {
	w     io.Writer // nil: silent
	verb  string
	total int64 // bytes; <0 unknown
	done  atomic.Int64
	begun time.Time
	quit  chan struct{}
	idle  chan struct{} // closed when the goroutine has ended
}

// startProgress shows verb's progress on stderr if that is a terminal on which a line can be replaced.
func startProgress(verb string, total int64, show bool) *progress {
	p := &progress{verb: verb, total: total, begun: time.Now(), quit: make(chan struct{}), idle: make(chan struct{})}
	st, err := os.Stderr.Stat()
	if !show || terminal.Dumb() || err != nil || st.Mode()&os.ModeCharDevice == 0 {
		close(p.idle)
		return p
	}
	p.w = os.Stderr
	go p.run()
	return p
}

func (p *progress) run() {
	defer close(p.idle)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			fmt.Fprintf(p.w, "\r%s\x1b[K", p.line(terminal.Columns(p.w)))
		case <-p.quit:
			fmt.Fprintf(p.w, "\r\x1b[K")
			return
		}
	}
}

// line draws the bar for a terminal of so many columns, 0 if that is not known. In a
// narrow one it is shorter, and what matters least is left out.
func (p *progress) line(columns int) string {
	done, took := p.done.Load(), time.Since(p.begun).Seconds()
	perSecond := float64(done) / max(took, 1e-3)
	s := fmt.Sprintf("%s %s", p.verb, humanize.IBytes(uint64(done)))
	rate := fmt.Sprintf("  %s/s", humanize.IBytes(uint64(perSecond)))
	if p.total <= 0 {
		return terminal.Fit(columns, s+rate, s)
	}
	share := fmt.Sprintf(" %3d %%", done*100/p.total)
	of := " of " + humanize.IBytes(uint64(p.total))
	left := ""
	if perSecond > 0 {
		left = fmt.Sprintf("  %s left", (time.Duration(float64(p.total-done)/perSecond) * time.Second).Round(time.Second))
	}
	return terminal.Fit(columns, s+of+p.bar(30)+share+rate+left, s+of+p.bar(10)+share+rate+left, s+p.bar(10)+share+left, s+share+left, s+share, share[1:])
}

// bar is so many columns wide between its brackets.
func (p *progress) bar(width int64) string {
	fill := int(min(p.done.Load()*width/p.total, width))
	return " [" + strings.Repeat("=", fill) + strings.Repeat(".", int(width)-fill) + "]"
}

// stop removes the line.
func (p *progress) stop() {
	select {
	case <-p.quit:
	default:
		close(p.quit)
	}
	<-p.idle
}

// outcome is what read, write and verify report at the end.
type outcome struct {
	Operation string  `json:"operation"`
	URL       string  `json:"url"`
	Offset    int64   `json:"offset"`
	Bytes     int64   `json:"bytes"`
	Zeroes    int64   `json:"zero_bytes,omitempty"` // of these: neither read nor written as data
	Seconds   float64 `json:"seconds"`
	Rate      float64 `json:"bytes_per_second"`
	Flushed   bool    `json:"flushed,omitempty"`
	// verify
	Equal     *bool  `json:"equal,omitempty"`
	FirstDiff *int64 `json:"first_difference,omitempty"` // offset on the volume
}

func (o *outcome) finish(begun time.Time) {
	o.Seconds = time.Since(begun).Seconds()
	o.Rate = float64(o.Bytes) / max(o.Seconds, 1e-9)
}

// print writes the outcome for people or programs.
func (o *outcome) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(o)
	}
	s := fmt.Sprintf("%s: %s (%d bytes) in %.2f s, %s/s", o.Operation, humanize.IBytes(uint64(o.Bytes)), o.Bytes, o.Seconds, humanize.IBytes(uint64(o.Rate)))
	if o.Zeroes > 0 {
		s += fmt.Sprintf(", %s of them zeroes", humanize.IBytes(uint64(o.Zeroes)))
	}
	if o.Flushed {
		s += ", flushed"
	}
	_, err := fmt.Fprintln(w, s)
	return err
}
