package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"softiser/target"
)

// health answers whether the process lives and serves.
type health struct {
	status func() target.Status
	asks   chan struct{} // a token for each question without an answer yet, which may be all of them when storage, or a mistake of ours, keeps a lock held
}

func newHealth(status func() target.Status) *health {
	return &health{status: status, asks: make(chan struct{}, 8)}
}

// healthPatience is how long a process that lives may take to tell of itself.
const healthPatience = 5 * time.Second

var errStuck = errors.New("the server does not answer: something holds its locks")

// check asks the server for its status, which needs the locks of every part of it.
func (h *health) check(ctx context.Context) (st target.Status, err error) {
	select {
	case h.asks <- struct{}{}:
	default:
		return st, errStuck // another question would only leave another goroutine waiting
	}
	answer := make(chan target.Status, 1)
	go func() {
		defer func() { <-h.asks }()
		answer <- h.status()
	}()
	ctx, cancel := context.WithTimeout(ctx, healthPatience)
	defer cancel()
	select {
	case st = <-answer:
		return st, nil
	case <-ctx.Done():
		return st, errStuck
	}
}

// live is /healthz: 200 as long as restarting the process would not help.
func (h *health) live(w http.ResponseWriter, r *http.Request) {
	if _, err := h.check(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok") //nolint:errcheck // who asked has gone
}

// ready is /readyz: 200 when initiators are to come here. A LUN or a namespace that is not
// served does not make the others unready; it is named.
func (h *health) ready(w http.ResponseWriter, r *http.Request) {
	st, err := h.check(r.Context())
	if err == nil && st.State != "listening" {
		err = errors.New(st.State)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok") //nolint:errcheck // the same
	for where, why := range st.Unserved() {
		io.WriteString(w, where+" is not served: "+why+"\n") //nolint:errcheck // the same
	}
}
