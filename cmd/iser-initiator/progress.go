package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
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

// startProgress shows verb's progress on stderr if that is a terminal.
func startProgress(verb string, total int64, show bool) *progress {
	p := &progress{verb: verb, total: total, begun: time.Now(), quit: make(chan struct{}), idle: make(chan struct{})}
	st, err := os.Stderr.Stat()
	if !show || err != nil || st.Mode()&os.ModeCharDevice == 0 {
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
			fmt.Fprintf(p.w, "\r%s\x1b[K", p.line())
		case <-p.quit:
			fmt.Fprintf(p.w, "\r\x1b[K")
			return
		}
	}
}

// line draws the bar.
func (p *progress) line() string {
	done, took := p.done.Load(), time.Since(p.begun).Seconds()
	rate := float64(done) / max(took, 1e-3)
	s := fmt.Sprintf("%s %s", p.verb, humanize.IBytes(uint64(done)))
	if p.total > 0 {
		const width = 30
		fill := int(min(done*width/p.total, width))
		bar := make([]byte, width)
		for i := range bar {
			bar[i] = '.'
			if i < fill {
				bar[i] = '='
			}
		}
		s += fmt.Sprintf(" of %s [%s] %3d %%", humanize.IBytes(uint64(p.total)), bar, done*100/p.total)
	}
	s += fmt.Sprintf("  %s/s", humanize.IBytes(uint64(rate)))
	if p.total > 0 && rate > 0 {
		s += fmt.Sprintf("  %s left", (time.Duration(float64(p.total-done)/rate) * time.Second).Round(time.Second))
	}
	return s
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
