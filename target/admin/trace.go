package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"softiser/target/volume"
)

// TraceRequest asks for the commands of a volume as they end: lines of JSON, a
// [volume.TracedCommand] each, until Count of them have come or the client goes.
type TraceRequest struct {
	// Volume is its name. "": it is what Node has as Unit.
	Volume string `json:"volume,omitempty"`
	Node   string `json:"node,omitempty"` // target, or subsystem
	Unit   uint32 `json:"unit"`           // LUN, or namespace
	// Count is how many commands to tell of; 0: as many as come.
	Count int `json:"count"`
	// Slower leaves out the commands that have been answered sooner.
	Slower time.Duration `json:"slower_ns"`
}

// maxTraces is how many volumes may be traced at once.
const maxTraces = 8

var errTraces = fmt.Errorf("%d volumes are traced already, which is the limit", maxTraces)

// handleTrace streams commands as the body of the answer; the trailer says why it has ended
// if not by the client.
func (b *Backend) handleTrace(mux *http.ServeMux) {
	room := make(chan struct{}, maxTraces)
	mux.HandleFunc("POST /v1/trace", func(w http.ResponseWriter, r *http.Request) {
		var q TraceRequest
		if !body(w, r, &q) {
			return
		}
		if q.Count < 0 || q.Slower < 0 {
			answer(w, http.StatusBadRequest, Error{"count and slower_ns are not negative"})
			return
		}
		select {
		case room <- struct{}{}:
			defer func() { <-room }()
		default:
			done(w, errTraces)
			return
		}
		t, err := b.Trace(q.Volume, q.Node, q.Unit, q.Slower)
		if err != nil {
			done(w, err)
			return
		}
		defer t.Stop()
		w.Header().Set("Content-Type", "application/jsonl")
		w.Header().Set("Trailer", trailerError)
		if err := streamTrace(r.Context(), w, t, q.Count); err != nil && r.Context().Err() == nil {
			w.Header().Set(trailerError, url.QueryEscape(err.Error()))
		}
	})
}

// streamTrace writes count commands (0: all), and sends what it has when no other waits.
func streamTrace(ctx context.Context, w http.ResponseWriter, t *volume.Trace, count int) error {
	rc := http.NewResponseController(w)
	if err := rc.Flush(); err != nil { // the client knows that it has begun
		return err
	}
	out := json.NewEncoder(w)
	for n := 0; count == 0 || n < count; n++ {
		c, err := t.Next(ctx)
		if err != nil {
			return err
		}
		_ = rc.SetWriteDeadline(time.Now().Add(time.Minute)) // who does not read loses it
		if err = out.Encode(&c); err == nil && !t.Waiting() {
			err = rc.Flush()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Trace follows the commands of a volume, and calls begun when it does, then each with every
// command. It ends with q.Count, with ctx, which is no error, or with an error of each.
func (c *Client) Trace(ctx context.Context, q TraceRequest, begun func(), each func(*volume.TracedCommand) error) error {
	b, err := json.Marshal(q)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://iser-target/v1/trace", bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return c.unanswered(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return refusal(resp)
	}
	begun()
	in := json.NewDecoder(resp.Body)
	for {
		var t volume.TracedCommand
		err := in.Decode(&t)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF):
			if s, err := url.QueryUnescape(resp.Trailer.Get(trailerError)); err == nil && s != "" {
				return errors.New(s)
			}
			return nil
		case err != nil:
			return fmt.Errorf("the target has ended the trace: %w", err)
		}
		if err := each(&t); err != nil {
			return err
		}
	}
}
