package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"softiser/internal/capture"
	"softiser/internal/sockio"
)

// CaptureRequest asks for what connections send and receive, data included. It is answered by a
// pcap file, which goes out while it grows; trailers say how it has ended.
type CaptureRequest struct {
	// Portal is the near end: an address and port; an unspecified address stands for all. "": any.
	Portal string `json:"portal,omitempty"`
	// Peers are far ends: addresses and ports, port 0 for all of an address. None: any.
	Peers []string `json:"peers,omitempty"`
	// Next leaves out what is open already.
	Next        bool          `json:"next"`
	Connections int           `json:"connections"` // at most this many
	Bytes       int64         `json:"bytes"`       // of the streams
	Time        time.Duration `json:"time_ns"`
}

// Captured tells what a capture has brought.
type Captured = capture.Result

// Bounds of a CaptureRequest.
const (
	MaxCaptureBytes = 64 << 30
	MaxCaptureTime  = 24 * time.Hour
)

// request is q as the capture understands it, with its bounds checked.
func (q *CaptureRequest) request() (r capture.Request, err error) {
	r = capture.Request{Filter: sockio.TapFilter{New: q.Next, Most: q.Connections}, Bytes: q.Bytes, Time: q.Time}
	switch {
	case q.Connections < 1 || q.Connections > sockio.MaxTapped:
		return r, fmt.Errorf("%d connections; a capture has 1 to %d", q.Connections, sockio.MaxTapped)
	case q.Bytes < 1 || q.Bytes > MaxCaptureBytes:
		return r, fmt.Errorf("%d bytes; a capture ends after 1 byte to 64 GiB", q.Bytes)
	case q.Time <= 0 || q.Time > MaxCaptureTime:
		return r, fmt.Errorf("%v; a capture ends within %v", q.Time, MaxCaptureTime)
	case !q.Next && len(q.Peers) == 0:
		return r, errors.New("a capture needs peers, or the next connection")
	}
	if q.Portal != "" {
		if r.Filter.Local, err = netip.ParseAddrPort(q.Portal); err != nil {
			return r, fmt.Errorf("portal %q: an address and a port are needed, such as 192.0.2.1:3260", q.Portal)
		}
	}
	for _, p := range q.Peers {
		a, err := netip.ParseAddrPort(p)
		if err != nil {
			return r, fmt.Errorf("peer %q: an address and a port are needed, such as 192.0.2.7:40000", p)
		}
		r.Filter.Remotes = append(r.Filter.Remotes, a)
	}
	return r, nil
}

const trailerCapture = "Softiser-Capture"

// handleCapture streams a capture as the body of the answer, with what came of it in the
// trailer, and ends the one that runs.
func handleCapture(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/capture", func(w http.ResponseWriter, r *http.Request) {
		var q CaptureRequest
		if !body(w, r, &q) {
			return
		}
		c, err := q.request()
		if err != nil {
			answer(w, http.StatusBadRequest, Error{err.Error()})
			return
		}
		rc := http.NewResponseController(w)
		_ = rc.SetWriteDeadline(time.Now().Add(c.Time + time.Minute)) // who does not read loses it
		w.Header().Set("Content-Type", "application/vnd.tcpdump.pcap")
		w.Header().Set("Trailer", trailerError+", "+trailerCapture)
		out := &counted{Writer: w, rc: rc}
		res, err := capture.Run(r.Context(), c, out)
		if err != nil && out.n == 0 {
			w.Header().Del("Trailer")
			done(w, err)
			return
		}
		if err != nil {
			w.Header().Set(trailerError, url.QueryEscape(err.Error()))
		}
		b, _ := json.Marshal(res) // numbers
		w.Header().Set(trailerCapture, string(b))
	})
	mux.HandleFunc("DELETE /v1/capture", func(w http.ResponseWriter, _ *http.Request) {
		if !sockio.StopTap() {
			done(w, errors.New("there is no capture"))
			return
		}
		done(w, nil)
	})
}

// counted counts what is written to an answer.
type counted struct {
	io.Writer
	rc *http.ResponseController
	n  int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n += int64(n)
	return n, err
}

// Flush sends what has been written.
func (c *counted) Flush() error { return c.rc.Flush() }

// StopCapture ends the capture that there is; what it has so far goes to whoever has asked for it.
func (c *Client) StopCapture(ctx context.Context) error {
	return c.do(ctx, http.MethodDelete, "/v1/capture", nil, nil)
}

// Capture writes what connections send and receive to w, as pcap, until a bound or StopCapture
// ends it. When ctx ends it, the last packet may be cut.
func (c *Client) Capture(ctx context.Context, q CaptureRequest, w io.Writer) (res Captured, err error) {
	b, err := json.Marshal(q)
	if err != nil {
		return res, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://iser-target/v1/capture", bytes.NewReader(b))
	if err != nil {
		return res, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return res, c.unanswered(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return res, refusal(resp)
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		return res, err
	}
	if s, err := url.QueryUnescape(resp.Trailer.Get(trailerError)); err == nil && s != "" {
		return res, errors.New(s)
	}
	if json.Unmarshal([]byte(resp.Trailer.Get(trailerCapture)), &res) != nil {
		return res, errors.New("the target ended before the capture did")
	}
	return res, nil
}
